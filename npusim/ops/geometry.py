"""Positions of windows and of resampled pixels, shared by the frontends and facades."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.units import ceil_div


def same_pads(size: int, stride: int, extent: int) -> tuple[int, int]:
    """Padding before and after one dimension for ceil(size / stride) windows of ``extent`` elements, with the odd
    element at the end."""
    total = max((ceil_div(size, stride) - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def resize_positions(size: int, count: int, align_corners: bool, half_pixel: bool) -> npt.NDArray[np.float32]:
    """The position in a dimension of ``size`` pixels of each of ``count`` resampled pixels.

    In float32 throughout, as in training: rounding determines the nearest pixel.
    """
    ends = align_corners and count > 1
    step = np.float32(size - 1) / np.float32(count - 1) if ends else np.float32(size) / np.float32(count)
    centre = np.float32(0.5 if half_pixel else 0)
    return (np.arange(count, dtype=np.float32) + centre) * step


def bilinear_taps(
    size: int, positions: npt.NDArray[np.float32], half_pixel: bool
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The pixels on both sides of each position and their weights by distance: two arrays [count, 2]."""
    place = np.clip(positions - np.float32(0.5 if half_pixel else 0), 0, size - 1)
    low = np.floor(place).astype(np.int32)
    share = (place - low).astype(np.float32)
    return np.stack([low, np.ceil(place).astype(np.int32)], axis=1), np.stack([1 - share, share], axis=1)


def nearest_pixels(size: int, positions: npt.NDArray[np.float32], align_corners: bool) -> npt.NDArray[np.int32]:
    """The pixel that contains each position, or with aligned corners the nearest one."""
    # With aligned corners the grid points are pixels, so the nearest is found by rounding; otherwise by truncation.
    nearest = np.float32(0.5 if align_corners else 0)
    pixels: npt.NDArray[np.int32] = np.minimum(np.floor(positions + nearest), size - 1).astype(np.int32)
    return pixels
