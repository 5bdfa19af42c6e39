"""The only interface to the compiled kernels.

A memory operand is a Strided. Every kernel checks that its operands are inside their memory and raises IndexError
otherwise. ValueError names an unsupported element type. Results are bit-identical with every instruction set.
"""

from npusim.kernels._boxes import bbox_transform, box_nms_limit, detections, proposals
from npusim.kernels._codec import compress, compressed_size, expand
from npusim.kernels._drain import conv_wide, depthwise, finish
from npusim.kernels._floats import DefaultFloats
from npusim.kernels._hash import fingerprint64, lsh_bits, multinomial, philox, search_keys
from npusim.kernels._index import gather, scatter
from npusim.kernels._lanes import binary, cast, dequantize, quantize, unary
from npusim.kernels._matrix import conv
from npusim.kernels._move import copy, fill, select
from npusim.kernels._operand import Strided
from npusim.kernels._reduce import reduce, reduce_finish
from npusim.kernels._regions import heatmap_peaks, roi_align, roi_pool
from npusim.kernels._rows import arg_reduce, cumsum, lrn, normalize, row_part, softmax, topk
from npusim.kernels._simd import set_simd, simd
from npusim.kernels._weights import weights
from npusim.kernels._window import pool, resample

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
