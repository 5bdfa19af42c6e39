"""A direct-convolution core like NVDLA's: ``rows`` input channels (an atom) by ``cols`` kernels a cycle.

Kernels are taken ``cols`` at a time (a group). A group passes over all P output pixels once for each tap and atom of
channels; the pixels of one such pass are a stripe, and while it runs the next block of weights is read from the buffer:

    mac    = max(P, rows * cols * size / weight_port_bytes) * kh * kw * ceil(ic / rows)        cycles of a group
             with at most ``image_channels`` of an image: * kh * ceil(kw * ic / rows)
             depthwise: * kh * kw, for each ``depthwise_channels`` channels
    output = P * output_cycles_per_atom + (P // row_atoms) * output_gap        gaps only if P > row_atoms

Post-processing of a group starts with its first row of atoms and runs beside the next group's arithmetic:

    macs(g)  = max(macs(g - 1), weights(g)) + mac
    done(g)  = max(max(done(g - 1), begin(g) + mac of the first row) + output, macs(g) + output of the last row)

``cost`` prices a tile whose operands lie in the buffer: weights(g) = 0. ``job`` prices a whole job of the core, which
fetches for itself, in bursts of ``dma.burst_bytes`` over one port:

    beat     = max(burst / bandwidth, memory latency / outstanding bursts)
    features = bursts * max(beat, 1 / feature_beats_per_cycle), or 2 * beat where one of weights comes beside it
    weights  = bursts * beat, unless ``interconnect.separate_write_port`` after the results of finished groups
    job      = start + start_latencies * latency + done(last)

All features arrive before the first stripe, and beside them as many weights as the buffer has room for; a group starts
when all of its weights are there.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from npusim.errors import ProgramError
from npusim.hw.config import Config
from npusim.hw.memory import dram_model
from npusim.hw.sections import DirectConfig, MatrixConfig
from npusim.hw.units.base import COMPUTE, LATENCY, MEMORY, Cost, first_datum, total
from npusim.hw.units.dma import latency_ps
from npusim.hw.units.matrix_systolic import place, traffic_cycles, unit_for
from npusim.units import ceil_div, cycles_spanned

if TYPE_CHECKING:
    from npusim.work import MatrixWork


class PassCycles(NamedTuple):
    """Cycles of one pass over the output: its arithmetic, that up to its first row, all output, the last row's."""

    mac: int
    first: int
    output: int
    tail: int


def cost(config: Config, work: MatrixWork) -> Cost:
    """A tile in the buffer; raises ProgramError if there is no matrix unit or it does not know the work's type."""
    matrix = unit_for(config, work)
    plan, groups = _tile(config, work)
    done = _resident(plan, groups, work.last)
    traffic = traffic_cycles(config, work, place(matrix, work))
    terms = first_datum(config, matrix.setup_cycles, config.matrix_hz)
    macs = groups * plan.mac
    if traffic > done:
        terms.append(("sram", MEMORY, traffic))
    elif done - macs > macs:
        terms.append(("output", COMPUTE, done))
    else:
        terms += [("mac", COMPUTE, macs), ("tail", LATENCY, done - macs)]
    return total(config.matrix_hz, terms, traffic)


def beside(config: Config, work: MatrixWork) -> tuple[int, int]:
    """Of a tile: cycles that may pass while the sums of the one before still leave, all but those that its own take to;
    and those for which the MACs are its own."""
    matrix = unit_for(config, work)
    before = sum(count for _, _, count in first_datum(config, matrix.setup_cycles, config.matrix_hz))
    plan, groups = _tile(config, work)
    macs, done = groups * plan.mac, _resident(plan, groups, work.last)
    if traffic_cycles(config, work, place(matrix, work)) > done:
        return before, before + done
    return before + max(0, done - groups * plan.output), before + macs


def _tile(config: Config, work: MatrixWork) -> tuple[PassCycles, int]:
    """A group of a tile, and how many there are."""
    matrix = unit_for(config, work)
    direct = matrix.direct or DirectConfig()
    passes = work.batch * (ceil_div(work.ic, direct.depthwise_channels) if work.depthwise else 1)
    kernels = ceil_div(work.oc, max(1, work.ic)) if work.depthwise else work.oc
    return group(matrix, work), passes * ceil_div(kernels, matrix.cols)


def job(config: Config, work: MatrixWork, input_pixels: int) -> Cost:
    """A whole convolution of one image that the core fetches from and leaves in memory, alone on the device.

    ``input_pixels``: of the input image, without padding. Raises ProgramError as :func:`cost` does, and for several
    images or a depthwise convolution, which take several jobs.
    """
    if work.depthwise or work.batch != 1:
        raise ProgramError(f"a job must be one image and not depthwise, got {work}")
    matrix = unit_for(config, work)
    direct = matrix.direct or DirectConfig()
    latency = cycles_spanned(latency_ps(config), config.matrix_hz)
    plan = group(matrix, work)
    atoms = input_pixels * ceil_div(work.ic, matrix.rows)
    features = ceil_div(atoms * matrix.rows * work.dtype.itemsize, config.dma.burst_bytes)
    done, waited = _fetched(config, work, features, plan)
    start = direct.start_cycles + direct.start_latencies * latency
    groups = ceil_div(work.oc, matrix.cols)
    macs = groups * plan.mac
    terms = [("start", LATENCY, start), ("fetch", MEMORY, waited)]
    exposed = done - waited
    # Bound by output when what shows beside the arithmetic is more than the arithmetic itself.
    if _resident(plan, groups, True) > 2 * macs:
        terms.append(("output", COMPUTE, exposed))
    else:
        terms += [("mac", COMPUTE, min(macs, exposed)), ("tail", LATENCY, max(0, exposed - macs))]
    return total(config.matrix_hz, terms)


def group(matrix: MatrixConfig, work: MatrixWork) -> PassCycles:
    """The cycles of one group of kernels, alone."""
    direct = matrix.direct or DirectConfig()
    pixels = work.oh * work.ow
    if work.depthwise:
        atoms = work.kh * work.kw
    elif work.ic <= direct.image_channels:
        # An image has few channels: those of a row of the kernel lie next to each other, so they fill an atom together.
        atoms = work.kh * ceil_div(work.kw * work.ic, matrix.rows)
    else:
        atoms = work.kh * work.kw * ceil_div(work.ic, matrix.rows)
    rate = matrix.rate(work.dtype.label)
    stripe = ceil_div(pixels * rate.denominator, rate.numerator)
    # While a stripe runs, the next block of weights comes in: a shorter stripe waits for it.
    least = ceil_div(matrix.rows * matrix.cols * work.dtype.itemsize, direct.weight_port_bytes)
    mac = max(stripe, least) * atoms
    gaps = pixels // direct.output_row_atoms if pixels > direct.output_row_atoms else 0
    output = pixels * direct.output_cycles_per_atom + gaps * direct.output_gap_cycles
    tail = min(pixels, direct.output_row_atoms) * direct.output_cycles_per_atom
    return PassCycles(mac, min(mac, direct.output_row_atoms * atoms), output, tail)


def _resident(plan: PassCycles, groups: int, last: bool) -> int:
    """When groups whose operands are in the buffer are done, one after the other."""
    macs = done = 0
    for _ in range(groups):
        first = macs + plan.first
        macs += plan.mac
        # Post-processing waits for the group before it and for its own first row; and it cannot end before the
        # arithmetic has, and the last row after it.
        done = max(max(done, first) + plan.output, macs + plan.tail) if last else macs
    return done


def _fetched(config: Config, work: MatrixWork, features: int, plan: PassCycles) -> tuple[int, int]:
    """When a job is done whose operands come over the port, features (in bursts) first, and what of that it waited."""
    matrix, burst = config.matrix, config.dma.burst_bytes
    assert matrix is not None
    direct = matrix.direct or DirectConfig()
    groups = [min(matrix.cols, work.oc - first) for first in range(0, work.oc, matrix.cols)]
    taps = work.ic * work.kh * work.kw
    bursts = [ceil_div(work.weight_bytes(taps * kernels), burst) for kernels in groups]
    # A burst cannot come faster than the pins move it, nor than the bursts on the way let one be asked for (Little's
    # law).
    pins = Fraction(burst * config.matrix_hz, dram_model(config).bandwidth)
    wait = Fraction(latency_ps(config) * config.matrix_hz, 10**12 * config.dma.max_outstanding)
    beat = max(Fraction(1), pins, wait)  # cycles of the core's clock from one burst to the next
    room = config.sram.bytes // burst - features
    beside = min(features, sum(bursts), max(0, room))
    alone = beat
    if ceil_div(work.ic, matrix.rows) > direct.plain_surfaces:
        alone = max(beat, 1 / direct.feature_beats_per_cycle)
    # Fractions, because a burst rarely takes whole cycles, and rounding each would add up over thousands.
    port: Fraction = 2 * beside * beat + (features - beside) * alone
    apart, out_bytes = config.interconnect.separate_write_port, work.oh * work.ow * matrix.cols * work.out_bytes
    results = 0 if apart else ceil_div(out_bytes, burst)
    macs = done = waited = left = 0
    finished: list[int] = []
    for size in bursts:
        missing = max(0, size - beside)
        beside = max(0, beside - size)
        if missing:
            # Results go out over the same port: those of groups that are done by now go before the next weights.
            while left < len(finished) and finished[left] <= port:
                port += results * beat
                left += 1
            port += missing * beat
        begin = max(macs, ceil_div(port.numerator, port.denominator))
        waited += begin - macs
        macs = begin + plan.mac
        done = max(max(done, begin + plan.first) + plan.output, macs + plan.tail)
        finished.append(done)
    return done, waited
