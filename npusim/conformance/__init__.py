"""What every driver promises, as a suite for any driver: in Python, or a program in whatever language.

``docs/reference/driver-test.md`` says how a driver is spoken to. ``suite.run`` plays the device, in faults, too, with
the driver sanitizer watching.
"""

from npusim.conformance.suite import CaseOutcome, Report, run

__all__ = ["CaseOutcome", "Report", "run"]
