"""A process whose memory pools are constantly truncated and restored by another thread.

``python -m tests.support.nnapi.cut_files`` prints how often each use of the pools ended with which status. An access to
missing pages would kill the process.
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
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    MemoryPool,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Request,
    RequestArgument,
    Subgraph,
)
from tests.support.nnapi.client import Burst, ExecutionCallback, prepare, prepared_model
from tests.support.nnapi.models import IN, OUT, add, scalar, tensor

COUNT = 1 << 18
NBYTES = 4 * COUNT
SIZE = 3 * NBYTES
SECONDS = 0.5
UNITS, INPUTS = 64, 4096


def weights_in(pool: memory.Memory, kind: OperandType, bias: OperandType) -> Model:
    """Build a matrix product with weights in a pool; scales are 1 for types with scales."""
    scale = float(kind == OperandType.TENSOR_QUANT8_ASYMM)
    size = INPUTS * UNITS * (1 if scale else 4)
    reference, copied = OperandLifeTime.CONSTANT_REFERENCE, OperandLifeTime.CONSTANT_COPY
    operands = [
        tensor(IN, (1, INPUTS), 1, kind),
        Operand(kind, (UNITS, INPUTS), 1, lifetime=reference, location=DataLocation(0, 0, size)),
        Operand(bias, (UNITS,), 1, lifetime=copied, location=DataLocation(0, 8, UNITS * 4)),
        scalar(0),
        tensor(OUT, (1, UNITS), 0, kind),
    ]
    for operand in (*operands[:3], operands[4]):
        operand.scale = scale
    main = Subgraph(operands, [Operation(OperationType.FULLY_CONNECTED, (0, 1, 2, 3), (4,))], (0,), (4,))
    if scale:
        operands[4].scale = 2.0
    return Model(main, operandValues=bytes(8 + UNITS * 4), pools=[pool])


def private_request(size: int) -> Request:
    """Return a request for such a model, in memory that is not truncated."""
    pool = memory.allocate_ashmem((INPUTS + UNITS) * size)
    places = DataLocation(0, 0, INPUTS * size), DataLocation(0, INPUTS * size, UNITS * size)
    given, result = (RequestArgument(False, place) for place in places)
    return Request([given], [result], [MemoryPool(pool)])


def cut(descriptor: int, stop: threading.Event) -> None:
    """Repeatedly truncate the file, in part or completely, and restore its size."""
    chance = random.Random(1)
    while not stop.is_set():
        os.ftruncate(descriptor, chance.choice([0, NBYTES, 2 * NBYTES + 4096]))
        time.sleep(chance.random() * 0.001)
        os.ftruncate(descriptor, SIZE)
        time.sleep(chance.random() * 0.01)


def main() -> None:
    """Use the pool in every way while it is truncated."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryFile() as file:
        use(file.fileno())


def use(descriptor: int) -> None:
    """Prepare, execute and copy, in all ways."""
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
        floats = weights_in(whole, OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT32)
        bytes_ = weights_in(whole, OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_INT32)
        models = [(floats, private_request(4)), (bytes_, private_request(1))]
        thread = threading.Thread(target=cut, args=(descriptor, stop), daemon=True)
        thread.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for model, weighted in models:
                seen["explain " + device.getSupportedOperations_1_3(model)[0].name] += 1
                _, status, made = prepare(device, model)
                seen["prepare " + status.name] += 1
                if made is not None:
                    seen["weights " + made.executeSynchronously_1_3(weighted, 0, None, None)[0].name] += 1
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
        for model, weighted in models:
            assert prepared_model(device, model).executeSynchronously_1_3(weighted, 0, None, None)[0] == 0
        whole.map()[: 2 * NBYTES] = np.ones(2 * COUNT, np.float32).tobytes()
        assert prepared.executeSynchronously_1_3(request, 0, None, None)[0] == 0
        assert np.all(np.frombuffer(bytes(whole.map()[2 * NBYTES :]), np.float32) == 2)
    print("\n".join(f"{name} {count}" for name, count in sorted(seen.items())))  # noqa: T201


if __name__ == "__main__":
    main()
