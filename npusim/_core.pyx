"""The one door to the compiled kernels.

A memory operand is a buffer of bytes, a byte offset, and strides in bytes (0 broadcasts, negative runs backwards). Every
kernel checks that its operands lie inside their memory and raises IndexError where one does not; ValueError names an
element type that it does not support. Results are the same bits on every machine and with every instruction set.
"""

from npusim._drain import depthwise, finish
from npusim._lanes import binary, cast, dequantize, qbinary, quantize, unary
from npusim._matrix import conv
from npusim._move import copy, fill, select
from npusim._simd import set_simd, simd

__all__ = [
    "binary",
    "cast",
    "conv",
    "copy",
    "depthwise",
    "dequantize",
    "fill",
    "finish",
    "qbinary",
    "quantize",
    "select",
    "set_simd",
    "simd",
    "unary",
]
