"""Plans of NNAPI models, see :mod:`npusim.plan`: lowering of operations, IF and WHILE, and which are supported."""

from npusim.plan import DeviceValue, PlanBuffer, Record, Target, Value, on_host

from .control import LoopTimeoutError
from .plan import Plan
from .segment import Vocabulary
from .support import Support

__all__ = [
    "DeviceValue",
    "LoopTimeoutError",
    "Plan",
    "PlanBuffer",
    "Record",
    "Support",
    "Target",
    "Value",
    "Vocabulary",
    "on_host",
]
