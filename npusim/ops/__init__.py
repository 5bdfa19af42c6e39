"""Operators by family: for each kind of :mod:`npusim.graph` its shape rule, its constraints and its reference."""

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
