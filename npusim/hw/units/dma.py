"""One DMA channel, alone on the bus: what a transfer takes at best; the simulator adds what others take away.

    start    = setup + SRAM latency                                         cycles
    to DRAM  = interconnect latency + DRAM latency                          before the first datum
    transfer = bus bytes / min(channel, interconnect, DRAM)                 bytes a second
    channel  = min(width * clock, max_outstanding * burst / latency)        Little's law
    writing  = words of SRAM / clock - transfer                             where that is the longer
    decoding = weights / decoder's rate                                     in the place of writing, if it takes longer

Constants come from the DRAM, or from a memory of their own (``[constants]``) by the same rules, with its latency and
its bandwidth in the place of the DRAM's. So does what comes from the L2 (``[l2]``) or goes there: its lines are bursts,
and no interconnect is passed. A copy between the two is one of the DRAM, at no more than the L2's rate, and waits for
the first datum of both if it reads from the L2.

A side's runs are contiguous in the one order in which the engine moves elements; in SRAM each takes whole words of the
channel's width. An engine with a reorder buffer (``reorder_bytes``) has an order for each side within a block of that
size.

A transfer within SRAM moves its runs over the channel's width (``local_bytes_per_cycle``, if that is given) and touches
no DRAM; with its start it takes ``local_least_cycles`` at the least. ``gather_bytes`` are collected before the first
is passed on: their time over the channel counts twice. Padding, what is read once and written often, and what a decoder
makes of compressed weights pass the channel's width like the rest, but not the bus. A copy within DRAM passes the bus
twice; with ``duplex`` both ways at once, but not faster than the DRAM takes both.

What passes from one core's SRAM to others' (``[exchange]``) has the latency of that way, then

    transfer = runs * beats of a run * width / min(channel, width)          bytes a second, a beat being a width

and shares the way with the like of it alone, not with what goes to DRAM.
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
    """The parts of a transfer: ``start_ps`` before it asks for anything, ``latency_ps`` before the first datum flows.

    Then ``bus_bytes`` flow at no more than ``rate`` bytes a second. ``writing_ps``: how much longer the channel writes
    than they flow, with the bus free for others. ``ahead_ps``: what of the first two may pass while an older transfer
    of the channel still flows; what the banks of the DRAM make it wait is not of it.

    ``bus_bytes`` is 0 for a transfer within SRAM; then ``local_ps`` is what it takes after the start. What passes from
    core to core flows over that way instead of the bus.
    """

    start_ps: int
    latency_ps: int
    bus_bytes: int
    local_ps: int
    rate: int = 0
    writing_ps: int = 0
    ahead_ps: int = 0


class Channel:
    """One channel of a device, and what its transfers take, by :func:`transfer`: what follows from the description
    alone is worked out once."""

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
        """Bytes a second that one transfer has, alone on the bus."""
        self._width = dma.bytes_per_cycle * self.hz
        self._decoder = dma.decoder_weights_per_cycle
        self._bytes_per_cycle, self._gather_bytes = dma.bytes_per_cycle, dma.gather_bytes
        self._duplex, self._latency = dma.duplex, latency_ps(config)
        self._write_latency = self._latency if dma.write_latency_ps is None else dma.write_latency_ps
        self._channel_bandwidth = channel_bandwidth(config)
        self._in_flight = dma.in_flight
        self._config = config

    def transfer(self, work: DmaWork, beyond: Channel | None = None) -> TransferTimes:
        """Of a work on this side of the bus; ``beyond``: the side that the other end of a copy is on."""
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
            # Bubbles between the channel groups, of which a burst each holds those of a pixel.
            surfaces, bubbling = _features(self._config)
            rate = min(rate, bubbling if work.run_bytes > surfaces else rate)
        if beyond is not None:
            rate = min(rate, beyond.shared, beyond._channel_bandwidth)
        if self._duplex and work.reads and work.writes:
            # The channel and the interconnect take the larger way while the other passes beside it, the DRAM takes
            # both: so many bytes of what all transfers share, at the rate at which the channel is done with its way.
            way = max(model.transfer_bytes(replace(work, reads=0)), model.transfer_bytes(replace(work, writes=0)))
            both = max(ceil_div(bus_bytes * shared, self._bandwidth), ceil_div(way * shared, between))
            bus_bytes, rate = both, rate * both // way
        # A write waits for no datum: it may have a latency of its own. A copy reads first, so it waits like a read.
        latency = self._latency if work.reads else self._write_latency
        if beyond is not None and work.l2_reads:
            latency += beyond._latency
        # What is collected first passes the channel twice, into the buffer and out of it.
        gathered = ceil_div(min(work.bytes, self._gather_bytes), self._bytes_per_cycle)
        latency += cycles_to_ps(gathered, self.hz)
        # What the banks of the DRAM make it wait beyond the first access; nothing on a DRAM without banks.
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
        """From one transfer to the next of a stream of equals, each of which takes so long alone."""
        return _streaming_ps(parts, alone, self._in_flight)

    def moving_ps(self, parts: TransferTimes) -> int:
        """Alone on the bus: the slowest of channel, interconnect and pins is what bytes flow at."""
        return parts.local_ps or bytes_to_ps(parts.bus_bytes, min(parts.rate or self.shared, self.shared))


def _streaming_ps(parts: TransferTimes, alone: int, in_flight: int) -> int:
    if in_flight == 1:
        return alone
    # Set-ups follow each other, so do the data; and the oldest must be over before one too many is asked for.
    return max(parts.start_ps, alone - parts.ahead_ps, ceil_div(alone, in_flight))


class Exchange:
    """One channel as what passes from core to core sees it. Raises ProgramError for a device without such a way."""

    def __init__(self, config: Config) -> None:
        way = config.exchange
        if way is None:
            raise ProgramError(f"{config.name}: cores have no way to each other's SRAM")
        self.hz = config.clock_hz
        self.shared = exchange_bandwidth(config)
        self._start = start_ps(config)
        self._latency = cycles_to_ps(way.latency_cycles, self.hz)
        self._width = way.bytes_per_cycle
        self._rate = config.dma.bytes_per_cycle * self.hz
        self._in_flight = config.dma.in_flight

    def transfer(self, work: DmaWork) -> TransferTimes:
        """Of a work that is exchanged."""
        flowing = work.runs * ceil_div(work.run_bytes, self._width) * self._width
        return TransferTimes(self._start, self._latency, flowing, 0, self._rate, ahead_ps=self._start + self._latency)

    def streaming_ps(self, parts: TransferTimes, alone: int) -> int:
        """From one transfer to the next of a stream of equals, each of which takes so long alone."""
        return _streaming_ps(parts, alone, self._in_flight)

    def moving_ps(self, parts: TransferTimes) -> int:
        """Alone on the way: what flows at the slower of channel and way."""
        return bytes_to_ps(parts.bus_bytes, min(parts.rate, self.shared))


@functools.lru_cache(maxsize=64)
def channel(config: Config, port: Port = Port.DRAM) -> Channel:
    """A channel of a device, as what passes a port sees it."""
    return Channel(side(config, port))


class Channels:
    """A channel of a device at each of its ports."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._buffer = config.dma.reorder_bytes
        self._at = {port: channel(config, port) for port in (Port.DRAM, Port.CONSTANTS, Port.L2)}
        self._settled = functools.lru_cache(maxsize=1 << 10)(self._least)

    def settled(self, work: DmaWork) -> DmaWork:
        """The work as a channel does it: of the blocks that its reorder buffer holds, the ones that take least time."""
        return self._settled(work) if work.walk and self._buffer else work

    def _least(self, work: DmaWork) -> DmaWork:
        def alone(way: DmaWork) -> int:
            here, parts = self._transfer(way)
            return parts.start_ps + parts.latency_ps + here.moving_ps(parts) + parts.writing_ps

        return min(reordered(work, self._buffer), key=alone)

    def transfer(self, work: DmaWork) -> tuple[Channel | Exchange, TransferTimes]:
        """A work, and the side that it is on."""
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
"""A channel of a device as what passes from core to core sees it."""


def transfer(config: Config, work: DmaWork) -> TransferTimes:
    """What the simulator needs to let transfers compete."""
    return channels(config).transfer(work)[1]


def pins_bytes(config: Config, work: DmaWork) -> int:
    """What a transfer takes of the bandwidth of the DRAM, in bytes; 0 if it does not touch it."""
    return dram_model(config).transfer_bytes(channels(config).settled(work))


def latency_ps(config: Config) -> int:
    """From a channel's request to its first datum: through the interconnect and the DRAM."""
    return cycles_to_ps(config.interconnect.latency_cycles, config.clock_hz) + dram_model(config).latency_ps


def start_ps(config: Config) -> int:
    """What a channel does for a transfer before it asks for anything."""
    return cycles_to_ps(config.dma.setup_cycles + config.sram.latency_cycles, config.clock_hz)


@functools.lru_cache(maxsize=64)
def _features(config: Config) -> tuple[int, int]:
    """Bytes of a pixel up to which its features come as other data do, and bytes a second of larger ones."""
    matrix, burst = config.matrix, config.dma.burst_bytes
    direct = matrix.direct if matrix else None
    if matrix is None or direct is None:
        return 0, config.dma.bytes_per_cycle * config.clock_hz
    return direct.plain_surfaces * burst, int(direct.feature_beats_per_cycle * burst * config.matrix_hz)


def gap_ps(config: Config) -> int:
    """From one read to the next of a stream of short ones: of less than flows in this time each is mostly waiting."""
    if config.dma.in_flight == 1:
        return latency_ps(config)
    return max(start_ps(config), ceil_div(start_ps(config) + latency_ps(config), config.dma.in_flight))


def channel_bandwidth(config: Config) -> int:
    """What one channel can ask for, in bytes a second: its width, or the bursts that it may have on the way."""
    dma, latency = config.dma, latency_ps(config)
    width = dma.bytes_per_cycle * config.clock_hz
    return width if not latency else max(1, min(width, dma.max_outstanding * dma.burst_bytes * 10**12 // latency))


def interconnect_bandwidth(config: Config) -> int:
    """What all cores together get through the interconnect, in bytes a second."""
    return config.interconnect.bytes_per_cycle * config.clock_hz


def exchange_bandwidth(config: Config) -> int:
    """What all cores together pass to each other, in bytes a second; 0 where they have no way to."""
    return config.exchange.bytes_per_cycle * config.clock_hz if config.exchange else 0


def exchange_latency_ps(config: Config) -> int:
    """From a command to the first byte of another core's SRAM; 0 where there is no way to it."""
    if config.exchange is None:
        return 0
    return start_ps(config) + cycles_to_ps(config.exchange.latency_cycles, config.clock_hz)


FETCH_BYTES = 1 << 12
"""Half of the buffer of commands, which is fetched at once; larger than any command."""


def fetch_rate(config: Config) -> int:
    """At how many bytes a second commands arrive once their latency is over; by a way of their own, half of the buffer
    in a cycle."""
    return FETCH_BYTES * config.clock_hz if config.interconnect.separate_code_port else interconnect_bandwidth(config)


@functools.lru_cache(maxsize=64)
def capacities(config: Config) -> list[int]:
    """Bytes a second that all transfers at a port share, by port: those of its memory, or of the interconnect before
    it; those of the DRAM at a port that there is not."""
    sides = [side(config, port) for port in Port]
    found = [min(dram_model(each).bandwidth, interconnect_bandwidth(each)) for each in sides]
    if config.interconnect.separate_code_port:
        found[Port.CODE] = fetch_rate(config)
    found[Port.EXCHANGE] = exchange_bandwidth(config) or found[Port.DRAM]
    return found


def port(config: Config, work: DmaWork) -> Port:
    """What the bytes of a transfer share with others: its port, or that to DRAM where a device has none of its own."""
    if work.port is Port.CONSTANTS:
        return Port.DRAM if config.constants is None else work.port
    results = work.port is Port.DRAM and not work.reads
    return Port.WRITES if results and config.interconnect.separate_write_port else work.port


def cost(config: Config, work: DmaWork) -> Cost:
    """The transfer alone on the bus; ``cycles`` are of the device's clock, each part rounded up."""
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
    """What gives the picoseconds of :func:`cost`, and those from one such transfer to the next of a stream of them."""
    transfer = channels(config).transfer

    def ps(work: DmaWork) -> tuple[int, int]:
        here, parts = transfer(work)
        alone = parts.start_ps + parts.latency_ps + here.moving_ps(parts) + parts.writing_ps
        return alone, here.streaming_ps(parts, alone)

    return ps
