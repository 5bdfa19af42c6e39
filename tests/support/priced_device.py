"""A device with all prices set explicitly, and two small graphs for it: a vector sum and a product."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.functions import Binary
from npusim.ops.build import GraphBuilder

ELEMENTS = 28 * 28 * 32
PRICES: dict[str, Any] = {
    "mac": dict.fromkeys(("int8", "int16", "int32", "float16", "bfloat16", "float32"), "300 fJ"),
    "operand_byte": "7 fJ", "accumulator_byte": "11 fJ", "vector": "4600 fJ", "scalar": "900 fJ", "sram_byte": "12 pJ",
    "dma_byte": "13 fJ", "dram_byte": "160 pJ", "constants_byte": "17 fJ", "clock_cycle": "19 pJ", "leakage": "3 mW",
}  # fmt: skip


def product() -> Graph:
    builder = GraphBuilder("product")
    x, s = builder.input("x", (1, 28, 28, 32), DType.INT32), builder.input("s", (1,), DType.INT32)
    return builder.finish([builder.add("binary", [x, s], {"fn": Binary.MUL})])


def matrix(rows: int = 4) -> Graph:
    builder = GraphBuilder("matrix")
    x, w = builder.input("x", (rows, 64), DType.UINT8), builder.const(np.zeros((64, 32), np.int8))
    return builder.finish([builder.add("matmul", [x, w], {"x_zero": 3})])


def priced(name: str = "edge", **changes: Any) -> Config:
    """Return a device with all prices set explicitly."""
    return load_config(name).with_(technology=None, energy={**PRICES, **changes})
