"""Operators by family: the shape rule, constraints and reference of each kind of :mod:`npusim.graph`."""

from npusim.ops import elementwise, matrix, movement, pool, quant, reduce, routine, rows
from npusim.ops.base import REGISTRY, REQUIRED, Kind

__all__ = [
    "REGISTRY",
    "REQUIRED",
    "Kind",
    "elementwise",
    "matrix",
    "movement",
    "pool",
    "quant",
    "reduce",
    "routine",
    "rows",
]
