"""The laws. Each has a generator that gives layers to compare, and the allowed ratio, for a seed and a device.

A verdict is the largest ratio of a measured figure to the allowed one. The law holds if it is at most 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from npusim.dtypes import DType
from npusim.errors import ConfigError
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.capability import capabilities
from npusim.hw.config import Config
from npusim.hw.memory import dram_model
from npusim.isa.functions import Reduce
from npusim.ops.build import GraphBuilder
from npusim.timing.tile_costs import cores_served
from npusim.units import ceil_div
from npusim.work import Port
from tests.support.laws import layers
from tests.support.laws.forms import FORMS, models
from tests.support.laws.layers import Conv, Volume
from tests.support.laws.measure import Figures, measure
from tests.support.laws.quantised import file_and_network

Measured = Mapping[str, Figures]
Generator = Callable[[Random, Config], "Case | None"]


@dataclass(frozen=True)
class Case:
    """Graphs and devices by name, and a function from their figures to the verdict."""

    text: str
    subjects: Mapping[str, tuple[Graph, Config]]
    ratio: Callable[[Measured], float]

    def verdict(self) -> tuple[float, Measured]:
        """Return the ratio and the measured figures. The ratio is infinite if a graph was refused."""
        found = {name: measure(graph, config) for name, (graph, config) in self.subjects.items()}
        return (math.inf if any(each.refusal for each in found.values()) else self.ratio(found)), found


@dataclass(frozen=True)
class Law:
    """One law: its statement, a generator of cases, and the devices that have such layers (``on``).

    The generator returns None if the random sizes give no such layer; then the next ones are tried.
    """

    name: str
    statement: str
    case: Generator
    on: Callable[[Config], bool]


LAWS: dict[str, Law] = {}


def _multiplies(config: Config) -> bool:
    return bool(layers.types(config))


def _is_single(config: Config) -> bool:
    return _multiplies(config) and config.cores == 1


def _computes(dtype: str) -> Callable[[Config], bool]:
    """Return a test whether a device multiplies a type and has a vector unit for the operators in between."""
    return lambda config: bool(config.matrix.throughput.get(dtype)) and config.vector is not None


def law(statement: str, on: Callable[[Config], bool] = _multiplies) -> Callable[[Generator], Generator]:
    """Register a generator as the law of its name."""

    def register(case: Generator) -> Generator:
        @functools.wraps(case)
        def possible(rng: Random, config: Config) -> Case | None:
            try:
                return case(rng, config)
            except ConfigError:  # such as more cores than the DRAM has room for
                return None

        LAWS[case.__name__] = Law(case.__name__, statement, possible, on)
        return case

    return register


def at_most(factor: float, what: str, base: str, traffic: float = math.inf) -> Callable[[Measured], float]:
    """Return the verdict that ``what`` takes at most ``factor`` times the time and ``traffic`` times the traffic of
    ``base``."""
    return lambda found: max(
        found[what].time_ps / (factor * found[base].time_ps), found[what].traffic / (traffic * found[base].traffic)
    )


def _pair(config: Config, changed: Conv, base: Conv, factor: float) -> Case:
    return Case(
        f"{changed}\n    against {base}",
        {"changed": (changed.graph(), config), "base": (base.graph(), config)},
        at_most(factor, "changed", "base"),
    )


@law("a dilated convolution takes at most 1.15 times as long as one with dilation 1")
def dilation(rng: Random, config: Config) -> Case | None:
    """Images and signals, strides, both layouts.

    The input channels fill the rows of the array. Otherwise taps would share rows, which is the subject of another law.
    """
    base = layers.conv(rng, config, (2, 3, 5))
    base = replace(base, c=ceil_div(base.c, config.matrix.rows) * config.matrix.rows, o=min(base.o, 256))
    base = replace(base, h=max(base.h, 9), w=max(base.w, 9), n=1, layout=rng.choice(("NHWC", "NHWC", "NCHW")))
    steps = (2, 3, 4, 6, 8, 12, 18, 29)
    if rng.random() < 0.3:
        base, steps = replace(base, h=1, w=base.h * base.w, kernel=(1, base.kernel[1])), (2, 8, 64, 256, 512)
    return _pair(config, replace(base, dilation=rng.choice(steps)), base, 1.15)


_SHOWS = 20_000_000
"""Time of a layer in ps from which its tiles dominate, and not its start and end."""


@law("a kernel of any size takes at most 1 / 0.85 of what its folds or its bytes take, whichever take longer")
def kernel_size(rng: Random, config: Config) -> Case | None:
    """Any numbers of channels, of signals, images and volumes.

    The bound uses the unit's cost function for the layer as one instruction; the first load and the last store are not
    overlapped. Volumes are in the layout of ONNX, so the times of their transpositions are added.
    """
    if rng.random() < 0.25:
        return _volume(rng, config)
    kernel, flat, side = rng.randint(2, 31), rng.random() < 0.3, layers.size(rng, 8, 64)
    layer = Conv(
        rng.choice(layers.types(config)), 1, 1 if flat else side, side * (8 if flat else 1), layers.size(rng, 3, 256),
        layers.size(rng, 8, 256), (1 if flat else kernel, kernel),
    )  # fmt: skip
    if layer.macs > 4 * layers.MOST_MACS:
        return None
    bound = layers.bound_ps(layer, config)
    if bound < _SHOWS:
        return None
    return Case(str(layer), {"layer": (layer.graph(), config)}, lambda found: found["layer"].time_ps / (bound / 0.85))


def _volume(rng: Random, config: Config) -> Case | None:
    side = layers.size(rng, 5, 24)
    volume = Volume(
        rng.choice(layers.types(config)), (layers.size(rng, 4, 16), side, side), layers.size(rng, 3, 128),
        layers.size(rng, 8, 128), rng.randint(2, 7),
    )  # fmt: skip
    if volume.macs > 2 * layers.MOST_MACS or min(volume.size) < volume.kernel:
        return None
    bound = volume.bound_ps(config)
    if bound < _SHOWS:
        return None
    turned = dict(zip(("input", "result"), volume.transposed(), strict=True))
    subjects = {"layer": volume.graph(), **turned}

    def ratio(found: Measured) -> float:
        return found["layer"].time_ps / (bound / 0.85 + sum(found[name].time_ps for name in turned))

    return Case(str(volume), {name: (graph, config) for name, graph in subjects.items()}, ratio)


ROWS = {
    "softmax": {"axis": -1, "log": False},
    "normalize": {"axis": -1, "mode": "layer", "epsilon": 1e-5},
    "cumsum": {"axis": -1, "exclusive": False, "reverse": False},
    "arg_reduce": {"fn": "max", "axis": -1, "keepdims": False},
    "topk": {"axis": -1, "k": 5, "largest": True},
    "reduce": {"fn": None, "axes": (1,), "keepdims": False},
}
PASSES = {"softmax": 3.0, "normalize": 4.0, "cumsum": 2.0, "arg_reduce": 1.0, "topk": 1.0, "reduce": 1.0}
"""How often the bytes of a row may be moved."""


@law("a reduction works over any length, and moves the row as often as its passes need")
def long_rows(rng: Random, config: Config) -> Case | None:
    """Rows that may be longer than SRAM."""
    kind = rng.choice(tuple(ROWS))
    if kind == "topk" and not config.compiler.parts_in_place:
        return None  # the compiler of such a chip copies the blocks of the row
    length, count = layers.size(rng, 1000, 300_000), rng.choice((1, 1, 2, 5))
    build = GraphBuilder(kind)
    x = build.input("x", (count, length), DType.FLOAT32)
    attrs: dict[str, Any] = {**ROWS[kind], **({"axis": 1} if "axis" in ROWS[kind] else {})}
    if kind == "reduce":
        attrs["fn"] = Reduce.SUM
    outputs = build.add_all(kind, [x], attrs)
    row = 4 * count * length
    return Case(
        f"{kind} of [{count}, {length}]",
        {"rows": (build.finish(outputs), config)},
        lambda found: found["rows"].traffic / (PASSES[kind] * row * 1.01 + 64 * 1024),
    )


@law("pixels in rows, in one row, or as a batch, and the matrix product of the same bytes, take the same time")
def pixel_shape(rng: Random, config: Config) -> Case | None:
    """1x1 convolutions with channels or pixels innermost. In the latter layout the pixels of several images are not one
    run."""
    layer = replace(layers.conv(rng, config, (1,), stride=False), c=layers.size(rng, 16, 1024))
    layer = replace(layer, layout=rng.choice(("NHWC", "NHWC", "NCHW")))
    pixels, area = layer.n * layer.h * layer.w, layer.h * layer.w
    inner = layer.layout == "NHWC"
    build = GraphBuilder("product")
    x = build.input("x", (pixels, layer.c) if inner else (layer.n, layer.c, area), layer.dtype)
    weights = layers.constant(build, (layer.c, layer.o) if inner else (layer.o, layer.c), layer.dtype)
    product = build.add("matmul", [x, weights] if inner else [weights, x])
    subjects = {
        "as it is": (layer.graph(), config),
        "one row": (replace(layer, n=1 if inner else layer.n, h=1, w=pixels if inner else area).graph(), config),
        "product": (build.finish([layers.requantised(build, product, layer.dtype)]), config),
    }
    if inner and pixels <= 512:
        subjects["as a batch"] = (replace(layer, n=pixels, h=1, w=1).graph(), config)

    def ratio(found: Measured) -> float:
        times, moved = [each.time_ps for each in found.values()], [each.traffic for each in found.values()]
        return max(max(times) / (1.03 * min(times)), max(moved) / (1.03 * min(moved)))

    return Case(str(layer), subjects, ratio)


@law("a grouped convolution takes at most 1.005 times as long as the dense one, and as one with fewer groups")
def groups(rng: Random, config: Config) -> Case | None:
    """The number of fewer groups is a divisor; 1 is the dense convolution.

    Depthwise convolutions may have several output channels per input channel. In NCHW, transpositions cost the same for
    both.
    """
    width = rng.choice((1, 2, 4, 7, 8, 16, 20, 24, 32, 48, 64))
    more = rng.choice((2, 3, 4, 6, 8, 12, 16, 32, 64))
    rows, cols = layers.size(rng, 5, 64), layers.size(rng, 5, 64)
    kernel = rng.choice(((1, 1), (3, 3), (5, 5), (1, 7), (7, 1)))
    base = Conv(
        rng.choice(layers.types(config)), rng.choice((1, 1, 1, 4)), rows, rng.choice((rows, cols)), width * more,
        width * more * rng.choice((1, 1, 2)), kernel, rng.choice((1, 1, 2)),
        layout=rng.choice(("NHWC", "NHWC", "NCHW")),
    )  # fmt: skip
    if base.macs > layers.MOST_MACS:
        return None
    changed = replace(base, groups=rng.choice((more, more, base.c)))
    fewer = rng.choice([count for count in range(1, changed.groups) if changed.groups % count == 0])
    return _pair(config, changed, replace(base, groups=fewer), 1.005)


@law("one row, column, channel, tap, batch item or last layer less takes at most 1.03 times as long")
def smaller(rng: Random, config: Config) -> Case | None:
    """One size of a convolution is smaller by one, or the last layer is removed if its result is at least as large as
    its input."""
    base = layers.conv(rng, config)
    base = replace(base, layout=rng.choice(("NHWC", "NHWC", "NCHW")))
    less = rng.choice(("n", "h", "w", "c", "o", "kernel", "layer"))
    if less == "layer":
        return _without_last_layer(rng, config, base)
    if less == "kernel":
        if base.kernel[0] < 2 or base.stride > 1:
            return None
        return _pair(config, replace(base, kernel=(base.kernel[0] - 1, base.kernel[1])), base, 1.03)
    value = getattr(base, less) - 1
    return _pair(config, replace(base, **{less: value}), base, 1.03) if value else None


def _without_last_layer(rng: Random, config: Config, first: Conv) -> Case | None:
    """Compare a convolution with the same followed by another one."""
    (h, w), kernel = first.out_hw, rng.choice((1, 3))
    last = replace(first, h=h, w=w, c=first.o, o=first.o + rng.choice((0, 0, 1, 32)), kernel=(kernel,) * 2, stride=1)
    if first.macs + last.macs > layers.MOST_MACS:
        return None
    build = GraphBuilder("two")
    shape = (first.n, first.h, first.w, first.c) if first.layout == "NHWC" else (first.n, first.c, first.h, first.w)
    both = build.finish([last.add(build, first.add(build, build.input("x", shape, first.dtype)))])
    subjects = {"first": (first.graph(), config), "both": (both, config)}
    return Case(f"{first}\n    without {last}", subjects, at_most(1.03, "first", "both"))


@law("transposed convolutions multiply at most 1.8 times what they need, and no kernel is slower than a larger one")
def transposed(rng: Random, config: Config) -> Case | None:
    """The larger kernel has the next multiple of the stride. Images and signals."""
    dtype, side = rng.choice(layers.types(config)), layers.size(rng, 6, 40)
    kernel, stride = rng.choice((2, 3, 3, 3, 5, 5, 5, 7, 9)), rng.choice((2, 2, 3, 3, 4))
    parts, flat = rng.choice((1, 1, 1, 2, 4)), rng.random() < 0.2
    c, o = (max(parts, layers.size(rng, 4, 128)) // parts * parts for _ in range(2))
    layout, out = rng.choice(("NHWC", "NHWC", "NCHW")), side * stride
    height = 1 if flat else side
    if height * side * c * o * kernel**2 > layers.MOST_MACS:
        return None

    def graph(size: int) -> Graph:
        build = GraphBuilder("transposed")
        x = build.input("x", (1, height, side, c) if layout == "NHWC" else (1, c, height, side), dtype)
        weights = layers.constant(build, (c, o // parts, 1 if flat else size, size), dtype)
        total = (side - 1) * stride + size - out
        before = max(total, 0) // 2
        pads = (before, before, max(total, 0) - before, max(total, 0) - before)
        attrs = {
            "layout": layout, "stride": (1 if flat else stride, stride), "dilation": (1, 1), "groups": parts,
            "pads": (0, pads[1], 0, pads[3]) if flat else pads, "output_hw": (1 if flat else out, out),
        }  # fmt: skip
        return build.finish([layers.requantised(build, build.add("conv_transpose", [x, weights], attrs), dtype)])

    useful = height * side * c * o // parts * kernel ** (1 if flat else 2)

    def ratio(found: Measured) -> float:
        slower = at_most(1.005, "kernel", "multiple of the stride")(found)
        return max(slower, found["kernel"].macs / (1.8 * useful))

    whole = ceil_div(kernel, stride) * stride
    text = (
        f"{dtype.label} {height}x{side} {c}->{o} in {parts} groups, {layout}, kernel {kernel} against {whole}, "
        f"stride {stride}"
    )
    subjects = {"kernel": (graph(kernel), config), "multiple of the stride": (graph(whole), config)}
    return Case(text, subjects, ratio)


MORE = (
    "sram.bytes", "dma.channels", "dram.bandwidth", "cores", "dma.bytes_per_cycle", "vector.lanes", "l2.bytes",
    "exchange.bytes_per_cycle", "clock_hz",
)  # fmt: skip


@law("more of a resource takes at most 1.005 times as long")
def more_hardware(rng: Random, config: Config) -> Case | None:
    """One configuration key is up to twice as large; on a small network, with one core or several."""
    key = rng.choice(MORE)
    if key == "exchange.bytes_per_cycle" or (key != "l2.bytes" and rng.random() < 0.25):
        config = config.with_(**{"cores": config.cores * rng.choice((2, 3, 4)), "exchange.bytes_per_cycle": 16})
    section, _, name = key.partition(".")
    part = getattr(config, section) if name else config
    if part is None:
        return None  # the device lacks the feature
    value = getattr(part, name or section)
    more = value + 1 if key in ("dma.channels", "cores") else value * 2
    # A clock of twice the rate may be more than the technology of the chip allows.
    faster = {"clock": f"{more} Hz", **({"technology.any_clock": True} if config.technology else {})}
    changed = config.with_(**(faster if key == "clock_hz" else {key: more}))
    graph = layers.chain(rng, config, 4)
    return Case(
        f"{key} {value} -> {more} on {config.cores} cores, {describe(graph)}",
        {"less": (graph, config), "more": (graph, changed)},
        at_most(1.005, "more", "less"),
    )


def _on_cores(rng: Random, config: Config, graph: Graph) -> Case:
    """A graph on one core and on several, which share nothing, or have multicast or an exchange network.

    The bound is the time of the smallest job plus the largest of three times: the traffic at the DRAM bandwidth; the
    path of layers, each with a DRAM read and write, set-up, fill and drain; and the weights at the bandwidth of a
    memory for constants. The allowed
    traffic is that of one core if cores share data. Otherwise each core may also load the weights of a layer, or its
    whole input. An exchange network shares data if it is at least as fast as the DRAM.
    """
    count = rng.choice((2, 3, 4, 8))
    kind = rng.choice(({}, {"interconnect.multicast": True}, {"exchange.bytes_per_cycle": 32}))
    many = config.with_(cores=count, **kind)
    convs = [op for op in graph.ops if op.kind == "conv"]
    cycles = config.matrix.setup_cycles + config.matrix.rows + config.matrix.cols
    path = len(convs) * (2 * config.dram.latency_ps + cycles * 10**12 // config.clock_hz)
    sizes = [(op.input(1).nbytes, op.input(0).nbytes) for op in convs]
    more = sum(min((count - 1) * weights, (count + 1) * image) for weights, image in sizes)
    constants = config.constants
    loading = sum(weights for weights, _ in sizes) * 1e12 / constants.bandwidth if constants is not None else 0

    def ratio(found: Measured) -> float:
        one, several = found["one"], found["many"]
        bound = _start_ps(config) + max(several.traffic / dram_model(config).bandwidth * 1e12, path, loading)
        shares = cores_served(many, count, Port.DRAM) > 1
        moved = one.traffic + (0 if shares else more)
        return max(several.time_ps / max(one.time_ps / (0.8 * count), 1.25 * bound), several.traffic / (1.15 * moved))

    subjects = {"one": (graph, config), "many": (graph, many)}
    return Case(f"{count} cores, {kind or 'nothing shared'}: {describe(graph)}", subjects, ratio)


@functools.lru_cache(maxsize=64)
def _start_ps(config: Config) -> float:
    """The time of the smallest job: one element is copied."""
    build = GraphBuilder("smallest")
    return measure(
        build.finish([build.add("transpose", [build.input("x", (1, 1), DType.INT8)], {"perm": (1, 0)})]), config
    ).time_ps


@law(
    "n cores take at most 1 / 0.8 n of the time of one, or 1.25 times a bound, with 1.15 times the traffic", _is_single
)
def cores(rng: Random, config: Config) -> Case | None:
    """A convolution that is large enough to be cut."""
    layer = replace(layers.conv(rng, config, (1, 3), stride=False), n=1, o=256, c=128)
    return _on_cores(rng, config, layer.graph()) if layer.macs <= layers.MOST_MACS else None


@law(
    "networks on n cores take at most 1 / 0.8 n of the time of one, or 1.25 times a bound, with 1.15 times the traffic",
    _is_single,
)
def networks_on_cores(rng: Random, config: Config) -> Case | None:
    """A small network whose values the cores keep in their scratchpads."""
    return _on_cores(rng, config, layers.chain(rng, config, 4))


@law("no layer is faster than its products at the unit's peak, or its bytes at the DRAM's bandwidth")
def bounds(rng: Random, config: Config) -> Case | None:
    """Counts the compulsory bytes: each operand and result once."""
    layer = layers.conv(rng, config)
    element = layer.dtype.itemsize
    bytes_ = element * (layer.n * layer.h * layer.w * layer.c // layer.stride**2)
    bound = max(
        layer.n * math.prod(layer.out_hw) * layer.o * layer.c / capabilities(config).peak_macs[layer.dtype.label],
        bytes_ / config.dram.bandwidth,
    )
    return Case(str(layer), {"layer": (layer.graph(), config)}, lambda found: bound * 1e12 / found["layer"].time_ps)


@law("the order of nodes in a file changes nothing")
def file_order(rng: Random, config: Config) -> Case | None:
    """Two branches, written one after the other or interleaved."""
    base = replace(layers.conv(rng, config, stride=False), n=1)
    base = replace(base, o=min(base.o, 128), c=min(base.c, 128))
    second = replace(base, c=base.o)

    def graph(turns: bool) -> Graph:
        build = GraphBuilder("branches")
        x = build.input("x", (1, base.h, base.w, base.c), base.dtype)
        if turns:
            left, right = base.add(build, x), base.add(build, x)
            left, right = second.add(build, left), second.add(build, right)
        else:
            left = second.add(build, base.add(build, x))
            right = second.add(build, base.add(build, x))
        return build.finish([build.add("concat", [left, right], {"axis": 3})])

    subjects = {"in turns": (graph(True), config), "one after the other": (graph(False), config)}

    def ratio(found: Measured) -> float:
        times = [each.time_ps for each in found.values()]
        return max(times) / min(times)

    return Case(str(base), subjects, ratio)


def describe(graph: Graph) -> str:
    """Return the operators of a graph with the shapes of their results."""
    return ", ".join(f"{op.kind} {list(op.output.shape)}" for op in graph.ops)


@law(
    "what exporters write for an operator takes at most 1.1 times the time and traffic of the operator",
    _computes("float32"),
)
def forms(rng: Random, config: Config) -> Case | None:
    """float32 models as files contain them."""
    name = rng.choice(tuple(FORMS))
    form = rng.choice(tuple(FORMS[name].written))
    single, written = (load(model) for model in models(name, form, rng))
    subjects = {"operator": (single, config), "written": (written, config)}
    shapes = [list(tensor.shape) for tensor in single.inputs]
    return Case(f"{name} {form} of {shapes}", subjects, at_most(1.1, "written", "operator", 1.1))


@law(
    "a quantised file of a few layers takes at most 1.1 times the time and traffic of its network on integers",
    _computes("int8"),
)
def quantized(rng: Random, config: Config) -> Case | None:
    """Files of onnxruntime's quantiser, from random networks; both sides use the file's scales.

    For whole networks, ``bench.quantised`` requires 1.03 and 1.02.
    """
    file, network = file_and_network(rng)
    subjects = {"file": (file, config), "network": (network, config)}
    return Case(describe(network), subjects, at_most(1.1, "file", "network", 1.1))
