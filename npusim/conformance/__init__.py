"""The conformance suite for drivers in Python, or in any language as a program.

``docs/reference/driver-test.md`` describes the protocol. ``suite.run`` provides the devices, with injected faults and
the driver sanitizer.
"""

from npusim.conformance.suite import CaseOutcome, Report, run

__all__ = ["CaseOutcome", "Report", "run"]
