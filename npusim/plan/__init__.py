"""Plans: execution of a model as programs for sequences of steps, with decisions of the host between them.

A front end numbers the values of a model, lowers its steps and executes its decisions; the rest is here.
"""

from npusim.plan.backend import (
    Array,
    Backend,
    DeviceValue,
    Held,
    Items,
    PlanBuffer,
    Shape,
    Strings,
    Target,
    Value,
    bytes_of,
    on_host,
)
from npusim.plan.iterations import Iterations
from npusim.plan.node import PlanNode
from npusim.plan.plan import Compile, Drop, Record, SegmentPlan, shape_key
from npusim.plan.recent import Recent
from npusim.plan.segment import PlanSteps, Segment, SegmentBuilder, ValueNeededError
from npusim.plan.values import Situation, Values

__all__ = [
    "Array",
    "Backend",
    "Compile",
    "DeviceValue",
    "Drop",
    "Held",
    "Items",
    "Iterations",
    "PlanBuffer",
    "PlanNode",
    "PlanSteps",
    "Recent",
    "Record",
    "Segment",
    "SegmentBuilder",
    "SegmentPlan",
    "Shape",
    "Situation",
    "Strings",
    "Target",
    "Value",
    "ValueNeededError",
    "Values",
    "bytes_of",
    "on_host",
    "shape_key",
]
