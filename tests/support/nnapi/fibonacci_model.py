"""Models with the only operation of ``com.example.fibonacci``."""

from __future__ import annotations

from collections.abc import Sequence

from hal.nnapi.extensions import fibonacci
from hal.nnapi.extensions.fibonacci import EXAMPLE_INT64, EXAMPLE_TENSOR_QUANT64_ASYMM, FibonacciQuant64Params
from hal.nnapi.types import (
    ExtensionNameAndPrefix,
    ExtraParams,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    Subgraph,
)

PREFIX = 7
INT64, QUANT64 = PREFIX << 16 | EXAMPLE_INT64, PREFIX << 16 | EXAMPLE_TENSOR_QUANT64_ASYMM
F32 = OperandType.TENSOR_FLOAT32
HALVES = FibonacciQuant64Params(0.5, 10)


def fibonacci_model(
    source: int,
    target: int,
    dims: Sequence[int] = (),
    out_dims: Sequence[int] = (0,),
    params: FibonacciQuant64Params = HALVES,
    inputs: Sequence[int] = (0,),
) -> Model:
    """Build the first Fibonacci numbers; their count is an operand of type ``source`` and dimensions ``dims``."""
    extra = ExtraParams(extension=params.pack()) if target == QUANT64 else None
    operands = [
        Operand(source, dims, len(inputs), lifetime=OperandLifeTime.SUBGRAPH_INPUT),
        Operand(target, out_dims, 0, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT, extraParams=extra),
    ]
    main = Subgraph(operands, [Operation(PREFIX << 16, inputs, (1,))], [0], [1])
    return Model(main, extensionNameToPrefix=[ExtensionNameAndPrefix(fibonacci.NAME, PREFIX)])
