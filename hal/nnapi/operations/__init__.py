"""The operations of the interface, one file a family; REGISTRY holds them by type."""

from . import (
    arithmetic,  # noqa: F401
    comparison,  # noqa: F401
    connected,  # noqa: F401
    control,  # noqa: F401
    conv,  # noqa: F401
    convert,  # noqa: F401
    detection,  # noqa: F401
    lookup,  # noqa: F401
    lstm,  # noqa: F401
    normalize,  # noqa: F401
    pool,  # noqa: F401
    quantized_16bit_lstm,  # noqa: F401
    quantized_lstm,  # noqa: F401
    random,  # noqa: F401
    reduce,  # noqa: F401
    resize,  # noqa: F401
    rnn,  # noqa: F401
    shape,  # noqa: F401
    space,  # noqa: F401
    svdf,  # noqa: F401
    unary,  # noqa: F401
)
from .definition import REGISTRY, Definition

__all__ = ["REGISTRY", "Definition"]
