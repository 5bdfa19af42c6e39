"""Measured times of layers and networks, as a CSV file with a header; docs/reference/fit.md describes its columns."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npusim.compiler.schedule.prepared import PreparedGraph
from npusim.errors import InputError, NpusimError
from npusim.explore.evaluate import simulate
from npusim.explore.workloads import Workload
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config
from npusim.hw.sections import HostConfig
from npusim.untrusted import FileKind
from npusim.validate.base import DataRow, read
from npusim.validate.networks import NETWORKS
from npusim.validate.networks.build import Net, Pair

POINTS = FileKind("measured points of fit (CSV)", 1 << 20, InputError, InputError)
MOST_POINTS = 1000
MOST_RUNS = 4096
"""Runs whose times are kept: points may be measurements of one model."""
MOST_EXTENT = 64
MOST_ELEMENTS, MOST_WEIGHTS = 1 << 24, 1 << 26
"""Limits of an input and of the weights of a layer: these are made before the memory of the device refuses them."""
PS_PER_US = 1e6
SCOPES = {"device": "device", "host": "host"}
"""``device``: the time of the job on the device; ``host``: with the part of the host."""


@dataclass(frozen=True)
class MeasuredPoint:
    """A model and its measured time in picoseconds; ``scope``: one of SCOPES."""

    name: str
    graph: PreparedGraph
    measured_ps: float
    scope: str

    def simulated_ps(self, config: Config) -> int:
        """The time on a device. Raises NpusimError if the device cannot run the model."""
        if self.scope == "host":
            return _times(self.graph, config)[1]
        # The host has no part in the time of the job: devices that differ in it alone are one device.
        return _times(self.graph, dataclasses.replace(config, host=HostConfig()))[0]


@functools.lru_cache(MOST_RUNS)
def _times(graph: PreparedGraph, config: Config) -> tuple[int, int]:
    """Picoseconds of the job on the device, and with the part of the host."""
    result = simulate(graph, config)
    return result.time_ps, result.total_ps


def read_points(path: Path, config: Config) -> list[MeasuredPoint]:
    """The points of a file; paths of models are relative to its folder. Raises InputError that names the line."""
    rows = read(path, POINTS)
    if len(rows) > MOST_POINTS:
        raise InputError(f"{path}: must have at most {MOST_POINTS} points, got {len(rows)}")
    graphs: dict[tuple[str, ...], PreparedGraph] = {}
    points = []
    for row in rows:
        measured = row.number("time_us")
        if measured <= 0:
            raise row.refused("time_us", "a time > 0")
        key = (row.text("model"), *(row.text(column, "") for column in ("shape", "channels", "kernel", "stride")))
        if key not in graphs:
            graphs[key] = PreparedGraph(_graph(row, path.parent, config))
        name = row.text("name", " ".join(part for part in key if part))
        points.append(MeasuredPoint(name, graphs[key], measured * PS_PER_US, row.one_of("scope", SCOPES, "device")))
    return points


def _graph(row: DataRow, folder: Path, config: Config) -> Graph:
    model = row.text("model")
    if model in _LAYERS:
        return _layer(model, row)
    if model in NETWORKS:
        source = Workload(model, network=model, shape=tuple(_shape(row)))
    elif model.endswith(".onnx"):
        source = Workload(model, file=folder / model)
    else:
        raise row.refused("model", f"the path of an .onnx file, a network, or one of {', '.join(_LAYERS)}")
    try:
        return source.load(config)
    except NpusimError as error:
        raise row.refused("model", f"a model that can be read ({error})") from None


def _layer(kind: str, row: DataRow) -> Graph:
    shape = _shape(row)
    if len(shape) != (2 if kind == "dense" else 4):
        wanted = "rows and depth such as 1x1024" if kind == "dense" else "batch, rows, columns and channels"
        raise row.refused("shape", wanted)
    rows, cols = _pair(row, "kernel")
    if kind in ("conv", "dense") and shape[-1] * row.size("channels") * rows * cols > MOST_WEIGHTS:
        raise row.refused("channels", f"at most {MOST_WEIGHTS} weights")
    net = Net(kind)
    inputs = [net.input(*shape, name=name) for name in ("x", "y")[: 2 if kind == "add" else 1]]
    return net.finish(_LAYERS[kind](net, inputs, row))


def _shape(row: DataRow) -> list[int]:
    shape = row.shape("shape")
    if math.prod(shape) > MOST_ELEMENTS:
        raise row.refused("shape", f"at most {MOST_ELEMENTS} elements")
    return shape


def _pair(row: DataRow, column: str) -> Pair:
    extents = row.shape(column, "1")
    if len(extents) > 2 or max(extents) > MOST_EXTENT:
        raise row.refused(column, f"one extent, or rows x columns, of at most {MOST_EXTENT}")
    return extents[0], extents[-1]


def _conv(net: Net, inputs: Sequence[Tensor], row: DataRow) -> Tensor:
    return net.conv(inputs[0], row.size("channels"), _pair(row, "kernel"), _pair(row, "stride"), act="")


def _depthwise(net: Net, inputs: Sequence[Tensor], row: DataRow) -> Tensor:
    return net.depthwise(inputs[0], _pair(row, "kernel"), _pair(row, "stride"), act="")


def _dense(net: Net, inputs: Sequence[Tensor], row: DataRow) -> Tensor:
    return net.dense(inputs[0], row.size("channels"))


def _add(net: Net, inputs: Sequence[Tensor], _: DataRow) -> Tensor:
    return net.add(*inputs)


def _maxpool(net: Net, inputs: Sequence[Tensor], row: DataRow) -> Tensor:
    return net.maxpool(inputs[0], _pair(row, "kernel"), _pair(row, "stride"))


_LAYERS: Mapping[str, Callable[[Net, Sequence[Tensor], DataRow], Tensor]] = {
    "conv": _conv,
    "depthwise": _depthwise,
    "dense": _dense,
    "add": _add,
    "maxpool": _maxpool,
}
"""Quantised layers of int8 values and weights. Windows are padded: only the stride changes rows and columns."""
