"""The cost of a debugger: a device without one, one with its breakpoints removed, and one with each kind of breakpoint.

Run as ``python -m bench.debugger``: CPU time of this process for one job of the demo network, with and without
arithmetic, the best of many, alternating between devices. Without breakpoints it must equal that of a device without a
debugger within 1 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from npusim.debug import Debugger
from npusim.demo import network
from npusim.device.checkpoint import Checkpoint
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import load_config
from npusim.runtime import Session

TURNS, JOBS = 60, 100
ALLOWED = 1.01


def _seconds(work: Callable[[], object], count: int) -> float:
    begin = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - begin) / count


def _device(arm: Callable[[Debugger], object] | None) -> tuple[NpuDevice, Callable[[], object]]:
    """A device, and a function that runs a timing-only job, which only measures the work of the device."""
    config = load_config("tiny")
    program = Session(config, cache_dir=False).compile(network())
    device = NpuDevice(config)
    if arm is not None:
        arm(Debugger(device, program, history=False))
    driver = Driver(device.bus)
    loaded = driver.load(program)
    return device, lambda: driver.run(loaded, timing_only=True)


def _took_off(debugger: Debugger) -> None:
    debugger.break_layer("head")
    debugger.watch("sram", 0, 64)
    debugger.delete()


def main() -> None:
    """Print a row per case. Fail if a device without breakpoints is slower."""
    ways: dict[str, Callable[[Debugger], object] | None] = {
        "no debugger": None,
        "nothing armed": _took_off,
        "a register": lambda debugger: debugger.break_register("FENCE_LO"),
        "a layer": lambda debugger: debugger.break_layer("head"),
        "64 bytes of SRAM": lambda debugger: debugger.watch("sram", 0, 64),
    }
    runs = {name: _device(arm)[1] for name, arm in ways.items()}
    best = dict.fromkeys(runs, float("inf"))
    cheap = list(runs)[:3]  # measured apart from the others, which would leave a cold cache
    for turn in range(TURNS):
        for name in cheap[:: 1 if turn % 2 else -1]:
            best[name] = min(best[name], _seconds(runs[name], JOBS))
    for name in list(runs)[3:]:
        best[name] = min(_seconds(runs[name], 5) for _ in range(5))
    plain = best["no debugger"]
    for name, seconds in best.items():
        print(f"{name:18} {seconds * 1e6:8.1f} us a job, {seconds / plain:6.3f} times")
    _checkpoints()
    if best["nothing armed"] > ALLOWED * plain:
        raise SystemExit(f"a job without breakpoints takes {best['nothing armed'] / plain:.3f} times as long")


def _checkpoints() -> None:
    config = load_config("tiny")
    program = Session(config, cache_dir=False).compile(network())
    device = NpuDevice(config)
    driver = Driver(device.bus)
    inputs = {"image": np.zeros((1, 3, 32, 32), np.float32)}
    driver.submit(driver.load(program), inputs)
    device.run_until(device.now_ps + 30_000_000)
    checkpoint = device.checkpoint()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        ways: dict[str, Callable[[], object]] = {
            "checkpoint": device.checkpoint,
            "restore": lambda: device.restore(checkpoint),
            "write": lambda: checkpoint.write(file),
            "read": lambda: Checkpoint.read(file),
        }
        for name, work in ways.items():
            print(f"{name:18} {min(_seconds(work, 3) for _ in range(5)) * 1e3:8.2f} ms")
        print(f"{file.stat().st_size} bytes, of {checkpoint.pages.size} of memory that were written")


if __name__ == "__main__":
    main()
