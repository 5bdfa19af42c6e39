"""CAST, QUANTIZE, DEQUANTIZE: the same elements in another type."""

from __future__ import annotations

from npusim.dtypes import DType
from npusim.isa.functions import Unary

from ..types import OperandType, OperationType
from .definition import define
from .lowering import Lowering
from .rules import input_types, rank_at_most
from .signature import BOOL8, F16, F32, FLOATS, I32, Q8, Q8C, Q8S, Q8SYMM, Q16, Q16S, QUANT8, Row, forms, rows
from .versions import V1_3


def _cast(op: Lowering) -> None:
    """The stored value in another type, ignoring scale and zero point; 8 bits saturate."""
    source = op.tensor(0)
    if source.dtype is DType.INT32 and op.out_type() == OperandType.TENSOR_QUANT8_ASYMM:
        # The device wraps when it converts integers; this interface saturates.
        source = op.unary(Unary.CLIP, source, 0, 255)
    op.give(op.cast(source, op.out_dtype()))


def _convert(op: Lowering) -> None:
    """Conversion between real numbers and quantised integers."""
    op.give_real(op.numbers(0))


def _pairs(sources: tuple[int, ...], targets: tuple[int, ...]) -> list[Row]:
    return [{"S": source, "T": target} for source in sources for target in targets]


_CONVERTIBLE = (F32, F16, I32, Q8)
_CASTS = forms("S", "T", _pairs(_CONVERTIBLE, _CONVERTIBLE)) | forms(
    "T", "T", rows("T", (BOOL8, Q16, Q16S, Q8S, Q8SYMM))
)
define(OperationType.CAST, _CASTS, _cast, later=[input_types(0, V1_3, BOOL8, Q16, Q16S, Q8S, Q8SYMM)])
define(OperationType.QUANTIZE, forms("S", "T", _pairs(FLOATS, QUANT8)), _convert)
define(OperationType.DEQUANTIZE, forms("S", "T", _pairs((*QUANT8, Q8SYMM, Q8C), FLOATS)), _convert, rank_at_most(0, 4))
