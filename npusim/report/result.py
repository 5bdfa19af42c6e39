"""What a report needs of a run; ``npusim.runtime.Result`` has it, and this package does not import the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from npusim.occupancy import Occupancy
from npusim.summary import OpReport
from npusim.timeline import Counters, Timeline


class Result(Protocol):
    """One run; empty ``outputs`` after a run without arithmetic."""

    @property
    def model(self) -> str: ...
    @property
    def config(self) -> str: ...
    @property
    def outputs(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def cycles(self) -> int: ...
    @property
    def time_ps(self) -> int: ...
    @property
    def timeline(self) -> Timeline: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def ops(self) -> Sequence[OpReport]: ...
    @property
    def memory(self) -> Sequence[Occupancy]: ...
    @property
    def macs(self) -> int: ...
    @property
    def matrix_utilization(self) -> float: ...
    @property
    def compile_from_cache(self) -> bool: ...
