"""The speed of the matrix kernels: GFLOP/s of representative tiles, and of numpy's sgemm of the same size.

Run as ``python bench/kernels.py [--simd NAME]``, on one thread. The ratio to numpy in the same run is comparable
between machines.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim import _core
from npusim.dtypes import DType


class Tile(NamedTuple):
    """A convolution tile: output rows and columns, channels out and in, kernel, stride."""

    oh: int
    ow: int
    oc: int
    ic: int
    kernel: int
    stride: int

    @property
    def k(self) -> int:
        """Summands per output."""
        return self.ic * self.kernel**2

    @property
    def flops(self) -> int:
        """Floating-point operations of the tile."""
        return 2 * self.oh * self.ow * self.oc * self.k

    @property
    def label(self) -> str:
        """The tile as text."""
        return f"{self.oh}x{self.ow}x{self.oc} of {self.kernel}x{self.kernel}x{self.ic}/{self.stride}"


TILES = (
    Tile(16, 56, 64, 3, 7, 2),
    Tile(16, 56, 64, 64, 1, 1),
    Tile(16, 56, 64, 64, 3, 1),
    Tile(8, 56, 256, 64, 1, 1),
    Tile(28, 28, 128, 128, 3, 1),
    Tile(14, 14, 256, 256, 3, 1),
    Tile(14, 14, 64, 1024, 1, 1),
    Tile(7, 7, 256, 512, 3, 1),
    Tile(7, 7, 512, 512, 1, 1),
    Tile(4, 4, 32, 64, 1, 1),
    Tile(1, 128, 768, 768, 1, 1),
    Tile(1, 1, 1000, 2048, 1, 1),
)


KINDS = ((DType.FLOAT32, 0), (DType.INT8, 0), (DType.UINT8, 120))
"""Types, each with a zero point of the weights."""


def best_seconds(call: Callable[[], Any], budget: float = 0.15) -> float:
    """The shortest time of one call, among as many as fit the budget."""
    best, end = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The memory of an array as bytes."""
    return array.reshape(-1).view(np.uint8)


def conv_seconds(tile: Tile, dtype: DType, w_zero: int = 0) -> float:
    """Seconds of one call of the kernel on random data. ``w_zero``: zero point of the weights."""
    rng = np.random.default_rng(0)
    side = (tile.oh - 1) * tile.stride + tile.kernel, (tile.ow - 1) * tile.stride + tile.kernel
    low, high = (0, 200) if dtype is DType.UINT8 else (-100, 100)
    x = rng.integers(low, high, (1, *side, tile.ic)).astype(dtype.storage)
    w = rng.integers(low, high, (tile.k, tile.oc)).astype(dtype.storage)
    acc = np.zeros((1, tile.oh, tile.ow, tile.oc), np.float32 if dtype.is_float else np.int32)
    operands = _core.Strided(x, 0, x.strides[:3]), _core.Strided(w, 0, (0,)), _core.Strided(acc, 0, acc.strides[:3])
    window = (tile.kernel, tile.kernel, tile.stride, tile.stride, 1, 1)

    def call() -> None:
        _core.conv(dtype, dtype, *operands, (1, tile.oh, tile.ow, tile.oc, tile.ic), window, 32, 0, True, w_zero)

    return best_seconds(call)


def sgemm_seconds(tile: Tile) -> float:
    """Seconds of numpy's float32 product of the same size, with im2col done before."""
    rng = np.random.default_rng(0)
    a = rng.random((tile.oh * tile.ow, tile.k), np.float32)
    b = rng.random((tile.k, tile.oc), np.float32)
    out = np.empty((len(a), tile.oc), np.float32)
    return best_seconds(lambda: np.matmul(a, b, out=out))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simd", default="auto", help="portable, avx2, avx512, avx512vnni or auto")
    _core.set_simd(parser.parse_args().simd)
    print(f"instruction set {_core.simd()}; GFLOP/s, and the ratio to numpy's sgemm")
    print(f"{'tile':28} {'sgemm':>7} {'float32':>14} {'int8':>14} {'uint8 - 120':>14}")
    for tile in TILES:
        reference = tile.flops / sgemm_seconds(tile) / 1e9
        rates = [tile.flops / conv_seconds(tile, *kind) / 1e9 for kind in KINDS]
        columns = " ".join(f"{rate:7.1f} {rate / reference:5.2f}x" for rate in rates)
        print(f"{tile.label:28} {reference:7.1f} {columns}")


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # numpy reads these variables on import, so start again with them set.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    main()
