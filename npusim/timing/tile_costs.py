"""Prices of the parts of tiles, cached across designs by the config fields that they can depend on.

Compared designs differ in few values. The cost of a product on the array does not depend on the DRAM, and no price of a
tile depends on the size of the SRAM. So each price is computed for a reduced device without the other fields, which
then cannot affect it. ``tests/unit/timing/test_prices.py`` records what the cost models read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model, side
from npusim.hw.sections import CompilerConfig, DmaConfig, DramConfig, HostConfig, InterconnectConfig
from npusim.hw.units.dma import exchange_bandwidth, memory_bandwidth
from npusim.isa.dma import expanding
from npusim.timing import _tiling
from npusim.timing._prices import Prices
from npusim.units import ceil_div
from npusim.work import DmaWork, MatrixWork, Port

_SIZED_BY_SRAM = frozenset({"direct"})
"""Models of the matrix unit whose time depends on the size of the SRAM."""
_SOME_BYTES = 1 << 30
_SOME_DRAM = DramConfig(bytes=_SOME_BYTES, bandwidth=10**9)


@functools.lru_cache(maxsize=256)
def _one(config: Config) -> Config:
    """The first of several equal descriptions, so that caches can compare by identity."""
    return config


@functools.lru_cache(maxsize=64)
def pricing(config: Config) -> Config:
    """The device reduced to what prices of tiles depend on. Equal for devices with equal prices."""
    sized = config.matrix is not None and config.matrix.model in _SIZED_BY_SRAM
    sram = replace(
        config.sram,
        bytes=config.sram.bytes if sized else _SOME_BYTES,
    )
    # Of the compiler, only the loads of the next tile are part of the price of a tile.
    compiler = CompilerConfig(inputs_ahead=config.compiler.inputs_ahead)
    return _one(replace(
        config, description="", queue_depth=1, vector=None, scalar=None, sram=sram,
        compiler=compiler,
        # The number of channels determines whether loads and stores alternate.
        dma=replace(config.dma, channels=min(config.dma.channels, 2)), dram=replace(config.dram, bytes=_SOME_BYTES),
        host=HostConfig(), energy=None,
    ))  # fmt: skip


def cores_served(config: Config, cores: int, port: Port) -> int:
    """How many of ``cores`` that need the same bytes of a memory one read effectively serves; see ``_tiling``."""
    bandwidth = memory_bandwidth(side(config, port))
    return _tiling.cores_served(cores, bandwidth, config.interconnect.multicast, exchange_bandwidth(config))


def rewriting(config: Config) -> Hashable:
    """The part of a device that the rewriting of a graph depends on: the matrix unit's types and weight formats, which
    units exist, the prices of functions, and the limits of a compilation."""
    matrix = config.matrix
    arrays = matrix and (matrix.throughput, matrix.weight_bits, matrix.weight_scales)
    functions = config.vector and config.vector.cost
    return config.name, config.units, arrays, functions, config.host.compile_bytes, config.dram.bytes


@functools.lru_cache(maxsize=64)
def array_pricing(config: Config) -> Config:
    """The device reduced to what its matrix unit depends on."""
    return _one(replace(
        pricing(config), cores=1, dma=DmaConfig(), dram=_SOME_DRAM, constants=None, interconnect=InterconnectConfig()
    ))  # fmt: skip


@functools.lru_cache(maxsize=64)
def move_pricing(config: Config) -> Config:
    """The device reduced to what its DMA channels depend on, for transfers that are not features of a job."""
    return _one(replace(pricing(config), matrix=None))


@functools.lru_cache(maxsize=64)
def vector_pricing(config: Config) -> Config:
    """The device reduced to what its vector unit depends on."""
    return _one(replace(array_pricing(config), matrix=None, vector=config.vector))


class MatrixPrices(dict[tuple[int, int, int, int, int], int]):
    """Picoseconds of products of one kind, by (batch, rows, columns, output channels, input channels)."""

    def __init__(
        self,
        config: Config,
        dtype: DType,
        kh: int,
        kw: int,
        depthwise: bool,
        out_bytes: int,
        acc_bytes: int,
        w_bits: int,
    ) -> None:
        super().__init__()
        self.quick = Prices(self)
        self._price = self._pricing(config)
        self._kind = dtype, kh, kw, depthwise, out_bytes, acc_bytes, w_bits

    def _pricing(self, config: Config) -> Callable[[MatrixWork], int]:
        return cost_model(config).product_ps

    def __missing__(self, key: tuple[int, int, int, int, int]) -> int:
        dtype, kh, kw, depthwise, *sizes = self._kind
        if len(self) >= _MOST:
            self.clear()
        ps = self[key] = self._price(MatrixWork(dtype, *key, kh, kw, depthwise, True, True, *sizes))
        return ps


class BankPrices(MatrixPrices):
    """Picoseconds of all SRAM banks for these products."""

    def _pricing(self, config: Config) -> Callable[[MatrixWork], int]:
        once = cost_model(config).once
        return lambda work: once(work).sram_ps


@functools.lru_cache(maxsize=256)
def _matrix_prices(kind: type[MatrixPrices], config: Config, *product: Any) -> MatrixPrices:
    return kind(config, *product)


def matrix_prices(
    config: Config, dtype: DType, kh: int, kw: int, depthwise: bool, out_bytes: int, acc_bytes: int, w_bits: int
) -> MatrixPrices:
    """The prices of products of one kind on a device, which start and finish their sums."""
    product = dtype, kh, kw, depthwise, out_bytes, acc_bytes, w_bits
    return _matrix_prices(MatrixPrices, array_pricing(config), *product)


def bank_prices(
    config: Config, dtype: DType, kh: int, kw: int, depthwise: bool, out_bytes: int, acc_bytes: int, w_bits: int
) -> MatrixPrices:
    """The SRAM bank time of the same products."""
    product = dtype, kh, kw, depthwise, out_bytes, acc_bytes, w_bits
    return _matrix_prices(BankPrices, array_pricing(config), *product)


class MovePrices(dict[tuple[int, int, int, str], tuple[int, int, int]]):
    """(picoseconds, picoseconds per transfer in a stream, bytes at the DRAM pins) of transfers.

    Keys are (bytes, bytes per run, bytes from one run to the next or 0 if unknown, way). Ways: "read" and "write" from
    and to DRAM; "constants" from their memory; "copy" within SRAM. "expand8": constants of the run's bytes that expand
    to weights of 8 bits, if that pays. "read4", "write4", "copy4": elements of 4 bytes that are separate runs in SRAM.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.quick = Prices(self)
        self._ps, self._dram_bytes = cost_model(config).transfer_ps, dram_model(config).transfer_bytes

    def __missing__(self, key: tuple[int, int, int, str]) -> tuple[int, int, int]:
        nbytes, run, stride, way = key
        if way.startswith(EXPAND):
            return self._expanded(nbytes, run, int(way.removeprefix(EXPAND)))
        plain = way.rstrip("0123456789")
        word = int(way[len(plain) :] or 0)
        reads, writes = (nbytes if plain in ("read", "constants") else 0), (nbytes if plain == "write" else 0)
        run = word if word and plain == "copy" else run
        pieces, word = (nbytes // word, word) if word and plain != "copy" else (1, 0)
        work = DmaWork(
            nbytes, ceil_div(nbytes, run), run, reads, writes, stride, constants=way == "constants", pieces=pieces,
            piece_bytes=word,
        )  # fmt: skip
        if len(self) >= _MOST:
            self.clear()
        price = self[key] = *self._ps(work), self._dram_bytes(work)
        return price

    def _expanded(self, nbytes: int, size: int, bits: int) -> tuple[int, int, int]:
        """The price of the cheaper load: the stream, or the uncompressed weights."""
        if len(self) >= _MOST:
            self.clear()
        plain, work = self[nbytes, nbytes, 0, "constants"], expanding(nbytes, size, bits)
        price = *self._ps(work), self._dram_bytes(work)
        # Time matters more than bytes: a slow decoder is not used.
        price = self[nbytes, size, 0, f"{EXPAND}{bits}"] = (
            price if price[0] <= plain[0] and price[2] < plain[2] else plain
        )
        return price

    def pays(self, nbytes: int, size: int, bits: int) -> bool:
        """Whether weights are loaded as a stream of ``size`` bytes."""
        return self[nbytes, size, 0, f"{EXPAND}{bits}"][2] < self[nbytes, nbytes, 0, "constants"][2]


EXPAND = "expand"
"""The prefix of the way in which streams of weights are loaded; the bits of the weights follow."""


@functools.lru_cache(maxsize=64)
def _move_prices(config: Config) -> MovePrices:
    return MovePrices(config)


def move_prices(config: Config) -> MovePrices:
    """The prices of transfers on a device, each without contention."""
    return _move_prices(move_pricing(config))


_MOST = 1 << 16
"""Maximum number of prices in one cache. Beyond it the cache is cleared."""
