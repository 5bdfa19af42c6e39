"""The runtime API of a device: requests in, results out.

:class:`Session` compiles and runs for one caller. :class:`Executor` serves clients with many threads. Both pass
:class:`Request` s to a dispatcher, which owns driver and device, and both return a :class:`Result`.
"""

from npusim.driver import HostCounters, Priority
from npusim.runtime.executor import Executor
from npusim.runtime.job import Job
from npusim.runtime.request import DeviceBuffer, Request
from npusim.runtime.result import Result
from npusim.runtime.session import Session
from npusim.runtime.state import State
from npusim.runtime.store import ProgramStore

__all__ = [
    "DeviceBuffer",
    "Executor",
    "HostCounters",
    "Job",
    "Priority",
    "ProgramStore",
    "Request",
    "Result",
    "Session",
    "State",
]
