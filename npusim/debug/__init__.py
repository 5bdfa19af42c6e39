"""A debugger for the simulated device: a test controls the clock; breakpoints, watchpoints, views, and reverse
execution."""

from npusim.debug.bench import Bench, JobRequest, PendingRequest, read_trace
from npusim.debug.debugger import Debugger
from npusim.debug.stops import Breakpoint, Stop
from npusim.debug.view import look
from npusim.debug.viewtext import view_text

__all__ = ["Bench", "Breakpoint", "Debugger", "JobRequest", "PendingRequest", "Stop", "look", "read_trace", "view_text"]
