"""A device for programs with many threads: job queues with priorities, deadlines, buffers in device memory."""

from npusim.driver import HostCounters, Priority
from npusim.executor.executor import Executor
from npusim.executor.requests import DeviceBuffer, JobDone, JobRequest, Ticket
from npusim.executor.rounds import Past

__all__ = ["DeviceBuffer", "Executor", "HostCounters", "JobDone", "JobRequest", "Past", "Priority", "Ticket"]
