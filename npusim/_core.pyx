"""The one door to the compiled kernels.

A memory operand is a Strided. Every kernel checks that its operands lie inside their memory and raises IndexError where
one does not; ValueError names an element type that it does not support. Results are the same bits with every
instruction set.
"""

from npusim._boxes import bbox_transform, box_nms_limit, detections, proposals
from npusim._codec import compress, compressed_size, expand
from npusim._course import Course, course
from npusim._drain import conv_wide, depthwise, finish
from npusim._dram import serve as dram_serve
from npusim._dram import serve_runs as dram_serve_runs
from npusim._floats import DefaultFloats
from npusim._hash import fingerprint64, lsh_bits, multinomial, philox, search_keys
from npusim._index import gather, scatter
from npusim._lanes import binary, cast, dequantize, quantize, unary
from npusim._matrix import conv
from npusim._move import copy, fill, select
from npusim._operand import Strided
from npusim._reduce import reduce, reduce_finish
from npusim._regions import heatmap_peaks, roi_align, roi_pool
from npusim._rows import arg_reduce, cumsum, lrn, normalize, softmax, topk
from npusim._simd import set_simd, simd
from npusim._tiling import Prices, Search
from npusim._weights import weights
from npusim._window import pool, resample

__all__ = [
    "Course",
    "DefaultFloats",
    "Prices",
    "Search",
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
    "course",
    "cumsum",
    "depthwise",
    "dequantize",
    "detections",
    "dram_serve",
    "dram_serve_runs",
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
