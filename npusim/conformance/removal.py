"""The case in which the device is removed after an access of a job, and may come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from npusim.conformance.cases import CaseContext, ViolationError
from npusim.conformance.subject import DriverRefusedError
from npusim.device.npu import NpuDevice
from npusim.sim.watch import Watcher

WAIT_PS = 10**12
"""Time limit of a job, more than a hundred times its duration."""


class Unplugs(Watcher):
    """Counts accesses of software, and unplugs the device after one of them (0: never). ``back``: and plugs it in
    again."""

    steps: ClassVar[bool] = False

    def __init__(self, device: NpuDevice, after: int = 0, *, back: bool = False) -> None:
        self._device, self._after, self._back = device, after, back
        self.count = 0
        device.watch(self)

    def _accessed(self) -> None:
        self.count += 1
        if self.count == self._after:
            self._device.unplug()
            if self._back:
                self._device.plug()

    def register_read(self, register: str, value: int) -> None:
        """Count a register read."""
        self._accessed()

    def register_written(self, register: str, value: int) -> None:
        """Count a register write."""
        self._accessed()

    def memory_read(self, address: int, size: int) -> None:
        """Count a read of device memory."""
        self._accessed()

    def memory_written(self, address: int, size: int) -> None:
        """Count a write of device memory."""
        self._accessed()


def accesses(trial: CaseContext) -> int:
    """The number of accesses that a driver makes for a job without a removal."""
    loaded = trial.subject.load(trial.programs.twice())
    counter = Unplugs(trial.device)
    _run(trial, loaded)
    if not counter.count:
        raise ViolationError("the outputs are correct, but the driver has not accessed the device")
    return counter.count


def moments(count: int, most: int) -> Iterator[tuple[int, bool]]:
    """Pairs of the access after which the device is removed, and whether it comes back; the last accesses first."""
    last = range(count, max(count - most // 2, 0), -1)
    others = np.linspace(1, count, most - len(last)).astype(int).tolist()
    for after in sorted({*last, *others}, reverse=True):
        yield from ((after, False), (after, True))


def removed(trial: CaseContext, *, after: int, back: bool) -> None:
    """Raise ViolationError unless the outputs are correct or the job is refused."""
    loaded = trial.subject.load(trial.programs.twice())
    Unplugs(trial.device, after, back=back)
    try:
        _run(trial, loaded)
    except DriverRefusedError as error:
        if error.code == "UNSUPPORTED" or (error.code != "GONE" and not back):
            raise ViolationError(f"must be refused with GONE, got {error}") from None


def _run(trial: CaseContext, loaded: object) -> None:
    inputs = {"x0": trial.values(3)}
    try:
        found = trial.subject.wait(trial.subject.submit(loaded, inputs), WAIT_PS)
    except DriverRefusedError as error:
        if error.code != "UNSUPPORTED":
            raise
        found = trial.subject.run(loaded, inputs)
    for name in ("y0", "y1"):
        trial.same(found, trial.values(3), name=name)
