"""Coverage of the hardware by a test suite: instructions, stalls, faults, jobs, registers."""

from npusim.testing.coverage.collect import Collector
from npusim.testing.coverage.measure import Measured
from npusim.testing.coverage.universe import CoveragePoint, universe

__all__ = ["Collector", "CoveragePoint", "Measured", "universe"]
