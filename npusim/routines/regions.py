"""Routines that read regions of images (batch, height, width, channels); float32."""

from __future__ import annotations

from collections.abc import Sequence

from npusim import _core
from npusim.dtypes import DType
from npusim.routines.base import Array, Cut, Params, Routine, Spec, register_routine
from npusim.routines.checks import F32, I32, check_operands, check_rows, traffic, want
from npusim.units import ceil_div
from npusim.work import ScalarWork, VectorWork

MAX_RATIO = 4096
"""Samples along one side of a part of a region."""

_REGION = {"height": int, "width": int, "stride_h": float, "stride_w": float}


def _infer_regions(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("image", 4, F32), ("rois", 2, F32), ("batches", 1, I32))
    image, rois, batches = (spec.shape for spec in inputs)
    want(rois[1:] == (4,) and batches == rois[:1], f"rois must be [n, 4] and batches [n], got {rois} and {batches}")
    want(params["height"] > 0 and params["width"] > 0, "height and width must be > 0")
    want(params["stride_h"] > 0 and params["stride_w"] > 0, "strides must be > 0")
    return [Spec((rois[0], params["height"], params["width"], image[3]), F32)]


def _infer_align(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    for name in ("ratio_h", "ratio_w"):
        want(0 <= params[name] <= MAX_RATIO, f"{name} must be in [0, {MAX_RATIO}], got {params[name]}")
    return _infer_regions(inputs, params)


def _region_cuts(inputs: Sequence[Spec], params: Params) -> list[Cut]:
    """Cut by channels first: the image is the largest operand, and all regions of a piece read it."""
    return [Cut((3, None, None), (3,)), Cut((None, 0, 0), (0,))]


def _align(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    image, rois, batches = inputs
    strides, ratios = (params["stride_h"], params["stride_w"]), (params["ratio_h"], params["ratio_w"])
    check_rows(_core.roi_align(image, rois, batches, *strides, *ratios, outputs[0]), "region")


def _align_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> VectorWork:
    """Four products per sample; if data determines the number of samples, that of the largest region."""
    _, height, width, _ = inputs[0].shape
    rows = params["ratio_h"] or ceil_div(height, params["height"])
    columns = params["ratio_w"] or ceil_div(width, params["width"])
    samples = max(1, rows) * max(1, columns)
    return VectorWork("simple", DType.FLOAT32, outputs[0].size * samples, 4, 16 * outputs[0].size * samples)


def _pool(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    image, rois, batches = inputs
    check_rows(_core.roi_pool(image, rois, batches, params["stride_h"], params["stride_w"], outputs[0]), "region")


def _pool_work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> VectorWork:
    """Each pixel of the largest region once."""
    _, height, width, channels = inputs[0].shape
    pixels = max(outputs[0].size, inputs[1].shape[0] * height * width * channels)
    return VectorWork("simple", DType.FLOAT32, pixels, 1, 4 * (pixels + outputs[0].size))


def _pool_bound(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> int:
    """Neighbouring parts share a pixel on either side; for narrow parts the sum exceeds the number of pixels."""
    _, height, width, channels = inputs[0].shape
    rows, columns = height + 2 * int(params["height"]), width + 2 * int(params["width"])
    return inputs[1].shape[0] * rows * columns * channels


register_routine(
    Routine(
        "npusim.roi_align",
        1,
        _infer_align,
        _align,
        _align_work,
        {**_REGION, "ratio_h": int, "ratio_w": int},
        _region_cuts,
        "vector",
    )
)
"""image [b, h, w, c], rois [n, 4], batches [n] -> [n, height, width, c]."""

register_routine(
    Routine("npusim.roi_pool", 1, _infer_regions, _pool, _pool_work, _REGION, _region_cuts, "vector", _pool_bound)
)
"""image [b, h, w, c], rois [n, 4], batches [n] -> [n, height, width, c]."""


def _infer_heatmap(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("maps", 4, F32), ("boxes", 2, F32))
    maps, boxes = (spec.shape for spec in inputs)
    want(maps[1] == maps[2] >= 2, f"maps must be squares of 2 x 2 or more, got {maps[1]} x {maps[2]}")
    want(boxes == (maps[0], 4), f"boxes must be {[maps[0], 4]}, got {list(boxes)}")
    return [Spec((maps[0], maps[3]), F32), Spec((maps[0], maps[3], 2), F32)]


register_routine(
    Routine(
        "npusim.heatmap_peaks",
        1,
        _infer_heatmap,
        lambda ins, params, outs: check_rows(_core.heatmap_peaks(*ins, *outs), "box"),
        lambda ins, outs, params: ScalarWork(ins[0].size + 32 * outs[0].size, traffic(ins, outs)),
        cuts=lambda inputs, params: [Cut((0, 0), (0, 0)), Cut((3, None), (1, 1))],
    )
)
"""maps [n, s, s, k], boxes [n, 4] -> scores [n, k], points [n, k, 2] (x, y)."""
