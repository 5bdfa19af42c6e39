"""Measured points that may not be distributed: read from $NPUSIM_TRUTH, or from shared/truth beside the checkout."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from npusim.validate.replay import SetOutcome, find, replay
from npusim.validate.stats import Summary

TRUTH = Path(os.environ.get("NPUSIM_TRUTH") or Path(__file__).resolve().parents[3] / "shared" / "truth")
MAPE = {  # in percent, by data set and the beginning of the kind of row
    ("tpu_v4_hbm_to_vmem_copy", ""): 5,
    ("tpu_v4_vector_ops", ""): 5,
    ("tpu_v4_matmul", ""): 15,
    ("tpu_v6e_v7_gemm", "TPU_v7 trace"): 5,
    ("tpu_v6e_v7_gemm", "TPU_v6e loop"): 20,
    ("tpu_v6e_v7_gemm", "TPU_v7 loop"): 20,
    ("intel_npu_dma_gt", "VPU_2_7"): 5,
    ("intel_npu_dma_gt", "VPU_4_0"): 12,
    ("intel_npu_dpu_gt", "VPU_2_7 CONVOLUTION"): 15,
    ("intel_npu_dpu_gt", "VPU_4_0 CONVOLUTION"): 15,
    ("intel_npu_dpu_gt", "VPU_2_7 DW"): 20,
    ("intel_npu_dpu_gt", "VPU_4_0 DW"): 20,
}
LONG = ("intel_npu_dpu_gt",)
"""Slow sets; the default tests replay another set of the same chips."""
FOUND = {data.name: (data, path) for data, path in find(TRUTH)[0]} if TRUTH.is_dir() else {}


@functools.cache
def outcome(name: str) -> SetOutcome:
    """Return a data set replayed once for all kinds of its rows."""
    [found] = replay([FOUND[name]])
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(name, kind, marks=pytest.mark.slow) if name in LONG else (name, kind) for name, kind in MAPE],
)
def test_errors_stay_within_what_is_promised(name: str, kind: str) -> None:
    if name not in FOUND:
        pytest.skip(f"{name}: not in {TRUTH}")
    groups: list[Summary] = [value for group, value in outcome(name).groups().items() if group.startswith(kind)]
    points = sum(value.points for value in groups)
    assert points
    assert sum(value.mape * value.points for value in groups) / points <= MAPE[name, kind]
