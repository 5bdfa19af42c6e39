"""Weights in files: views that know their source, are pickled as references, and detect changes of the file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from npusim.errors import FileCutError, ModelError
from npusim.weights import ArrayOrigin, MissingWeights, WeightFile, check, packed, unpacked, view_of, zeros

COUNT = 3000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of numbers from 0 on."""
    np.arange(COUNT, dtype=np.int32).tofile(tmp_path / "w.bin")
    return tmp_path / "w.bin"


def whole(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return view_of(WeightFile.at(path), 0, (COUNT,), None, np.dtype(np.int32))


def test_a_view_of_a_view_says_where_it_lies_and_is_found_there_again(path: Path) -> None:
    array = whole(path)[4:1004].reshape(100, 10).T[3:, ::7]
    origin = ArrayOrigin.of(array)
    assert origin is not None
    assert (origin.key[:2], origin.offset) == (("file", str(path)), 4 * (4 + 3))
    again = unpacked(pickle.loads(pickle.dumps(packed(array))))
    np.testing.assert_array_equal(again, array)
    assert (again.strides, again.flags.writeable) == (array.strides, False)
    assert ArrayOrigin.of(again) == origin
    assert ArrayOrigin.of(array.copy()) is None


def test_a_file_is_mapped_once_while_somebody_has_it(path: Path) -> None:
    first = WeightFile.at(path)
    assert WeightFile.at(path) is first
    descriptors = len(os.listdir("/proc/self/fd"))
    del first
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2  # of the mapping, and to look at when it was written


@pytest.mark.parametrize("way", ["written", "longer", "shorter"])
def test_who_writes_to_a_file_in_use_is_noticed(path: Path, way: str) -> None:
    array = whole(path)
    check([array])
    with path.open("r+b") as file:
        if way == "written":
            file.write(b"x")
            os.utime(path, ns=(0, 0))
        else:
            file.truncate(4 * COUNT + (1 if way == "longer" else -1))
    with pytest.raises(FileCutError, match="was modified while its weights were in use"):
        check([array])
    assert WeightFile.at(path).stamp.size == path.stat().st_size  # a new user maps the new content


def test_a_file_that_loses_its_name_is_the_same(path: Path) -> None:
    array = whole(path)
    path.unlink()
    check([array])
    assert int(array[-1]) == COUNT - 1


def test_a_pickle_is_of_the_file_that_was_there(path: Path) -> None:
    pickled = pickle.dumps(packed(whole(path)))
    assert len(pickled) < COUNT / 4
    os.utime(path, ns=(0, 0))
    with pytest.raises(ModelError, match=r"w\.bin: is not the file of weights any more that the model was read with"):
        unpacked(pickle.loads(pickled))
    path.unlink()
    with pytest.raises(ModelError, match=r"w\.bin: weights cannot be read: No such file"):
        unpacked(pickle.loads(pickled))


def test_zeros_take_no_memory_and_travel_as_such() -> None:
    array = zeros((1 << 20, 1 << 16), np.float16)  # 128 GiB
    pickled = pickle.dumps(packed(array))
    assert len(pickled) < 300
    again = unpacked(pickle.loads(pickled))
    assert (again.shape, again.dtype, again[-1, -1], again.flags.writeable) == (array.shape, array.dtype, 0, False)
    assert zeros((0, 4), np.int8).shape == (0, 4)


def test_what_a_view_repeats_travels_once() -> None:
    array = np.broadcast_to(np.arange(4.0)[:, None], (4, 1 << 40))
    again = unpacked(pickle.loads(pickle.dumps(packed(array))))
    assert (again.shape, again.strides) == (array.shape, array.strides)
    assert again[:, 5].tolist() == [0, 1, 2, 3]


def test_who_reads_weights_that_are_not_there_is_found_out(tmp_path: Path) -> None:
    source = MissingWeights.of(10_000, "initializer 'w'", tmp_path / "w.bin")
    array = view_of(source, 0, (100, 50), None, np.dtype(np.float16))
    assert array[3:].T.strides == (2, 100)
    check([array])
    again = unpacked(pickle.loads(pickle.dumps(packed(array))))
    check([again])
    assert array[99, 49] == 0
    with pytest.raises(ModelError, match=r"^initializer 'w': its values determine the program, and .*w\.bin is not"):
        check([array])
