"""Bus traces: all accesses between software and a device, with times, in a file that can be replayed."""

from npusim.device.traces.format import RecordKind, Trace, TraceRecord, read_trace
from npusim.device.traces.record import TracedBus
from npusim.device.traces.replay import TraceDifference, replay

__all__ = ["RecordKind", "Trace", "TraceDifference", "TraceRecord", "TracedBus", "read_trace", "replay"]
