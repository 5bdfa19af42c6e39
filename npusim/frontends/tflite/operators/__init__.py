"""Importers of TFLite operators; importing this package registers them."""

from npusim.frontends.tflite.operators import (  # noqa: F401
    elementwise,
    images,
    indexing,
    movement,
    products,
    recurrent,
    reductions,
)
