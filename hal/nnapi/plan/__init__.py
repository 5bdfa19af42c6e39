"""Plans: execution of a model as programs for sequences of operations, with decisions of the host between them."""

from .backend import Backend, Buffer, Held, Target, Value, on_host
from .control import LoopTimeoutError
from .plan import Plan, Record
from .segment import Segment, Vocabulary
from .support import Support

__all__ = [
    "Backend",
    "Buffer",
    "Held",
    "LoopTimeoutError",
    "Plan",
    "Record",
    "Segment",
    "Support",
    "Target",
    "Value",
    "Vocabulary",
    "on_host",
]
