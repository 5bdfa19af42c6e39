"""The Routine class and the registry. A routine is named, versioned firmware of the scalar or the vector unit.

Operators whose control flow depends on data (box suppression, hashing, sampling) and those of extensions do not
decompose into the kinds of the graph language. Each becomes a graph operator ``routine`` and one instruction with the
name of the routine, which defines shape rule, cost, cuts and arithmetic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy.typing as npt

from npusim.dtypes import DType
from npusim.errors import ModelError, NpusimError, UsageError
from npusim.work import ScalarWork, VectorWork

Array = npt.NDArray[Any]
Params = Mapping[str, Any]
Value = bool | int | float | str | tuple[Any, ...]
Pairs = tuple[tuple[str, Value], ...]
"""Parameters in canonical form: sorted by name."""

MAX_OPERANDS = 24
MAX_RANK = 8
_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_INT64 = 1 << 63


class Spec(NamedTuple):
    """Shape and element type of one operand."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes in dense storage."""
        return self.size * self.dtype.itemsize


class Cut(NamedTuple):
    """A way to cut a routine into independent pieces: the axis of each operand along which it is cut.

    None: a piece needs the whole operand. All cut operands have the same length along their axes, and every output is
    cut, so that no two pieces write the same element.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


Infer = Callable[[Sequence[Spec], Params], list[Spec]]
Execute = Callable[[Sequence[Array], Params, Sequence[Array]], None]
Work = Callable[[Sequence[Spec], Sequence[Spec], Params], ScalarWork | VectorWork]
Bound = Callable[[Sequence[Spec], Sequence[Spec], Params], int]
Cuts = Callable[[Sequence[Spec], Params], Sequence[Cut]]


@dataclass(frozen=True, slots=True)
class Routine:
    """One routine.

    ``params``: each parameter's type (bool, int, float, str or tuple); all are required. ``infer(inputs, params)``: the
    output specs; raises ModelError for invalid operands or values. It applies to pieces as to the whole: the outputs of
    a piece follow from its inputs. ``execute(inputs, params, outputs)``: read the (read-only) inputs and fill the
    outputs, which are zeros before; arrays are in storage form (see DType.storage) and dense. Any exception becomes a
    data fault of the device. ``work(inputs, outputs, params)``: the charged work; it may depend only on shapes and
    parameters. ``bound(inputs, outputs, params)``: elements in the worst case, if that is more than the charged work.
    ``cuts(inputs, params)``: possible cuts, outermost loop first. A result with a variable number of rows has its
    largest shape, and a separate INT32 output has the count.
    """

    name: str
    version: int
    infer: Infer
    execute: Execute
    work: Work
    params: Mapping[str, type] = field(default_factory=dict)
    cuts: Cuts = field(default=lambda inputs, params: ())
    unit: Literal["scalar", "vector"] = "scalar"
    bound: Bound | None = None

    def steps(self, inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> int:
        """Most elements that ``execute`` processes for any data."""
        work = self.work(inputs, outputs, params)
        charged = work.elements * work.passes if isinstance(work, VectorWork) else work.elements
        return max(charged, self.bound(inputs, outputs, params) if self.bound else 0)

    def check_params(self, params: Params) -> None:
        """Raise ModelError unless exactly the declared parameters are given, each of its type."""
        for name in sorted({*params, *self.params}):
            if name not in self.params:
                known = ", ".join(self.params) or "none"
                raise ModelError(f"routine {self.name}: unknown parameter {name!r}; it has {known}")
            if name not in params:
                raise ModelError(f"routine {self.name}: parameter {name!r} is missing")
            wanted, got = self.params[name], type(params[name])
            if got is not wanted:
                raise ModelError(
                    f"routine {self.name}: parameter {name!r} must be {wanted.__name__}, got {got.__name__}"
                )

    def outputs(self, inputs: Sequence[Spec], params: Params) -> list[Spec]:
        """The outputs for these inputs. Raises ModelError, also for exceptions of the routine's own checks."""
        self.check_params(params)
        if len(inputs) > MAX_OPERANDS:
            raise ModelError(f"routine {self.name}: takes at most {MAX_OPERANDS} inputs, got {len(inputs)}")
        try:
            results = [
                Spec(tuple(int(dim) for dim in shape), DType(dtype)) for shape, dtype in self.infer(inputs, params)
            ]
        except NpusimError:
            raise
        except Exception as error:  # noqa: BLE001 - the routine may be anybody's, its operands may be hostile
            raise ModelError(f"routine {self.name}: {type(error).__name__}: {error}") from None
        if not 1 <= len(results) <= MAX_OPERANDS:
            raise ModelError(f"routine {self.name}: has {len(results)} outputs, 1 to {MAX_OPERANDS} are possible")
        for spec in (*inputs, *results):
            if len(spec.shape) > MAX_RANK or any(not 0 <= dim < 1 << 32 for dim in spec.shape):
                raise ModelError(
                    f"routine {self.name}: {list(spec.shape)} is not a shape of at most {MAX_RANK} dimensions"
                )
        return results


_REGISTRY: dict[tuple[str, int], Routine] = {}


def register_routine(routine: Routine) -> Routine:
    """Register a routine. Raises UsageError if its name and version are registered already."""
    if not _NAME.fullmatch(routine.name) or len(routine.name) > 100:
        raise UsageError(f"routine name must be lower-case words joined by '_' and '.', got {routine.name!r}")
    if not 1 <= routine.version < 1 << 16:
        raise UsageError(f"routine {routine.name}: version must be in [1, 65535], got {routine.version}")
    strange = [name for name, kind in routine.params.items() if kind not in (bool, int, float, str, tuple)]
    if strange:
        raise UsageError(f"routine {routine.name}: parameter {strange[0]!r} must be bool, int, float, str or tuple")
    key = routine.name, routine.version
    if key in _REGISTRY:
        raise UsageError(f"routine {routine.name} version {routine.version} is already registered")
    _REGISTRY[key] = routine
    return routine


def unregister_routine(routine: Routine) -> None:
    """Remove a routine, for example when its package is unloaded. Raises UsageError if it is not the registered one."""
    key = routine.name, routine.version
    if _REGISTRY.get(key) is not routine:
        raise UsageError(f"routine {routine.name} version {routine.version} is not registered")
    del _REGISTRY[key]


def find_routine(name: str, version: int) -> Routine | None:
    """The routine of that name and version, or None."""
    return _REGISTRY.get((name, version))


def latest_routine(name: str) -> Routine:
    """The newest version of a routine. Raises UsageError if there is none."""
    versions = [version for known, version in _REGISTRY if known == name]
    if not versions:
        known = ", ".join(sorted({known for known, _ in _REGISTRY}))
        raise UsageError(f"unknown routine {name!r}; registered: {known}")
    return _REGISTRY[name, max(versions)]


def canonical(params: Params) -> Pairs:
    """Parameters as sorted pairs of plain values. Raises UsageError that names a parameter of another type."""
    for name, value in params.items():
        if not _plain(value):
            raise UsageError(
                f"routine parameter {name!r} must be a bool, 64-bit int, float, str or tuple of these, got {value!r}"
            )
    return tuple(sorted(params.items()))


def _plain(value: Any, depth: int = 3) -> bool:
    if type(value) is tuple:
        return depth > 0 and all(_plain(item, depth - 1) for item in value)
    # By exact type: in Python a bool is an int, and the encoding distinguishes them.
    if type(value) is int:
        return -_INT64 <= value < _INT64
    return type(value) in (bool, float, str)
