"""Small valid operands of the shipped routines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npusim.dtypes import DType

F32, I32 = DType.FLOAT32, DType.INT32
Shapes = Sequence[tuple[int, ...]]

REGIONS = {"height": 2, "width": 3, "stride_h": 2.0, "stride_w": 4.0}
ALIGN = {**REGIONS, "ratio_h": 2, "ratio_w": 5}
NMS = {
    "score_threshold": 0.3, "most": 2, "kernel": 0, "iou_threshold": 0.5, "sigma": 0.5, "nms_threshold": 0.25,
}  # fmt: skip
PROPOSALS = {
    "stride_h": 4.0, "stride_w": 4.0, "before": 7, "after": 3, "iou_threshold": 0.5, "least_size": 1.0,
}  # fmt: skip
DETECTIONS = {
    "scale": (10.0, 10.0, 5.0, 5.0), "regular": True, "most": 3, "of_box": 2, "of_class": 2, "score_threshold": 0.3,
    "iou_threshold": 0.5, "first_label": 1,
}  # fmt: skip

TYPES: dict[str, tuple[list[DType], dict[str, Any], Shapes]] = {
    "bbox_transform": ([F32, F32, I32, F32], {}, [(5, 4), (5, 8), (5,), (2, 2)]),
    "box_nms": ([F32, F32, I32], NMS, [(6, 4), (6, 16), (6,)]),
    "proposals": ([F32] * 4, PROPOSALS, [(2, 3, 4, 5), (2, 3, 4, 20), (5, 4), (2, 2)]),
    "detections": ([F32] * 3, DETECTIONS, [(2, 6, 4), (2, 6, 5), (6, 4)]),
    "heatmap_peaks": ([F32] * 2, {}, [(3, 5, 5, 7), (3, 4)]),
    "roi_align": ([F32, F32, I32], ALIGN, [(2, 7, 8, 3), (5, 4), (5,)]),
    "roi_pool": ([F32, F32, I32], REGIONS, [(2, 7, 8, 3), (5, 4), (5,)]),
    "search_keys": ([I32, I32], {}, [(9,), (5,)]),
    "lsh_bits": ([F32, I32, F32], {}, [(3, 4), (5, 2), (5,)]),
    "multinomial": ([F32, I32], {"samples": 6}, [(2, 5), (2,)]),
}
"""Name: element types, parameters, and matching shapes."""
