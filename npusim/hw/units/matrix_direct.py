"""A direct convolution core such as NVDLA's: ``rows`` input channels (an atom) by ``cols`` kernels per cycle.

Kernels are processed in groups of ``cols``. A group passes over all P output pixels once for each tap and atom of
channels. The pixels of one pass are a stripe, during which the next block of weights is read from the buffer:

    mac    = max(P, rows * cols * size / weight_port_bytes) * kh * kw * ceil(ic / rows)        cycles of a group
             with at most ``image_channels`` input channels: * kh * ceil(kw * ic / rows)
             depthwise: * kh * kw, for each ``depthwise_channels`` channels
    output = P * output_cycles_per_atom + (P // row_atoms) * output_gap        gaps only if P > row_atoms

Post-processing of a group starts with its first row of atoms and overlaps the arithmetic of the next group:

    macs(g)  = max(macs(g - 1), weights(g)) + mac
    done(g)  = max(max(done(g - 1), begin(g) + mac of the first row) + output, macs(g) + output of the last row)

``cost`` prices a tile whose operands are in the buffer: weights(g) = 0. ``job`` prices a whole job of the core, which
fetches its own operands, in bursts of ``dma.burst_bytes`` over one port:

    beat     = max(burst / bandwidth, memory latency / outstanding bursts)
    features = bursts * max(beat, 1 / feature_beats_per_cycle), or 2 * beat if a burst of weights alternates with it
    weights  = bursts * beat; without ``interconnect.separate_write_port``, after the results of finished groups
    job      = start + start_latencies * latency + done(last)

All features arrive before the first stripe. Weights are loaded in parallel, as many as fit the buffer. A group starts
when all of its weights have arrived.
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
    """Cycles of one pass over the output: its arithmetic, the arithmetic up to its first row, all output, output of the
    last row."""

    mac: int
    first: int
    output: int
    tail: int


def cost(config: Config, work: MatrixWork) -> Cost:
    """The cost of a tile in the buffer. Raises ProgramError if there is no matrix unit or it does not support the type
    of the work."""
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
    """For a tile: (cycles that may overlap the output of the previous sums, all except the output of its own; cycles
    for which it occupies the MACs)."""
    matrix = unit_for(config, work)
    before = sum(count for _, _, count in first_datum(config, matrix.setup_cycles, config.matrix_hz))
    plan, groups = _tile(config, work)
    macs, done = groups * plan.mac, _resident(plan, groups, work.last)
    if traffic_cycles(config, work, place(matrix, work)) > done:
        return before, before + done
    return before + max(0, done - groups * plan.output), before + macs


def _tile(config: Config, work: MatrixWork) -> tuple[PassCycles, int]:
    """The cycles of a group of a tile, and the number of groups."""
    matrix = unit_for(config, work)
    direct = matrix.direct or DirectConfig()
    passes = work.batch * (ceil_div(work.ic, direct.depthwise_channels) if work.depthwise else 1)
    kernels = ceil_div(work.oc, max(1, work.ic)) if work.depthwise else work.oc
    return group(matrix, work), passes * ceil_div(kernels, matrix.cols)


def job(config: Config, work: MatrixWork, input_pixels: int) -> Cost:
    """A whole convolution of one image, fetched from memory and written to memory by the core, alone on the device.

    ``input_pixels``: pixels of the input image, without padding. Raises ProgramError as :func:`cost` does, and for
    several images or a depthwise convolution, which take several jobs.
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
    # Output-bound if the output that does not overlap exceeds the arithmetic.
    if _resident(plan, groups, True) > 2 * macs:
        terms.append(("output", COMPUTE, exposed))
    else:
        terms += [("mac", COMPUTE, min(macs, exposed)), ("tail", LATENCY, max(0, exposed - macs))]
    return total(config.matrix_hz, terms)


def group(matrix: MatrixConfig, work: MatrixWork) -> PassCycles:
    """The cycles of one group of kernels without other groups."""
    direct = matrix.direct or DirectConfig()
    pixels = work.oh * work.ow
    if work.depthwise:
        atoms = work.kh * work.kw
    elif work.ic <= direct.image_channels:
        # The channels of a kernel row are contiguous in an image, so they fill an atom together.
        atoms = work.kh * ceil_div(work.kw * work.ic, matrix.rows)
    else:
        atoms = work.kh * work.kw * ceil_div(work.ic, matrix.rows)
    rate = matrix.rate(work.dtype.label)
    stripe = ceil_div(pixels * rate.denominator, rate.numerator)
    # The next block of weights is loaded during a stripe, so a shorter stripe waits for it.
    least = ceil_div(matrix.rows * matrix.cols * work.dtype.itemsize, direct.weight_port_bytes)
    mac = max(stripe, least) * atoms
    gaps = pixels // direct.output_row_atoms if pixels > direct.output_row_atoms else 0
    output = pixels * direct.output_cycles_per_atom + gaps * direct.output_gap_cycles
    tail = min(pixels, direct.output_row_atoms) * direct.output_cycles_per_atom
    return PassCycles(mac, min(mac, direct.output_row_atoms * atoms), output, tail)


def _resident(plan: PassCycles, groups: int, last: bool) -> int:
    """The cycle at which consecutive groups whose operands are in the buffer are complete."""
    macs = done = 0
    for _ in range(groups):
        first = macs + plan.first
        macs += plan.mac
        # Post-processing waits for the previous group and for its own first row. It ends after the arithmetic and the
        # output of the last row.
        done = max(max(done, first) + plan.output, macs + plan.tail) if last else macs
    return done


def _fetched(config: Config, work: MatrixWork, features: int, plan: PassCycles) -> tuple[int, int]:
    """(Completion time of a job whose operands are fetched over the port, features first, in bursts; its waiting
    time)."""
    matrix, burst = config.matrix, config.dma.burst_bytes
    assert matrix is not None
    direct = matrix.direct or DirectConfig()
    groups = [min(matrix.cols, work.oc - first) for first in range(0, work.oc, matrix.cols)]
    taps = work.ic * work.kh * work.kw
    bursts = [ceil_div(work.weight_bytes(taps * kernels), burst) for kernels in groups]
    # The interval between bursts is limited by the pins and, by Little's law, by the number of outstanding bursts.
    pins = Fraction(burst * config.matrix_hz, dram_model(config).bandwidth)
    wait = Fraction(latency_ps(config) * config.matrix_hz, 10**12 * config.dma.max_outstanding)
    beat = max(Fraction(1), pins, wait)  # cycles of the core's clock between bursts
    room = config.sram.bytes // burst - features
    beside = min(features, sum(bursts), max(0, room))
    alone = beat
    if ceil_div(work.ic, matrix.rows) > direct.plain_surfaces:
        alone = max(beat, 1 / direct.feature_beats_per_cycle)
    # Fractions, because a burst rarely takes whole cycles, and rounding would add up over thousands of bursts.
    port: Fraction = 2 * beside * beat + (features - beside) * alone
    apart, out_bytes = config.interconnect.separate_write_port, work.oh * work.ow * matrix.cols * work.out_bytes
    results = 0 if apart else ceil_div(out_bytes, burst)
    macs = done = waited = left = 0
    finished: list[int] = []
    for size in bursts:
        missing = max(0, size - beside)
        beside = max(0, beside - size)
        if missing:
            # Results use the same port. Those of groups that are complete by now precede the next weights.
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
