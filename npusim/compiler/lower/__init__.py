"""Lower a group to the tiles that compute it; one class per family. Importing this module registers all of them."""

from npusim.compiler.lower import conv, element, matmul, movement, pad, reduce, routine, rows, scalar
from npusim.compiler.lower.base import TILES

__all__ = ["TILES", "conv", "element", "matmul", "movement", "pad", "reduce", "routine", "rows", "scalar"]
