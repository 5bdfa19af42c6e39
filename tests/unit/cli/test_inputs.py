"""Invalid input files: the message says what is wrong, in which file, and what is required."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npusim.cli.tensors import random_inputs, read_inputs, write_arrays
from npusim.dtypes import DType
from npusim.errors import InputError, NpusimError, UsageError
from npusim.program import Binding

X = Binding("x", 2, (2, 3), DType.FLOAT32)


def truncated(path: Path) -> None:
    np.save(path, np.ones((2, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-4])


def deep(path: Path) -> None:
    header = "(" * 9000
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())


def several(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(1))


def with_nan(path: Path) -> None:
    array = np.ones((2, 3), np.float32)
    array[1, 0] = np.nan
    np.save(path, array)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda path: np.save(path, np.ones((3, 2), np.float32)),
            "input 'x' must be float32[2, 3], got float32[3, 2] from",
        ),
        (lambda path: np.save(path, np.ones((2, 3))), "input 'x' must be float32[2, 3], got float64[2, 3] from"),
        (lambda path: np.save(path, np.array([{}]), allow_pickle=True), "it holds Python objects; an array"),
        (
            lambda path: path.write_bytes(b"hello"),
            "not a readable .npy file: its header is not one of numpy.save",
        ),
        (lambda path: path.write_bytes(pickle.dumps({})), "its header is not one of numpy.save"),
        (lambda path: path.write_bytes(b""), "its header is not one of numpy.save"),
        (truncated, "not a readable .npy file: it is truncated or damaged"),
        (deep, "not a readable .npy file: it is truncated or damaged"),
        (several, "holds several arrays"),
        (with_nan, "1 of 6 values in"),
        (with_nan, "are NaN, the first at [1, 0]; pass --allow-nan if this is intended"),
    ],
)
def test_a_wrong_file_is_an_input_error(tmp_path: Path, write: Callable[[Path], None], message: str) -> None:
    path = tmp_path / "x.npy"
    write(path)
    with pytest.raises(InputError) as caught:
        read_inputs([f"x={path}"], [X], allow_nan=False)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "pickle" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["x=missing.npy"], "missing.npy: no such file"),
        (["x="], "must be NAME=FILE.npy"),
        (["x=" + "n" * 300], "cannot be read: File name too long"),
        (["y=x.npy"], "the model has no input 'y'; it has 'x'"),
    ],
)
def test_a_wrong_name(texts: list[str], message: str) -> None:
    with pytest.raises(NpusimError) as caught:
        read_inputs(texts, [X], allow_nan=False)
    assert message in str(caught.value)


def test_an_input_given_twice(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    with pytest.raises(UsageError, match="input 'x' is given already"):
        read_inputs([f"x={tmp_path}/x.npy"] * 2, [X], allow_nan=False)


def test_the_only_input_needs_no_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    assert list(read_inputs([str(tmp_path / "x.npy")], [X], allow_nan=False)) == ["x"]


def test_nan_is_accepted_on_request(tmp_path: Path) -> None:
    with_nan(tmp_path / "x.npy")
    assert np.isnan(read_inputs([f"x={tmp_path}/x.npy"], [X], allow_nan=True)["x"]).sum() == 1


def test_the_other_byte_order_and_fortran_order_are_converted(tmp_path: Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    np.save(tmp_path / "x.npy", np.asfortranarray(array))
    read = read_inputs([f"x={tmp_path}/x.npy"], [X], allow_nan=False)["x"]
    assert read.dtype == np.dtype("=f4")
    assert read.flags.c_contiguous
    assert np.array_equal(read, array)


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (DType.FLOAT64, DType.UINT32, DType.UINT64)])
def test_random_inputs_have_the_binding_type(dtype: DType) -> None:
    array = random_inputs([Binding("x", 2, (40,), dtype)], 0)["x"]
    assert array.shape == (40,)
    assert array.dtype.itemsize == dtype.itemsize
    assert len(np.unique(array.view(dtype.storage))) > 1


def test_outputs_are_files_that_stay_in_the_directory(tmp_path: Path) -> None:
    outputs = {"a/b:0": np.arange(3), "../a/b:0": np.arange(4), "a_b_0": np.arange(5), "": np.arange(6)}
    written = write_arrays(tmp_path / "out", outputs)
    assert [path.parent for path in written] == [tmp_path / "out"] * 4
    assert [np.load(path).size for path in written] == [3, 4, 5, 6]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in written)


def test_an_output_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="is a file; a directory is needed"):
        write_arrays(tmp_path / "out", {"y": np.arange(3)})
