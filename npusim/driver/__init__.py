"""Drivers: software that knows a device by its bus alone."""

from npusim.driver.jobs import HostCounters, JobResult, LoadedProgram, Priority
from npusim.driver.reference import Driver

__all__ = ["Driver", "HostCounters", "JobResult", "LoadedProgram", "Priority"]
