"""From a group to the tiles that compute it, one class for each family; importing this knows them all."""

from npusim.compiler.lower import conv, element, flow, matmul, movement, pad, reduce, routine, rows
from npusim.compiler.lower.base import TILES

__all__ = ["TILES", "conv", "element", "flow", "matmul", "movement", "pad", "reduce", "routine", "rows"]
