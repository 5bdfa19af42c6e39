"""Bus traces: all that passes between software and a device, with times, in a file that can be played again."""

from npusim.device.traces.format import Access, Kind, Trace, read_trace
from npusim.device.traces.record import TracedBus
from npusim.device.traces.replay import Difference, replay

__all__ = ["Access", "Difference", "Kind", "Trace", "TracedBus", "read_trace", "replay"]
