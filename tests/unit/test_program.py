"""The constants of a program: views that are written out where the bytes are needed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim._mapped import MappedFile
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import FileCutError, UsageError
from npusim.hw.config import load_config
from npusim.ops.build import GraphBuilder
from npusim.program import Binding, ConstantData, Deferred, Piece


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=5))
def test_pieces_and_gaps_make_the_same_bytes_every_way(layout: list[tuple[int, int, int, bool]]) -> None:
    expected, pieces = b"", []
    for gap, rows, cols, turned in layout:
        array = np.arange(len(expected), len(expected) + rows * cols, dtype=np.int16).reshape(rows, cols)
        piece = array.T if turned else array
        expected += bytes(gap)
        pieces.append((len(expected), piece))
        expected += piece.tobytes()
    expected += bytes(3)
    data = ConstantData(len(expected), pieces)
    assert bytes(data.joined()) == expected
    assert b"".join(bytes(part) for part in data.parts()) == expected
    out = np.full(len(expected), 255, np.uint8)
    data.fill(out)
    assert bytes(out) == expected
    assert data.held_bytes == len(expected)


def test_constants_that_are_left_out_hold_no_memory_and_cannot_be_read() -> None:
    data = ConstantData(5, [], left_out=True)
    assert (data.nbytes, data.held_bytes) == (5, 0)
    assert (list(data.parts()), data.joined().size) == ([], 0)
    with pytest.raises(UsageError, match="without its constants"):
        data.fill(np.zeros(5, np.uint8))


def test_one_dense_piece_is_given_as_it_is() -> None:
    array = np.arange(5, dtype=np.uint8)
    assert np.shares_memory(ConstantData.of(array).joined(), array)
    assert ConstantData(0, []).joined().size == 0


def test_weights_of_a_program_are_views_of_the_models() -> None:
    weights = np.random.default_rng(1).standard_normal((512, 256), np.float32)
    filters = np.random.default_rng(2).standard_normal((64, 8, 3, 3), np.float32)
    builder = GraphBuilder("net", fold=True)
    x = builder.input("x", (1, 512), DType.FLOAT32)
    image = builder.input("image", (1, 8, 8, 8), DType.FLOAT32)
    attrs = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    outputs = [
        builder.add("matmul", [x, builder.const(weights)]),
        builder.add("conv", [image, builder.const(filters)], attrs),
    ]
    program = compile_graph(builder.finish(outputs), load_config("edge"))
    for array in (weights, filters):
        held = sum(piece.nbytes for _, piece in program.constants.pieces if np.shares_memory(_source(piece), array))
        assert held == array.nbytes, "some of the weights have been copied"


def _source(piece: Piece) -> np.ndarray[Any, Any]:
    """Return the data that is read for a piece."""
    return _source(piece.arrays[0]) if isinstance(piece, Deferred) else piece


def test_elements_lie_in_the_first_rows_of_what_there_is_room_for() -> None:
    raw = np.arange(2 * 4 * 3, dtype=np.uint8)
    binding = Binding("x", 2, (2, 1, 3), DType.UINT8, axis=1, capacity=4)
    assert (binding.held, binding.nbytes) == ((2, 4, 3), 24)
    assert binding.elements(raw).tolist() == [[[0, 1, 2]], [[12, 13, 14]]]
    binding.elements(raw)[...] = 7
    assert raw.tolist() == [7] * 3 + list(range(3, 12)) + [7] * 3 + list(range(15, 24))
    scalar = Binding("s", 2, (), DType.UINT8)
    scalar.elements(raw)[...] = 9
    assert (scalar.elements(raw).shape, raw[0]) == ((), 9)


def test_a_deferred_piece_is_computed_where_it_is_read() -> None:
    made: list[int] = []

    def make(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        made.append(array.size)
        return array + np.uint8(1)

    source = np.arange(4, dtype=np.uint8)
    data = ConstantData(8, [(2, Deferred(make, [source], 4))])
    assert (data.nbytes, made) == (8, [])
    source += 10  # not read before
    expected = bytes([0, 0, 11, 12, 13, 14, 0, 0])
    assert bytes(data.joined()) == expected
    out = np.full(8, 255, np.uint8)
    data.fill(out)
    assert bytes(out) == expected
    assert made == [4, 4]


def test_a_deferred_piece_of_a_file_that_was_cut_says_so(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with path.open("rb") as file:
        array = np.frombuffer(
            memoryview(MappedFile(file.fileno(), 2 * mmap.PAGESIZE, mmap.PROT_READ, 0, False)), np.uint8
        )
    data = ConstantData(4, [(0, Deferred(lambda last: last, [array[-4:]], 4))])
    assert not data.lost
    os.truncate(path, 0)
    with pytest.raises(FileCutError):
        data.fill(np.zeros(4, np.uint8))
    assert data.lost
