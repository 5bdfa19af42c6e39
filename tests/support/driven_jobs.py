"""Jobs through the reference driver, for tests that observe the bus or device meanwhile."""

from __future__ import annotations

import numpy as np

from npusim.driver.reference import Driver
from tests.support.programs.streams import round_trip

JOB = round_trip(64)


def drive(driver: Driver, runs: int = 2) -> bytes:
    """Run some jobs and return their outputs as bytes."""
    loaded = driver.load(JOB)
    found = [driver.run(loaded, {"x0": np.arange(64, dtype=np.uint8) + number}) for number in range(runs)]
    return b"".join(array.tobytes() for job in found for array in job.outputs.values())
