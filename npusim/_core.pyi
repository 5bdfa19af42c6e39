"""Types of the compiled kernels; the meaning of each is in its docstring."""

from collections.abc import Sequence
from typing import Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

_Writable: TypeAlias = npt.NDArray[np.uint8] | bytearray | memoryview
_Readable: TypeAlias = _Writable | bytes
_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int32]

__all__ = [
    "DefaultFloats",
    "Strided",
    "arg_reduce",
    "bbox_transform",
    "binary",
    "box_nms_limit",
    "cast",
    "compress",
    "compressed_size",
    "conv",
    "conv_wide",
    "copy",
    "cumsum",
    "depthwise",
    "dequantize",
    "detections",
    "expand",
    "fill",
    "fingerprint64",
    "finish",
    "gather",
    "heatmap_peaks",
    "lrn",
    "lsh_bits",
    "multinomial",
    "normalize",
    "philox",
    "pool",
    "proposals",
    "quantize",
    "reduce",
    "reduce_finish",
    "resample",
    "roi_align",
    "roi_pool",
    "row_part",
    "scatter",
    "search_keys",
    "select",
    "set_simd",
    "simd",
    "softmax",
    "topk",
    "unary",
    "weights",
]

def simd() -> str: ...
def set_simd(name: str) -> None: ...

@final
class DefaultFloats:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

@final
class Strided:
    def __new__(cls, memory: _Readable, offset: int, strides: tuple[int, ...] = ()) -> Self: ...
    @property
    def offset(self) -> int: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def memory(self) -> _Readable: ...

def copy(dst: Strided, src: Strided, dims: Sequence[int], itemsize: int) -> None: ...
def fill(dst: Strided, dims: Sequence[int], itemsize: int, pattern: int) -> None: ...
def select(itemsize: int, dst: Strided, cond: Strided, a: Strided, b: Strided, dims: Sequence[int]) -> None: ...
def gather(
    dst: Strided, data: Strided, index: Strided, index_dtype: int, dims: Sequence[int], axis_size: int, itemsize: int
) -> int: ...
def scatter(
    dst: Strided,
    updates: Strided,
    index: Strided,
    index_dtype: int,
    dims: Sequence[int],
    axis_size: int,
    dtype: int,
    reduction: int,
) -> int: ...
def unary(
    fn: int, dtype: int, dst: Strided, src: Strided, dims: Sequence[int], p0: float = 0.0, p1: float = 0.0
) -> None: ...
def binary(fn: int, dtype: int, dst: Strided, a: Strided, b: Strided, dims: Sequence[int]) -> None: ...
def cast(dst_dtype: int, dst: Strided, src_dtype: int, src: Strided, dims: Sequence[int]) -> None: ...
def quantize(
    dst_dtype: int, dst: Strided, src_dtype: int, src: Strided, scale: Strided, zero: Strided, dims: Sequence[int]
) -> None: ...
def dequantize(
    dst_dtype: int, dst: Strided, src_dtype: int, src: Strided, scale: Strided, zero: Strided, dims: Sequence[int]
) -> None: ...
def reduce(fn: int, dtype: int, acc: Strided, src: Strided, dims: Sequence[int], first: bool) -> None: ...
def reduce_finish(fn: int, dtype: int, dst: Strided, acc: Strided, dims: Sequence[int], count: int) -> None: ...
def arg_reduce(fn: int, dtype: int, dst: Strided, src: Strided, dims: Sequence[int], select_last: bool) -> None: ...
def topk(
    dtype: int, values: Strided, indices: Strided, src: Strided, dims: Sequence[int], k: int, largest: bool
) -> None: ...
def softmax(dtype: int, dst: Strided, src: Strided, dims: Sequence[int], log: bool, masked: bool = ...) -> None: ...
def row_part(
    fn: int,
    dtype: int,
    dst: Strided,
    src: Strided,
    state: Strided,
    dims: Sequence[int],
    first: bool,
    last: bool,
    count: int,
    at: int,
    epsilon: float,
    exclusive: bool,
    reverse: bool,
    select_last: bool,
) -> None: ...
def normalize(dtype: int, dst: Strided, src: Strided, dims: Sequence[int], mode: int, epsilon: float) -> None: ...
def cumsum(dtype: int, dst: Strided, src: Strided, dims: Sequence[int], exclusive: bool, reverse: bool) -> None: ...
def lrn(
    dtype: int, dst: Strided, src: Strided, dims: Sequence[int], size: int, alpha: float, beta: float, bias: float
) -> None: ...
def pool(
    fn: int,
    dtype: int,
    dst: Strided,
    src: Strided,
    dims: Sequence[int],
    extent: Sequence[int],
    window: Sequence[int],
    pads: Sequence[int],
    count_include_pad: bool,
) -> None: ...
def resample(
    dtype: int,
    dst: Strided,
    src: Strided,
    dims: Sequence[int],
    axis_size: int,
    index: Strided,
    weight: Strided,
    taps: int,
) -> int: ...
def conv(
    x_dtype: int,
    w_dtype: int,
    x: Strided,
    w: Strided,
    acc: Strided,
    dims: Sequence[int],
    window: Sequence[int],
    block: int,
    x_zero: int,
    first: bool,
    w_zero: int = 0,
) -> None: ...
def conv_wide(
    x_dtype: int,
    w_dtype: int,
    x: Strided,
    w: Strided,
    acc: Strided,
    dims: Sequence[int],
    window: Sequence[int],
    block: int,
    x_zero: int,
    first: bool,
    w_zero: int = 0,
) -> None: ...
def depthwise(
    x_dtype: int,
    w_dtype: int,
    x: Strided,
    w: Strided,
    acc: Strided,
    dims: Sequence[int],
    window: Sequence[int],
    x_zero: int,
    first: bool,
    w_zero: int = 0,
    wide: bool = False,
) -> None: ...
def finish(
    acc_dtype: int,
    out_dtype: int,
    dst: Strided,
    acc: Strided,
    dims: Sequence[int],
    bias: Strided | None,
    scale: Strided | None,
    out_zero: int,
    lo: float,
    hi: float,
    out_scale: float = 1.0,
    shift: Strided | None = None,
) -> None: ...
def bbox_transform(rois: _Floats, deltas: _Floats, batches: _Ints, images: _Floats, out: _Floats) -> int: ...
def box_nms_limit(
    scores: _Floats,
    boxes: _Floats,
    batches: _Ints,
    threshold: float,
    most: int,
    kernel: int,
    overlap: float,
    sigma: float,
    least: float,
    out_scores: _Floats,
    out_boxes: _Floats,
    out_classes: _Ints,
    out_batches: _Ints,
) -> int: ...
def proposals(
    scores: _Floats,
    deltas: _Floats,
    anchors: _Floats,
    images: _Floats,
    stride_h: float,
    stride_w: float,
    before: int,
    after: int,
    overlap: float,
    least_size: float,
    out_scores: _Floats,
    out_boxes: _Floats,
    out_batches: _Ints,
) -> int: ...
def detections(
    scores: _Floats,
    deltas: _Floats,
    anchors: _Floats,
    scale: _Floats,
    regular: bool,
    most: int,
    of_box: int,
    of_class: int,
    threshold: float,
    overlap: float,
    first_label: int,
    out_scores: _Floats,
    out_boxes: _Floats,
    out_classes: _Ints,
    out_counts: _Ints,
) -> None: ...
def fingerprint64(data: _Readable | npt.NDArray[np.uint8]) -> int: ...
def lsh_bits(seeds: _Floats, items: npt.NDArray[np.uint8], weights: _Floats, bits: npt.NDArray[np.uint8]) -> None: ...
def search_keys(lookups: _Ints, keys: _Ints, places: _Ints, hits: npt.NDArray[np.uint8]) -> None: ...
def philox(counter: npt.NDArray[np.uint32], key0: int, key1: int, out: npt.NDArray[np.uint32]) -> None: ...
def multinomial(logits: _Floats, key0: int, key1: int, out: _Ints) -> None: ...
def roi_align(
    image: _Floats,
    rois: _Floats,
    batches: _Ints,
    stride_h: float,
    stride_w: float,
    ratio_h: int,
    ratio_w: int,
    out: _Floats,
) -> int: ...
def roi_pool(image: _Floats, rois: _Floats, batches: _Ints, stride_h: float, stride_w: float, out: _Floats) -> int: ...
def heatmap_peaks(maps: _Floats, boxes: _Floats, scores: _Floats, points: _Floats) -> int: ...
def compressed_size(data: _Readable, bits: int) -> int: ...
def compress(data: _Readable, bits: int) -> npt.NDArray[np.uint8]: ...
def expand(out: Strided, stream: Strided, nbytes: int, size: int, bits: int) -> tuple[str, int]: ...
def weights(
    w_dtype: int,
    bits: int,
    out_dtype: int,
    w: Strided,
    out: Strided,
    dims: Sequence[int],
    scale: Strided | None,
    zero: Strided | None,
    block: int,
    skip: int,
) -> None: ...
