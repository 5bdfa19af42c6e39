"""The instruction set: one file per group of instructions; ``base`` defines their common parts."""

from npusim.isa import control, dma, matrix, quantised, reduction, repeat, routine, row_parts, scalar, vector
from npusim.isa.base import INSTRUCTIONS, Command, Instruction, Unit, Wait, decode, encode

__all__ = [
    "INSTRUCTIONS",
    "Command",
    "Instruction",
    "Unit",
    "Wait",
    "control",
    "decode",
    "dma",
    "encode",
    "matrix",
    "quantised",
    "reduction",
    "repeat",
    "routine",
    "row_parts",
    "scalar",
    "vector",
]
