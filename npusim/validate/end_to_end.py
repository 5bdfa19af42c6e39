"""Replays of whole networks on whole chips: compiled programs, compared with published times.

Nothing is fitted to a row: a chip has one description, made of published parameters, and a network is its public graph
as a quantised ONNX file, which is compiled like that of a user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

from npusim.errors import UsageError
from npusim.frontends.onnx import check_installed
from npusim.runtime import Result, Session
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded, machine
from npusim.validate.networks import NETWORKS, Shape
from npusim.validate.networks.small import perceptron

_PS = 1e6
"""Picoseconds in a microsecond."""


@dataclass(frozen=True, slots=True)
class _Chip:
    """The config of a machine. ``hosted``: the measurement includes the host. ``boxes_us``: host time in microseconds
    to decode the boxes of an object detector."""

    config: str
    hosted: bool = False
    boxes_us: float = 0


# The compiler of Coral leaves TFLite_Detection_PostProcess to the CPU (github.com/google-coral/edgetpu/issues/515). On
# this board three detectors of 300 x 300 pixels take 16.64, 16.83 and 17.71 ms with it, and 10.98, 12.15 and 12.50 ms
# without. This is the mean (github.com/NobuoTsukamoto/benchmarks, tensorflow/lite/tf1_detection_model_zoo/devboard.md,
# max_detection=10).
_BOXES_US = 5183

_CHIPS = {
    "Google Edge TPU, Coral Dev Board (PCIe)": _Chip("edge_tpu", hosted=True, boxes_us=_BOXES_US),
    "Arm Ethos-U55-128 (FVP)": _Chip("ethos_u55_128"),
    "Rockchip RK3588, one NPU core": _Chip("rk3588_core"),
    "Google TPU v1": _Chip("tpuv1"),
    **{
        f"NVDLA {macs} MAC, {buffer} KB, {rate} GB/s, 1 GHz": _Chip(f"nvdla_{macs}")
        for macs, buffer, rate in (
            (2048, 512, "20"),
            (1024, 256, "15"),
            (512, 256, "10"),
            (256, 256, "5"),
            (128, 256, "2"),
            (64, 128, "1"),
            (32, 128, "0.5"),
        )
    },
}

_NOT_PUBLISHED = {
    "Rockchip RV1126": "the chip's microarchitecture is not published",
    "STM32N6570-DK Neural-ART NPU": "the chip's microarchitecture is not published",
}
_ON_THE_HOST = {
    (
        "Google Edge TPU, Coral Dev Board (PCIe)",
        "DeepLab V3",
    ): "the resize to 513 x 513 and later operators run on the CPU of the host",
}

_NAMES = {
    "mobilenetv1": "mobilenet_v1",
    "mobilenetv2 1.0": "mobilenet_v2",
    "mobilenetv2-12": "mobilenet_v2",
    "mobilenet v1 ssd": "ssd_mobilenet_v1",
    "mobilenet v2 ssd": "ssd_mobilenet_v2",
    "unet mv2": "unet_mobilenet_v2",
    "resnet-50": "resnet50_v1",
    "resnet-50 v1": "resnet50_v1",
    "resnet-50 v2": "resnet50_v2",
    "resnet50-v2-7": "resnet50_v2",
    "resnet-101 v1": "resnet101_v1",
    "resnet-101 v2": "resnet101_v2",
    "resnet-152 v1": "resnet152_v1",
    "resnet-152 v2": "resnet152_v2",
    "wav2letter pruned": "wav2letter",
}
"""Lower-case names in the sources, and the networks that they denote. Other names match after "-" and " " become
"_"."""
_EQUAL_LAYERS = ("MLP", "LST")
"""Prefixes of networks whose layers are all equal, as far as known: products of one batch of rows with weights."""
_LAYERS = re.compile(r"([0-9]+)M weights, ([0-9]+) layers")
_INPUTS: dict[str, Shape] = {"ssd_mobilenet_v1": (1, 300, 300, 3), "ssd_mobilenet_v2": (1, 300, 300, 3)}
"""Networks whose file has another input than stated in the table of the source."""


def networks(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Microseconds of one inference, compiled like a network of a user, for each row that can be expressed."""
    known: dict[tuple[str, str, Shape], Result] = {}
    sessions: dict[str, Session] = {}
    for record in records:
        name, network = record.text("machine"), record.text("network")
        label = f"{name}: {network}"
        reason = _NOT_PUBLISHED.get(name) or _ON_THE_HOST.get((name, network))
        chip, wanted = _CHIPS.get(name), _NAMES.get(network.lower(), re.sub("[- ]", "_", network.lower()))
        shape = _shape(record.text("input shape"))
        if reason is None and chip is None:
            reason = "no config of such a machine"
        layers = _LAYERS.fullmatch(record.text("input shape")) if network[:3] in _EQUAL_LAYERS else None
        if reason is None and layers is None and (wanted not in NETWORKS or shape is None):
            reason = "no graph of that name, or its shapes are not published"
        if reason is None and layers is None:
            reason = _unreadable()
        if reason is not None:
            yield Excluded(label, reason)
            continue
        assert chip is not None
        key = (chip.config, wanted, _INPUTS.get(wanted, shape) or ())
        weights, batch = int(layers[1]) * 10**6 if layers else 0, record.size("batch")
        if key not in known:
            session = sessions.setdefault(chip.config, Session(machine(chip.config), cache_dir=False))
            if layers:
                side = isqrt(weights // int(layers[2]))
                program = session.compile(perceptron(batch, (side, side), int(layers[2])))
            else:
                program = session.compile(NETWORKS[wanted].file(key[2]), timing_only=True)
            known[key] = session.run(program, timing_only=True)
            if machine(chip.config).compiler.resident_weights:
                # The published value is the mean of many inferences, of which only the first loads pinned weights.
                known[key] = session.run(program, timing_only=True)
            session.unload(program)
        result = known[key]
        taken = result.total_ps if chip.hosted else result.time_ps
        remark = "equal square layers: their shapes are not published" if layers else NETWORKS[wanted].remark
        if not layers and NETWORKS[wanted].boxes and chip.boxes_us:
            taken += round(chip.boxes_us * _PS)
            remark = f"with the {chip.boxes_us / 1e3:.1f} ms that decoding boxes takes on its host"
        label += f" ({remark})" if remark else ""
        measured = _microseconds(record, machine(chip.config).clock_hz, 2 * weights * batch)
        yield DataPoint(label, measured, taken / _PS, name)


def _unreadable() -> str | None:
    """Why ONNX files cannot be read here; None if they can."""
    try:
        check_installed()
    except UsageError as error:
        return str(error)
    return None


def _shape(text: str) -> Shape | None:
    """Batch, rows, columns, channels of ``1x224x224x3`` or ``1x3x224x224``; None for other text."""
    if not re.fullmatch(r"[0-9]+(x[0-9]+){1,3}", text):
        return None
    extents = tuple(map(int, text.split("x")))
    if len(extents) == 4 and extents[1] in (1, 3) and extents[3] not in (1, 3):
        extents = (extents[0], *extents[2:], extents[1])
    return extents


def _microseconds(record: DataRow, clock_hz: int, operations: int) -> float:
    """The published figure converted to microseconds per inference of ``operations`` operations."""
    value = record.number("value")
    times = {
        "ms": value * 1e3,
        "us": value,
        "cycles": value * 1e6 / clock_hz,
        "inferences/s": 1e6 / value,
        "TOPS": operations / value / 1e6,
    }
    return record.one_of("unit", times)


_SIZES = (2048, 1024, 512, 256, 128, 64, 32)
"""MACs of the NVDLA designs in the primer, each of which has a config."""


def primer(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Microseconds of ResNet-50 on each NVDLA design estimated in its primer."""
    for record in records:
        macs = record.size("macs_int8")
        label = f"NVDLA {macs} MAC, {record.text('conv_buf_KB')} KB, {record.text('sdram_gbs')} GB/s"
        reason = _unreadable() if macs in _SIZES else "no config of such a machine"
        if reason is not None:
            yield Excluded(label, reason)
            continue
        with Session(machine(f"nvdla_{macs}"), cache_dir=False) as session:
            program = session.compile(NETWORKS["resnet50_v1"].file((1, 224, 224, 3)), timing_only=True)
            taken = session.run(program, timing_only=True).time_ps
        yield DataPoint(
            label, 1e6 / record.number("resnet50_int8_fps"), taken / _PS, f"{record.text('conv_buf_KB')} KB"
        )


SETS = (
    DataSet("nvdla_primer_resnet50", "us", tuple(f"nvdla_{macs}" for macs in _SIZES), primer, every=True),
    DataSet("end_to_end", "us", tuple(dict.fromkeys(chip.config for chip in _CHIPS.values())), networks, every=True),
)
