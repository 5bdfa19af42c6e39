"""What every driver promises, as a suite for any driver: in Python, or a program in whatever language.

``docs/reference/driver-test.md`` says how a driver is spoken to. ``suite.run`` plays the device, in faults, too, with
the driver sanitizer watching.
"""

from npusim.promises.suite import Outcome, Report, run

__all__ = ["Outcome", "Report", "run"]
