"""Prices of the pieces of tiles, remembered across designs: of a device only that counts which a price can depend on.

Designs that are compared differ in few values. What a product costs on the array does not depend on the DRAM, and no
price of a tile on how much SRAM there is. So each price is asked of a device from which the rest has been taken away:
what is not there can have no part in it. ``tests/unit/timing/test_prices.py`` reads along what the cost models read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.hw.sections import DmaConfig, DramConfig, HostConfig, InterconnectConfig
from npusim.isa.dma import expanding
from npusim.timing._tiling import Prices
from npusim.units import ceil_div
from npusim.work import DmaWork, MatrixWork

_SIZED_BY_SRAM = frozenset({"direct"})
"""Models of the matrix unit whose time depends on how much SRAM there is."""
_SOME_BYTES = 1 << 30
_SOME_DRAM = DramConfig(bytes=_SOME_BYTES, bandwidth=10**9)


@functools.lru_cache(maxsize=256)
def _one(config: Config) -> Config:
    """The first of some equal descriptions: by that caches find what is known of all of them at once."""
    return config


@functools.lru_cache(maxsize=64)
def pricing(config: Config) -> Config:
    """The device as prices of tiles see it; the same for devices on which all of them are equal."""
    sized = config.matrix is not None and config.matrix.model in _SIZED_BY_SRAM
    sram = replace(
        config.sram,
        bytes=config.sram.bytes if sized else _SOME_BYTES,
        keeps_values=True,
        resident_weights=False,
        resident_bytes=0,
    )
    return _one(replace(
        config, description="", queue_depth=1, layer_cycles=0, layer_bytes=0, vector=None, scalar=None, sram=sram,
        # Whether loads and stores take turns is what the number of channels says.
        dma=replace(config.dma, channels=min(config.dma.channels, 2)), dram=replace(config.dram, bytes=_SOME_BYTES),
        host=HostConfig(), energy=None,
    ))  # fmt: skip


def rewriting(config: Config) -> Hashable:
    """What of a device the rewriting of a graph depends on: the unit's types and its ways to hold weights, which units
    there are, the prices of functions, and what bounds a compilation."""
    matrix = config.matrix
    arrays = matrix and (matrix.throughput, matrix.weight_bits, matrix.weight_scales)
    functions = config.vector and config.vector.cost
    return config.name, config.units, arrays, functions, config.host.compile_bytes, config.dram.bytes


@functools.lru_cache(maxsize=64)
def array_pricing(config: Config) -> Config:
    """The device as its matrix unit sees it."""
    return _one(replace(
        pricing(config), cores=1, dma=DmaConfig(), dram=_SOME_DRAM, constants=None, interconnect=InterconnectConfig()
    ))  # fmt: skip


@functools.lru_cache(maxsize=64)
def move_pricing(config: Config) -> Config:
    """The device as its channels see it, when what they move is no job's features."""
    return _one(replace(pricing(config), matrix=None))


@functools.lru_cache(maxsize=64)
def vector_pricing(config: Config) -> Config:
    """The device as its vector unit sees it."""
    return _one(replace(array_pricing(config), matrix=None, vector=config.vector))


class MatrixPrices(dict[tuple[int, int, int, int, int], int]):
    """Picoseconds of products of one kind by (batch, rows, columns, output channels, input channels)."""

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
    """Picoseconds that all banks of the SRAM need for what these products move."""

    def _pricing(self, config: Config) -> Callable[[MatrixWork], int]:
        once = cost_model(config).once
        return lambda work: once(work).sram_ps


@functools.lru_cache(maxsize=256)
def _matrix_prices(kind: type[MatrixPrices], config: Config, *product: Any) -> MatrixPrices:
    return kind(config, *product)


def matrix_prices(
    config: Config, dtype: DType, kh: int, kw: int, depthwise: bool, out_bytes: int, acc_bytes: int, w_bits: int
) -> MatrixPrices:
    """What products of one kind cost on a device, first and last of their sums."""
    product = dtype, kh, kw, depthwise, out_bytes, acc_bytes, w_bits
    return _matrix_prices(MatrixPrices, array_pricing(config), *product)


def bank_prices(
    config: Config, dtype: DType, kh: int, kw: int, depthwise: bool, out_bytes: int, acc_bytes: int, w_bits: int
) -> MatrixPrices:
    """What the same products take of the banks of the SRAM."""
    product = dtype, kh, kw, depthwise, out_bytes, acc_bytes, w_bits
    return _matrix_prices(BankPrices, array_pricing(config), *product)


class MovePrices(dict[tuple[int, int, int, str], tuple[int, int, int]]):
    """(picoseconds, those from one to the next of a stream, bytes past the pins) of transfers by (bytes, bytes of a
    run, those from one run to the next, 0 if that is not known, which way): "read" and "write" from and to DRAM,
    "constants" from where they are, "copy" within SRAM; "expand8" constants of a run's bytes, which become so many
    bytes of weights of 8 bits, where that pays. "read4", "write4", "copy4": elements of 4 bytes that are a run each in
    SRAM."""

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
        """That of whichever is loaded, the stream or the weights as they are."""
        if len(self) >= _MOST:
            self.clear()
        plain, work = self[nbytes, nbytes, 0, "constants"], expanding(nbytes, size, bits)
        price = *self._ps(work), self._dram_bytes(work)
        # Fewer bytes are worth less than time: a slow decoder is not waited for.
        price = self[nbytes, size, 0, f"{EXPAND}{bits}"] = (
            price if price[0] <= plain[0] and price[2] < plain[2] else plain
        )
        return price

    def pays(self, nbytes: int, size: int, bits: int) -> bool:
        """Whether weights are loaded as a stream of ``size`` bytes."""
        return self[nbytes, size, 0, f"{EXPAND}{bits}"][2] < self[nbytes, nbytes, 0, "constants"][2]


EXPAND = "expand"
"""Before the bits of weights, the way in which streams of them are loaded."""


@functools.lru_cache(maxsize=64)
def _move_prices(config: Config) -> MovePrices:
    return MovePrices(config)


def move_prices(config: Config) -> MovePrices:
    """What transfers cost on a device, alone."""
    return _move_prices(move_pricing(config))


_MOST = 1 << 16
"""Prices in one place: then they are asked anew."""
