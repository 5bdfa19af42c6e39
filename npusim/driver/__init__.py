"""Drivers: software that knows a device by its bus alone."""

from npusim.driver.reference import Driver, JobResult, LoadedProgram

__all__ = ["Driver", "JobResult", "LoadedProgram"]
