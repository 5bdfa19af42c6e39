"""Importers by family; importing this package registers them all."""

from npusim.frontends.onnx.operators import (
    constants,
    einsum,
    elementwise,
    indexing,
    matrix,
    microsoft,
    normalise,
    pooling,
    quantised,
    recurrent,
    reductions,
    resizing,
    sampling,
    shapes,
    spectral,
)

__all__ = [
    "constants",
    "einsum",
    "elementwise",
    "indexing",
    "matrix",
    "microsoft",
    "normalise",
    "pooling",
    "quantised",
    "recurrent",
    "reductions",
    "resizing",
    "sampling",
    "shapes",
    "spectral",
]
