"""Importers by family. Importing this package registers all of them."""

from npusim.frontends.onnx.operators import (
    blocks,
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
    "blocks",
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
