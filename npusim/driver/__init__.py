"""Drivers: software that knows a device by its bus alone."""

from npusim.driver.jobs import DriverJob, HostCounters, LoadedProgram, Priority
from npusim.driver.reference import Driver

__all__ = ["Driver", "DriverJob", "HostCounters", "LoadedProgram", "Priority"]
