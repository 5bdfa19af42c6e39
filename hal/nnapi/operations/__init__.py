"""The operations of the interface, one file per family; REGISTRY holds them by type."""

# ruff: noqa: F401 - each family registers its operations when it is imported

from . import (
    arithmetic,
    comparison,
    connected,
    control,
    conv,
    convert,
    detection,
    lookup,
    lstm,
    normalize,
    pool,
    quantized_16bit_lstm,
    quantized_lstm,
    random,
    reduce,
    resize,
    rnn,
    shape,
    space,
    svdf,
    unary,
)
from .definition import REGISTRY, Definition

__all__ = ["REGISTRY", "Definition"]
