"""The result of an execution, for both interfaces."""

from __future__ import annotations

from dataclasses import dataclass, field

from npusim.units import ceil_div

from ..errors import ErrorStatus
from ..types import NOT_MEASURED, OutputShape, Timing

PS_PER_US = 10**6
PS_PER_NS = 10**3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an execution.

    Times are in simulated picoseconds, None unless they were requested and the execution succeeded.
    """

    status: ErrorStatus
    outputShapes: list[OutputShape] = field(default_factory=list)
    device_ps: int | None = None
    driver_ps: int | None = None

    def timing(self) -> Timing:
        """The times in microseconds, rounded up, as in HIDL."""
        if self.device_ps is None or self.driver_ps is None:
            return Timing(NOT_MEASURED, NOT_MEASURED)
        return Timing(ceil_div(self.device_ps, PS_PER_US), ceil_div(self.driver_ps, PS_PER_US))

    def times_ns(self) -> tuple[int, int]:
        """(time on device, time in driver) in nanoseconds, as in AIDL; -1 if they were not measured."""
        if self.device_ps is None or self.driver_ps is None:
            return -1, -1
        return ceil_div(self.device_ps, PS_PER_NS), ceil_div(self.driver_ps, PS_PER_NS)
