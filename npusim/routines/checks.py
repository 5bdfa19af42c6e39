"""Checks of operands that the shipped routines share."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError
from npusim.routines.base import Spec

F32, I32 = DType.FLOAT32, DType.INT32


def want(holds: bool, message: str) -> None:
    """Raise ModelError with the message unless the condition holds."""
    if not holds:
        raise ModelError(message)


def check_operands(inputs: Sequence[Spec], *operands: tuple[str, int, DType]) -> None:
    """Raise ModelError unless exactly these operands are given: name, rank and type of each."""
    want(len(inputs) == len(operands), f"takes {len(operands)} inputs, got {len(inputs)}")
    for spec, (name, rank, dtype) in zip(inputs, operands, strict=True):
        want(
            len(spec.shape) == rank and spec.dtype is dtype,
            f"{name} must be {dtype.label} of rank {rank}, got {spec.dtype.label}{list(spec.shape)}",
        )


def check_rows(bad: int, what: str) -> None:
    """Raise InputError that names the malformed row that a kernel found; -1: none."""
    if bad >= 0:
        raise InputError(f"{what} {bad} is malformed: no such batch, of negative size, or outside of its image")


def traffic(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
    """Bytes of all operands."""
    return sum(spec.nbytes for spec in (*inputs, *outputs))
