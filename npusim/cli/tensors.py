"""Inputs from .npy files or a seed, outputs to .npy files."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy
from numpy.lib.format import MAGIC_PREFIX

from npusim.cli.output import replacing
from npusim.dtypes import DType, bfloat16_to_float32, float32_to_bfloat16, from_storage
from npusim.errors import InputError, UsageError
from npusim.program import Binding, Program
from npusim.untrusted import FileKind

Array = npt.NDArray[Any]
ARRAY = FileKind("input array (.npy)")
_MOST_DIMENSIONS, _MOST_BYTES = 32, 1 << 62
"""Limits of a numpy array: dimensions, and bytes without extents of 0."""


def input_files(texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """``NAME=FILE.npy`` texts by name. The name may be omitted for a model with one input."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        for known in sorted(names, key=len):  # a name may contain "="
            if text.startswith(f"{known}="):
                name, file = known, text[len(known) + 1 :]
        if not equals and len(names) == 1:
            name, file = names[0], text
        elif not name or not file:
            raise UsageError(f"--input {text}: must be NAME=FILE.npy; the model's inputs are {_listed(names)}")
        if name not in names:
            raise InputError(f"--input {text}: the model has no input {name!r}; it has {_listed(names)}")
        if name in found:
            raise UsageError(f"--input {text}: input {name!r} is given already")
        found[name] = Path(file)
    return found


def read_inputs(
    texts: Sequence[str], bindings: Sequence[Binding], allow_nan: bool, bound: Sequence[str] = ()
) -> dict[str, Array]:
    """The arrays of ``NAME=FILE.npy`` texts, each checked against its binding. ``bound`` inputs have none."""
    known = {binding.name: binding for binding in bindings}
    files = input_files(texts, [*known, *bound])
    return {
        name: _read(file, known[name], allow_nan) if name in known else mapped(name, file)
        for name, file in files.items()
    }


def arrays_of_run(model: Path, program: Program, texts: Sequence[str], seed: int, allow_nan: bool) -> dict[str, Array]:
    """The inputs of a run: from files, or random; variables of the model have their first values."""
    from npusim.cache import is_program
    from npusim.frontends.models import variables

    first: dict[str, Array] = {}
    if not is_program(model):
        first = variables(model, program.inputs)[0]
    bindings = [binding for binding in program.inputs if binding.name not in first]
    if texts:
        return {**first, **read_inputs(texts, bindings, allow_nan, list(dict(program.bound)))}
    return {**first, **random_inputs(bindings, seed)}


def random_inputs(bindings: Sequence[Binding], seed: int) -> dict[str, Array]:
    """Arrays of random numbers from a seed: floats from the normal distribution, bytes from their whole range, wider
    integers 0 or 1.

    Wider integers are mostly indices and masks, for which 0 and 1 are nearly always valid.
    """
    generator = np.random.default_rng(seed)
    return {binding.name: _random(binding, generator) for binding in bindings}


def describe_inputs(program: Program, given: Sequence[str], seed: int | None) -> str:
    """One line about the inputs for the report."""
    shapes = ", ".join(map(str, program.inputs)) or "none"
    source = "from files" if given else "not needed" if seed is None else f"random with seed {seed}"
    return ", ".join([shapes, source, *(f"{name} bound to {value}" for name, value in program.bound)])


def write_arrays(directory: Path, arrays: Mapping[str, Array]) -> list[Path]:
    """Write one .npy file per array. Characters that a file name cannot have become ``_``; bfloat16 becomes
    float32."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"--output-dir {directory}: is a file; a directory is needed") from None
    written: list[Path] = []
    for name, array in arrays.items():
        path = directory / f"{_file_stem(name)}.npy"
        if path in written:
            path = directory / f"{_file_stem(name)}.{len(written)}.npy"
        with replacing(path) as draft, draft.open("wb") as file:
            np.save(file, array.astype(np.float32) if array.dtype.kind == "V" else array, allow_pickle=False)
        written.append(path)
    return written


def mapped(name: str, file: Path) -> Array:
    """Map an array in a regular file. Raises UsageError or InputError for a file that is none."""
    try:
        with ARRAY.open(file) as stream:
            return _mapped(file, stream)
    except FileNotFoundError:
        raise UsageError(f"--input {name}={file}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"--input {name}={file}: is a directory") from None
    except OSError as error:
        raise UsageError(f"--input {name}={file}: cannot be read: {error.strerror or error}") from None


def _mapped(file: Path, stream: io.FileIO) -> Array:
    bad = f"{file}: not a readable .npy file"
    magic = stream.read(len(MAGIC_PREFIX))
    if magic.startswith(b"PK"):
        raise InputError(f"{file}: holds several arrays; a .npy file of one is needed")
    if magic != MAGIC_PREFIX:
        raise InputError(f"{bad}: its header is not one of numpy.save")
    stream.seek(0)
    try:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an old header, which is accepted
            shape, fortran, dtype = read_header(stream)
    except Exception:  # noqa: BLE001 - its parser of headers fails in many ways, tokenize.TokenError among them
        raise InputError(f"{bad}: it is truncated or damaged") from None
    if dtype.hasobject:
        raise InputError(f"{bad}: it holds Python objects; an array of numbers is needed")
    extents = [extent for extent in shape if type(extent) is int and extent >= 0]
    sizes = (dtype.itemsize, *(extent for extent in extents if extent))
    if len(extents) < len(shape) or len(shape) > _MOST_DIMENSIONS or not 0 < math.prod(sizes) <= _MOST_BYTES:
        raise InputError(f"{bad}: it is truncated or damaged")
    place, nbytes = stream.tell(), math.prod(shape) * dtype.itemsize
    if place + nbytes > os.fstat(stream.fileno()).st_size:
        raise InputError(f"{bad}: it is truncated or damaged: its header says {nbytes} bytes of data")
    order: Literal["F", "C"] = "F" if fortran else "C"
    if not nbytes:
        return np.empty(shape, dtype, order)
    found: Array = np.memmap(stream, dtype, "r", place, shape, order)
    return found


def _read(file: Path, binding: Binding, allow_nan: bool) -> Array:
    """Check shape and type before the data is read."""
    array = mapped(binding.name, file)
    wanted = from_storage(np.empty(0, binding.dtype.storage), binding.dtype).dtype
    if array.shape != binding.shape or array.dtype.newbyteorder("=") != wanted:
        got = f"{array.dtype.name}{list(array.shape)}"
        raise InputError(f"input {binding.name!r} must be {wanted.name}{list(binding.shape)}, got {got} from {file}")
    array = np.array(array, dtype=wanted, order="C")
    if allow_nan or not binding.dtype.is_float:
        return array
    bad = np.isnan(bfloat16_to_float32(array.view(np.uint16)) if binding.dtype is DType.BFLOAT16 else array)
    count = int(np.count_nonzero(bad))
    if count:
        first = [int(i) for i in np.unravel_index(int(np.argmax(bad)), binding.shape)]
        raise InputError(
            f"input {binding.name!r}: {count} of {array.size} values in {file} are NaN, the first at {first}; "
            "pass --allow-nan if this is intended"
        )
    return array


def _random(binding: Binding, generator: np.random.Generator) -> Array:
    dtype, shape = binding.dtype, binding.shape
    if dtype is DType.BFLOAT16:
        return from_storage(float32_to_bfloat16(generator.standard_normal(shape, np.float32)), dtype)
    if dtype.is_float:
        return generator.standard_normal(shape, np.float32).astype(dtype.storage)
    if dtype in (DType.INT8, DType.UINT8):
        limits = np.iinfo(dtype.storage)
        return generator.integers(limits.min, limits.max, shape, dtype.storage, endpoint=True)
    return generator.integers(0, 1, shape, np.int64, endpoint=True).astype(dtype.storage)


def _file_stem(name: str) -> str:
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".")
    return stem[:200] or "output"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
