"""A process whose pools are cut and restored by another thread all the time.

``python -m tests.conformance.nnapi_cut_files`` prints how often each way of using them ended with which status. To
touch what is gone would be the end of the process.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import tempfile
import threading
import time
from collections import Counter

import numpy as np

from hal.nnapi import memory, open_device
from hal.nnapi.types import BufferDesc, BufferRole, DataLocation, MemoryPool, Request, RequestArgument
from tests.conformance.nnapi_client import Burst, ExecutionCallback, prepared_model
from tests.unit.nnapi.driver.models import add

COUNT = 1 << 18
NBYTES = 4 * COUNT
SIZE = 3 * NBYTES
SECONDS = 0.5


def cut(descriptor: int, stop: threading.Event) -> None:
    """Take a part of the file away, or all of it, and give it back."""
    chance = random.Random(1)
    while not stop.is_set():
        os.ftruncate(descriptor, chance.choice([0, NBYTES, 2 * NBYTES + 4096]))
        time.sleep(chance.random() * 0.001)
        os.ftruncate(descriptor, SIZE)
        time.sleep(chance.random() * 0.01)


def main() -> None:
    """Use the pool in every way while it is cut."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryFile() as file:
        use(file.fileno())


def use(descriptor: int) -> None:
    """Execute and copy, in all ways."""
    os.ftruncate(descriptor, SIZE)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    whole = memory.from_fd(SIZE, protection, descriptor)
    part = memory.from_fd(NBYTES, protection, descriptor)
    arguments = [RequestArgument(False, DataLocation(0, i * NBYTES, NBYTES), (COUNT,)) for i in range(3)]
    request = Request(arguments[:2], arguments[2:], [MemoryPool(whole)])
    seen: Counter[str] = Counter()
    stop = threading.Event()
    with open_device("edge") as device:
        prepared = prepared_model(device, add((COUNT,)))
        _, buffer, _ = device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], [])
        burst = Burst(prepared)
        thread = threading.Thread(target=cut, args=(descriptor, stop), daemon=True)
        thread.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            seen["sync " + prepared.executeSynchronously_1_3(request, 0, None, None)[0].name] += 1
            callbacks = [ExecutionCallback() for _ in range(3)]
            for callback in callbacks:
                prepared.execute_1_3(request, 0, None, None, callback)
            for callback in callbacks:
                seen["async " + callback.wait()[0].name] += 1
            seen["burst " + burst.execute(request)[0].name] += 1
            seen["copyFrom " + buffer.copyFrom(part, []).name] += 1
            seen["copyTo " + buffer.copyTo(part).name] += 1
        stop.set()
        thread.join()
        burst.close()
        os.ftruncate(descriptor, SIZE)
        whole.map()[: 2 * NBYTES] = np.ones(2 * COUNT, np.float32).tobytes()
        assert prepared.executeSynchronously_1_3(request, 0, None, None)[0] == 0
        assert np.all(np.frombuffer(bytes(whole.map()[2 * NBYTES :]), np.float32) == 2)
    print("\n".join(f"{name} {count}" for name, count in sorted(seen.items())))  # noqa: T201


if __name__ == "__main__":
    main()
