"""Drivers: software that knows a device by its bus alone."""

from npusim.driver.jobs import HostCounters, Job, LoadedProgram, Priority
from npusim.driver.reference import Driver

__all__ = ["Driver", "HostCounters", "Job", "LoadedProgram", "Priority"]
