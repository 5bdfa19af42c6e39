"""ROI_ALIGN, ROI_POOLING, AXIS_ALIGNED_BBOX_TRANSFORM, BOX_WITH_NMS_LIMIT, GENERATE_PROPOSALS,
DETECTION_POSTPROCESSING, HEATMAP_MAX_KEYPOINT: regions and boxes.

They run as routines on real numbers; quantised operands are converted on the way in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npusim.graph import Tensor
from npusim.ops.routine import routine_attrs

from ..types import OperandType, OperationType
from .definition import Rule, define, stated
from .dimensions import Dimensions
from .lowering import Lowering
from .rules import positive, ranks, same_quantisation, scalars
from .signature import F16, F32, Q8, Q8S, Q16, Q16S, SCALAR_OF, Row, forms
from .view import OpView

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)

BOX_SCALE = 0.125
"""The scale of every quantised coordinate; its zero point is 0."""

_FLOAT_ROWS: list[Row] = [{"T": kind, "B": kind, "A": kind, "s": SCALAR_OF[kind]} for kind in (F32, F16)]
_QUANT_ROWS: list[Row] = [{"T": kind, "B": Q16, "A": Q16S, "s": OperandType.FLOAT32} for kind in (Q8, Q8S)]
_ROWS = [*_FLOAT_ROWS, *_QUANT_ROWS]
"""T scores, deltas, images; B boxes and sizes of images; A anchors; s real scalars."""


def _routine(op: Lowering, name: str, inputs: Sequence[Tensor], params: Mapping[str, Any]) -> list[Tensor]:
    return op.add_all("routine", inputs, routine_attrs(name, **params))


def _real(op: Lowering, index: int) -> float:
    return float(op.scalar(index))


def _image(op: Lowering, index: int, layout: int) -> Tensor:
    """Return input ``index`` as real numbers, channels last; scalar input ``layout`` says whether they come first."""
    x = op.real(index)
    return op.transpose(x, _TO_NHWC) if op.scalar(layout) else x


def _regions(op: Lowering, name: str, layout: int, more: Mapping[str, Any]) -> None:
    params = {"height": op.scalar(3), "width": op.scalar(4), "stride_h": _real(op, 5), "stride_w": _real(op, 6)}
    inputs = [_image(op, 0, layout), op.real(1), op.tensor(2)]
    [y] = _routine(op, name, inputs, {**params, **more})
    op.give_real(op.transpose(y, _TO_NCHW) if op.scalar(layout) else y)


def _roi_align(op: Lowering) -> None:
    _regions(op, "npusim.roi_align", 9, {"ratio_h": op.scalar(7), "ratio_w": op.scalar(8)})


def _bbox_transform(op: Lowering) -> None:
    [y] = _routine(op, "npusim.bbox_transform", [op.real(0), op.real(1), op.tensor(2), op.real(3)], {})
    op.give_real(y)


def _give_rows(op: Lowering, results: Sequence[Tensor]) -> None:
    """Set the outputs to the valid rows of each result, by the count in the last one; the first two are real
    numbers."""
    *outputs, count = results
    for index, tensor in enumerate(outputs):
        stored = op.from_real(tensor, op.view.outputs[index]) if index < 2 else tensor
        op.give_counted(stored, count, index)


def _box_nms(op: Lowering) -> None:
    params = {
        "score_threshold": _real(op, 3),
        "most": op.scalar(4),
        "kernel": op.scalar(5),
        "iou_threshold": _real(op, 6),
        "sigma": _real(op, 7),
        "nms_threshold": _real(op, 8),
    }
    _give_rows(op, _routine(op, "npusim.box_nms", [op.real(0), op.real(1), op.tensor(2)], params))


def _proposals(op: Lowering) -> None:
    params = {
        "stride_h": _real(op, 4),
        "stride_w": _real(op, 5),
        "before": op.scalar(6),
        "after": op.scalar(7),
        "iou_threshold": _real(op, 8),
        "least_size": _real(op, 9),
    }
    inputs = [_image(op, 0, 10), _image(op, 1, 10), op.real(2), op.real(3)]
    _give_rows(op, _routine(op, "npusim.proposals", inputs, params))


def _detections(op: Lowering) -> None:
    params = {
        "scale": tuple(_real(op, index) for index in (3, 4, 5, 6)),
        "regular": op.scalar(7),
        "most": op.scalar(8),
        "of_box": op.scalar(9),
        "of_class": op.scalar(10),
        "score_threshold": _real(op, 11),
        "iou_threshold": _real(op, 12),
        "first_label": int(op.scalar(13)),
    }
    scores, boxes, classes, counts = _routine(op, "npusim.detections", [op.real(0), op.real(1), op.real(2)], params)
    op.give_real(scores, 0)
    op.give_real(boxes, 1)
    op.give(classes, 2)
    op.give(counts, 3)


def _heatmap(op: Lowering) -> None:
    scores, points = _routine(op, "npusim.heatmap_peaks", [_image(op, 0, 2), op.real(1)], {})
    op.give_real(scores, 0)
    op.give_real(points, 1)


def _columns(index: int, size: int) -> Rule:
    """The rule that the last dimension of input ``index`` is ``size``."""

    def rule(view: OpView) -> bool:
        dims = view.dims(index)
        return not dims or dims[-1] in (0, size)

    return stated(f"the last dimension of input {index} must be {size}", rule)


def _coordinates(inputs: Sequence[int], outputs: Sequence[int] = ()) -> Rule:
    """The rule that these operands have the scale of coordinates if they are quantised."""

    def rule(view: OpView) -> bool:
        operands = [*(view.inputs[index] for index in inputs), *(view.outputs[index] for index in outputs)]
        return all(
            operand.type not in (Q16, Q16S) or (operand.scale == BOX_SCALE and operand.zeroPoint == 0)
            for operand in operands
        )

    return stated(f"coordinates of type TENSOR_QUANT16 must have scale {BOX_SCALE} and zero point 0", rule)


_RATIOS = scalars("inputs 7 and 8 must be >= 0", lambda ratio: ratio >= 0, 7, 8)
_KERNEL = scalars("input 5 must be 0 (hard), 1 (linear) or 2 (gaussian)", lambda kernel: kernel in (0, 1, 2), 5)

_REGION_DIMS = Dimensions({1: "rois four", 2: "rois"})
_REGION_RULES = (ranks(0, 4), _REGION_DIMS.agree, _columns(1, 4), positive(3, 4, 5, 6), _coordinates((1,)))
define(OperationType.ROI_ALIGN, forms("T B I32 i i s s i i b", "T", _ROWS), _roi_align, *_REGION_RULES, _RATIOS)
define(
    OperationType.ROI_POOLING,
    forms("T B I32 i i s s b", "T", _ROWS),
    lambda op: _regions(op, "npusim.roi_pool", 7, {}),
    *_REGION_RULES,
    same_quantisation(0),
)

define(
    OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
    forms("B T I32 B", "B", _ROWS),
    _bbox_transform,
    Dimensions({0: "rois four", 1: "rois coordinates", 2: "rois", 3: "batches two"}).agree,
    _columns(0, 4),
    _columns(3, 2),
    _coordinates((0, 3), (0,)),
)

define(
    OperationType.BOX_WITH_NMS_LIMIT,
    forms("T B I32 s i i s s s", "T B I32 I32", _ROWS),
    _box_nms,
    Dimensions({0: "rois classes", 1: "rois coordinates", 2: "rois"}).agree,
    _KERNEL,
    same_quantisation(0),
    _coordinates((1,), (1,)),
)

define(
    OperationType.GENERATE_PROPOSALS,
    forms("T T A B s s i i s s b", "T B I32", _ROWS),
    _proposals,
    ranks(0, 4),
    ranks(1, 4),
    Dimensions({2: "anchors four", 3: "batches two"}).agree,
    _columns(2, 4),
    _columns(3, 2),
    positive(4, 5),
    same_quantisation(0),
    _coordinates((2, 3), (1,)),
)

define(
    OperationType.DETECTION_POSTPROCESSING,
    forms("T T T s*4 b i i i s s b", "T T I32 I32", _FLOAT_ROWS),
    _detections,
    Dimensions({0: "batches anchors classes", 1: "batches anchors encoding", 2: "anchors four"}).agree,
    _columns(2, 4),
    positive(3, 4, 5, 6, 8),
)

define(
    OperationType.HEATMAP_MAX_KEYPOINT,
    forms("T B b", "T B", _ROWS),
    _heatmap,
    ranks(0, 4),
    ranks(1, 2),
    _columns(1, 4),
    _coordinates((1,), (1,)),
)
