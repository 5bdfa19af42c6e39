"""Drivers: software that uses a device only through its bus."""

from npusim.driver.jobs import DriverJob, HostCounters, LoadedProgram, Priority
from npusim.driver.reference import Driver

__all__ = ["Driver", "DriverJob", "HostCounters", "LoadedProgram", "Priority"]
