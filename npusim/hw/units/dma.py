"""The time of a transfer on one DMA channel without other traffic. The simulator adds the effects of contention.

    start    = setup + SRAM latency                                         cycles
    to DRAM  = interconnect latency + DRAM latency                          before the first datum
    transfer = bus bytes / min(channel, port, interconnect, DRAM)           bytes/s
    channel  = min(width * clock, max_outstanding * burst / latency)        Little's law
    port     = interconnect.core_bytes_per_cycle * clock, shared by the channels of a core
    writing  = words of SRAM / clock - transfer                             if that is positive
    decoding = weights / rate of the decoder                                replaces writing if it is longer

Constants come from DRAM, or from a separate memory (``[constants]``) with its own latency and bandwidth. Transfers to
and from the L2 (``[l2]``) follow the same rules, with its lines as bursts and without interconnect. A copy between L2
and DRAM is a DRAM transfer, limited to the rate of the L2. If it reads from the L2, it has the latencies of both.

The engine moves elements in one order, and runs of either side are contiguous in that order. In SRAM, each run takes
whole words of the width of the channel. An engine with a reorder buffer (``reorder_bytes``) may use a different order
for each side within a block of that size.

A transfer within SRAM moves its runs at the width of the channel (``local_bytes_per_cycle``, if given) without
accessing DRAM. Including its start it takes at least ``local_least_cycles``. ``gather_bytes`` are collected before the
first byte is passed on, so their time on the channel counts twice. Padding, data that is read once and written several
times, and decompressed weights use the width of the channel, but not the bus. A copy within DRAM uses the bus twice.
With ``duplex`` both directions overlap, limited by the DRAM.

A transfer between the SRAMs of cores (``[exchange]``) has the latency of the network, then

    transfer = runs * beats of a run * width / min(channel, width)          bytes/s; a beat has ``width`` bytes

It only competes with other transfers between cores, not with DRAM traffic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from npusim.errors import ProgramError
from npusim.hw.config import Config
from npusim.hw.memory import dram_model, side
from npusim.hw.units.base import LATENCY, MEMORY, Cost, total
from npusim.units import bytes_to_ps, ceil_div, cycles_spanned, cycles_to_ps
from npusim.work import Port, reordered

if TYPE_CHECKING:
    from npusim.work import DmaWork


class TransferTimes(NamedTuple):
    """The parts of a transfer. ``start_ps`` before its first request, ``latency_ps`` before the first datum, then
    ``bus_bytes`` at no more than ``rate`` bytes/s. ``writing_ps``: additional time of the channel for writing, with the
    bus free. ``ahead_ps``: part of the first two that may overlap an older transfer of the channel; waits for DRAM
    banks may not. ``bus_bytes`` is 0 for a transfer within SRAM, which takes ``local_ps`` after the start.

    A transfer between cores uses the exchange network instead of the bus.
    """

    start_ps: int
    latency_ps: int
    bus_bytes: int
    local_ps: int
    rate: int = 0
    writing_ps: int = 0
    ahead_ps: int = 0


class Channel:
    """One channel of a device and the times of its transfers. Values that depend on the description alone are computed
    once."""

    def __init__(self, config: Config) -> None:
        dma = config.dma
        self._model = model = dram_model(config)
        self.hz = config.clock_hz
        self._start = start_ps(config)
        self._local_width = dma.local_bytes_per_cycle or dma.bytes_per_cycle
        self._least = cycles_to_ps(dma.local_least_cycles, self.hz) - self._start
        self._between = interconnect_bandwidth(config)
        self._bandwidth = model.bandwidth
        self.shared = min(self._between, self._bandwidth)
        """Bytes/s of one transfer alone on the bus."""
        self._width = dma.bytes_per_cycle * self.hz
        self._decoder = dma.decoder_weights_per_cycle
        self._bytes_per_cycle, self._gather_bytes = dma.bytes_per_cycle, dma.gather_bytes
        self._duplex, self._latency = dma.duplex, latency_ps(config)
        self._write_latency = self._latency if dma.write_latency_ps is None else dma.write_latency_ps
        self._channel_bandwidth = channel_bandwidth(config)
        self._port = _port_bandwidth(config)
        self._in_flight = dma.in_flight
        self._config = config

    def transfer(self, work: DmaWork, beyond: Channel | None = None) -> TransferTimes:
        """The times of a transfer on this side. ``beyond``: the side of the other end of a copy."""
        start, model = self._start, self._model
        bus_bytes = model.transfer_bytes(work)
        if not bus_bytes:
            words = work.runs * ceil_div(work.run_bytes, self._local_width)
            beats = max(words, ceil_div(work.bytes, self._local_width))
            local = max(cycles_to_ps(beats, self.hz), self._least) if work.bytes else 0
            return TransferTimes(start, 0, 0, local, ahead_ps=start)
        between, shared = self._between, self.shared
        rate = model.rate(work, self._channel_bandwidth)
        if work.features:
            # Time between channel groups, each of which has one burst per pixel.
            surfaces, bubbling = _features(self._config)
            rate = min(rate, bubbling if work.run_bytes > surfaces else rate)
        if beyond is not None:
            rate = min(rate, beyond.shared, beyond._channel_bandwidth)
        if self._duplex and work.reads and work.writes:
            # Both directions run in parallel, so channel and interconnect are limited by the larger one, while DRAM
            # serves both. This is the time as bytes of the shared bandwidth, at the rate at which the channel completes
            # its direction.
            way = max(model.transfer_bytes(replace(work, reads=0)), model.transfer_bytes(replace(work, writes=0)))
            both = max(ceil_div(bus_bytes * shared, self._bandwidth), ceil_div(way * shared, between))
            bus_bytes, rate = both, min(rate * both // way, self._port)
        # A write does not wait for data, so it may have its own latency. A copy reads first, so it has the latency of a
        # read.
        latency = self._latency if work.reads else self._write_latency
        if beyond is not None and work.l2_reads:
            latency += beyond._latency
        # Collected data passes the channel twice: into the buffer and out of it.
        gathered = ceil_div(min(work.bytes, self._gather_bytes), self._bytes_per_cycle)
        latency += cycles_to_ps(gathered, self.hz)
        # Waits for DRAM banks beyond the first access; 0 for DRAM models without banks.
        waiting = model.waiting_ps(work, min(rate, shared))
        written = bytes_to_ps(work.bytes, self._width)
        if work.pieces > 1:
            words = work.pieces * ceil_div(work.piece_bytes, self._bytes_per_cycle)
            written = max(written, cycles_to_ps(words, self.hz))
        if work.decoded:
            written = max(written, cycles_to_ps(ceil_div(work.decoded, self._decoder), self.hz))
        writing = max(0, written - bytes_to_ps(bus_bytes, min(rate, shared)))
        return TransferTimes(start, latency + waiting, bus_bytes, 0, rate, writing, start + latency)

    def streaming_ps(self, parts: TransferTimes, alone: int) -> int:
        """Picoseconds between consecutive equal transfers. ``alone``: picoseconds of one alone."""
        return _streaming_ps(parts, alone, self._in_flight)

    @property
    def shared_by(self) -> str:
        """What limits all transfers together: ``interconnect`` or ``memory``."""
        all_ports = self._port * self._config.cores
        return "interconnect" if min(self._between, all_ports) < self._bandwidth else "memory"

    def limit(self, parts: TransferTimes) -> str:
        """What limits the rate of a transfer alone: ``channel`` (its width), ``outstanding`` (bursts in flight),
        ``interconnect``, or ``memory``."""
        if parts.bus_bytes and parts.rate >= self.shared:
            return "interconnect" if self._between < self._bandwidth else "memory"
        if parts.bus_bytes and parts.rate == self._port:
            return "interconnect"
        if parts.bus_bytes and parts.rate < self._channel_bandwidth:  # the pattern, or the other memory of a copy
            return "memory"
        return "outstanding" if parts.bus_bytes and self._channel_bandwidth < self._width else "channel"

    def moving_ps(self, parts: TransferTimes) -> int:
        """Picoseconds alone on the bus, at the slowest of channel, interconnect and pins."""
        return parts.local_ps or bytes_to_ps(parts.bus_bytes, min(parts.rate or self.shared, self.shared))


def _streaming_ps(parts: TransferTimes, alone: int, in_flight: int) -> int:
    if in_flight == 1:
        return alone
    # The largest of: the set-up, the data, and the time of one divided by those in flight.
    return max(parts.start_ps, alone - parts.ahead_ps, ceil_div(alone, in_flight))


class Exchange:
    """One channel for transfers between cores. Raises ProgramError for a device without an exchange network."""

    def __init__(self, config: Config) -> None:
        way = config.exchange
        if way is None:
            raise ProgramError(f"{config.name}: cores have no network between their SRAMs")
        self.hz = config.clock_hz
        self.shared = exchange_bandwidth(config)
        self._start = start_ps(config)
        self._latency = cycles_to_ps(way.latency_cycles, self.hz)
        self._width = way.bytes_per_cycle
        self._rate = config.dma.bytes_per_cycle * self.hz
        self._in_flight = config.dma.in_flight

    def transfer(self, work: DmaWork) -> TransferTimes:
        """The times of an exchange."""
        flowing = work.runs * ceil_div(work.run_bytes, self._width) * self._width
        return TransferTimes(self._start, self._latency, flowing, 0, self._rate, ahead_ps=self._start + self._latency)

    def streaming_ps(self, parts: TransferTimes, alone: int) -> int:
        """Picoseconds between consecutive equal transfers. ``alone``: picoseconds of one alone."""
        return _streaming_ps(parts, alone, self._in_flight)

    shared_by = "memory"

    def limit(self, parts: TransferTimes) -> str:
        """What limits the rate of a transfer alone: ``channel`` (its width), or ``memory``, the network."""
        return "channel" if parts.rate < self.shared else "memory"

    def moving_ps(self, parts: TransferTimes) -> int:
        """Picoseconds alone on the network, at the slower of channel and network."""
        return bytes_to_ps(parts.bus_bytes, min(parts.rate, self.shared))


@functools.lru_cache(maxsize=64)
def channel(config: Config, port: Port = Port.DRAM) -> Channel:
    """A channel of a device for transfers at a port."""
    return Channel(side(config, port))


class Channels:
    """A channel of a device at each of its ports."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._buffer = config.dma.reorder_bytes
        self._at = {port: channel(config, port) for port in (Port.DRAM, Port.CONSTANTS, Port.L2)}
        self._settled = functools.lru_cache(maxsize=1 << 10)(self._least)

    def settled(self, work: DmaWork) -> DmaWork:
        """The work as executed: split into blocks of the reorder buffer in the way that takes least time."""
        return self._settled(work) if work.walk and self._buffer else work

    def _least(self, work: DmaWork) -> DmaWork:
        def alone(way: DmaWork) -> int:
            here, parts = self._transfer(way)
            return parts.start_ps + parts.latency_ps + here.moving_ps(parts) + parts.writing_ps

        return min(reordered(work, self._buffer), key=alone)

    def transfer(self, work: DmaWork) -> tuple[Channel | Exchange, TransferTimes]:
        """The times of a transfer, and the channel of its side."""
        return self._transfer(self.settled(work))

    def _transfer(self, work: DmaWork) -> tuple[Channel | Exchange, TransferTimes]:
        if work.exchanged:
            way = exchange(self._config)
            return way, way.transfer(work)
        here = self._at[work.port]
        if not (work.l2_reads or work.l2_writes):
            return here, here.transfer(work)
        if work.port is Port.L2:
            return here, here.transfer(replace(work, reads=work.l2_reads, writes=work.l2_writes))
        return here, here.transfer(work, self._at[Port.L2])


@functools.lru_cache(maxsize=64)
def channels(config: Config) -> Channels:
    """A channel of a device at each of its ports."""
    return Channels(config)


exchange = functools.lru_cache(maxsize=64)(Exchange)
"""A channel of a device for transfers between cores."""


def transfer(config: Config, work: DmaWork) -> TransferTimes:
    """The parameters of a transfer for the simulation of concurrent transfers."""
    return channels(config).transfer(work)[1]


def pins_bytes(config: Config, work: DmaWork) -> int:
    """Bytes of DRAM bandwidth that a transfer uses; 0 if it does not access DRAM."""
    return dram_model(config).transfer_bytes(channels(config).settled(work))


def latency_ps(config: Config) -> int:
    """Latency in ps from the request of a channel to its first datum, through interconnect and DRAM."""
    return cycles_to_ps(config.interconnect.latency_cycles, config.clock_hz) + dram_model(config).latency_ps


def start_ps(config: Config) -> int:
    """Time in ps of a channel before its first request."""
    return cycles_to_ps(config.dma.setup_cycles + config.sram.latency_cycles, config.clock_hz)


@functools.lru_cache(maxsize=64)
def _features(config: Config) -> tuple[int, int]:
    """(bytes of a pixel up to which features have the rate of other data, bytes/s for larger pixels)."""
    matrix, burst = config.matrix, config.dma.burst_bytes
    direct = matrix.direct if matrix else None
    if matrix is None or direct is None:
        return 0, config.dma.bytes_per_cycle * config.clock_hz
    return direct.plain_surfaces * burst, int(direct.feature_beats_per_cycle * burst * config.matrix_hz)


def gap_ps(config: Config) -> int:
    """Time in ps between short reads of a stream. A read whose data takes less than this is mostly latency."""
    if config.dma.in_flight == 1:
        return latency_ps(config)
    return max(start_ps(config), ceil_div(start_ps(config) + latency_ps(config), config.dma.in_flight))


def channel_bandwidth(config: Config) -> int:
    """Highest rate of one channel in bytes/s: its width, the port of its core, or its outstanding bursts."""
    dma, latency = config.dma, latency_ps(config)
    width = min(dma.bytes_per_cycle * config.clock_hz, _port_bandwidth(config))
    return width if not latency else max(1, min(width, dma.max_outstanding * dma.burst_bytes * 10**12 // latency))


_NO_LIMIT = 1 << 62


def _port_bandwidth(config: Config) -> int:
    """Bandwidth in bytes/s of the port of one core."""
    return config.interconnect.core_bytes_per_cycle * config.clock_hz or _NO_LIMIT


def core_bandwidth(config: Config) -> int:
    """Highest rate of all channels of one core in bytes/s."""
    return min(config.dma.channels * channel_bandwidth(config), _port_bandwidth(config))


def memory_bandwidth(config: Config) -> int:
    """Bytes/s that the cores together can transfer: the minimum of the DRAM and the ports of all cores."""
    return min(dram_model(config).bandwidth, config.cores * _port_bandwidth(config))


def interconnect_bandwidth(config: Config) -> int:
    """Bandwidth of the interconnect in bytes/s, shared by all cores."""
    return config.interconnect.bytes_per_cycle * config.clock_hz


def exchange_bandwidth(config: Config) -> int:
    """Bandwidth of the exchange network in bytes/s, shared by all cores; 0 without one."""
    return config.exchange.bytes_per_cycle * config.clock_hz if config.exchange else 0


def exchange_latency_ps(config: Config) -> int:
    """Latency in ps from a command to the first byte of another core; 0 without an exchange network."""
    if config.exchange is None:
        return 0
    return start_ps(config) + cycles_to_ps(config.exchange.latency_cycles, config.clock_hz)


FETCH_BYTES = 1 << 12
"""Half of the instruction buffer in bytes, fetched at once; larger than any command."""


def fetch_rate(config: Config) -> int:
    """Rate of instructions in bytes/s after their latency. With a separate port, half of the buffer per cycle."""
    return FETCH_BYTES * config.clock_hz if config.interconnect.separate_code_port else interconnect_bandwidth(config)


@functools.lru_cache(maxsize=64)
def capacities(config: Config) -> list[int]:
    """Bandwidth in bytes/s of each port, shared by its transfers: the minimum of its memory and the interconnect. Ports
    that do not exist have the value of DRAM."""
    sides = [side(config, port) for port in Port]
    found = [min(dram_model(each).bandwidth, interconnect_bandwidth(each)) for each in sides]
    if config.interconnect.separate_code_port:
        found[Port.CODE] = fetch_rate(config)
    found[Port.EXCHANGE] = exchange_bandwidth(config) or found[Port.DRAM]
    return found


@functools.lru_cache(maxsize=64)
def ports(config: Config) -> list[int]:
    """Bandwidth in bytes/s of one core at each port, shared by its transfers; 0 = no limit."""
    found = [side(config, port).interconnect.core_bytes_per_cycle * config.clock_hz for port in Port]
    found[Port.CODE] = found[Port.EXCHANGE] = 0
    return found


def port(config: Config, work: DmaWork) -> Port:
    """The port of a transfer; DRAM if the device has no separate port for it."""
    if work.port is Port.CONSTANTS:
        return Port.DRAM if config.constants is None else work.port
    results = work.port is Port.DRAM and not work.reads
    return Port.WRITES if results and config.interconnect.separate_write_port else work.port


def cost(config: Config, work: DmaWork) -> Cost:
    """The cost of a transfer alone on the bus. ``cycles`` are of the device clock, each part rounded up."""
    here, parts = channels(config).transfer(work)
    hz, moving = here.hz, here.moving_ps(parts)
    counted = [
        ("setup", LATENCY, cycles_spanned(parts.start_ps, hz)),
        ("latency", LATENCY, cycles_spanned(parts.latency_ps, hz)),
        ("transfer", MEMORY, cycles_spanned(moving, hz)),
        ("writing", MEMORY, cycles_spanned(parts.writing_ps, hz)),
    ]
    rounded = total(hz, counted)
    ps = parts.start_ps + parts.latency_ps + moving + parts.writing_ps
    return Cost(rounded.cycles, ps, rounded.terms, rounded.bound)


def pricing(config: Config) -> Callable[[DmaWork], tuple[int, int]]:
    """A function of a transfer: (picoseconds of :func:`cost`, picoseconds between consecutive equal transfers)."""
    transfer = channels(config).transfer

    def ps(work: DmaWork) -> tuple[int, int]:
        here, parts = transfer(work)
        alone = parts.start_ps + parts.latency_ps + here.moving_ps(parts) + parts.writing_ps
        return alone, here.streaming_ps(parts, alone)

    return ps
