"""The kind ``routine``: a call of a registered routine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npusim.errors import InputError, ModelError, NpusimError
from npusim.graph import Op
from npusim.isa.base import Unit
from npusim.ops.base import REQUIRED, Array, Attrs, Inputs, Lowered, Result, define, operand, present
from npusim.routines import Routine, Spec, canonical, find_routine, latest_routine


def routine_attrs(name: str, **params: Any) -> dict[str, Any]:
    """The attributes of a ``routine`` operator that calls the newest version of ``name``. Raises UsageError."""
    return {"name": name, "version": latest_routine(name).version, "params": canonical(params)}


def routine_of(attrs: Attrs) -> Routine:
    """The routine named by attributes. Raises ModelError if it is not registered with this version."""
    routine = find_routine(attrs["name"], attrs["version"])
    if routine is None:
        raise ModelError(f"routine {attrs['name']!r} version {attrs['version']} is not registered")
    return routine


def input_specs(inputs: Inputs) -> list[Spec]:
    """The specs of the inputs that a routine receives."""
    tensors = [operand(inputs, index) for index in range(len(inputs))]
    return [Spec(tensor.shape, tensor.dtype) for tensor in tensors]


def _infer(inputs: Inputs, attrs: Attrs) -> list[Result]:
    params = attrs["params"]
    if not isinstance(params, tuple) or params != canonical(dict(params)):
        raise ModelError("params must be sorted pairs of a name and a plain value, as routine_attrs makes them")
    return [(spec.shape, spec.dtype) for spec in routine_of(attrs).outputs(input_specs(inputs), dict(params))]


def _reference(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    inputs = [np.ascontiguousarray(present(arrays, index)) for index in range(len(arrays))]
    for array in inputs:
        # As on the device: a routine that wrote to its inputs would change values that other operators read.
        array.flags.writeable = False
    outputs = [np.zeros(tensor.shape, tensor.dtype.storage) for tensor in op.outputs]
    routine = routine_of(op.attrs)
    try:
        routine.execute(inputs, dict(op.attrs["params"]), outputs)
    except NpusimError:
        raise
    except Exception as error:  # noqa: BLE001 - the routine may be anybody's
        raise InputError(f"routine {routine.name}: {error}") from None
    return outputs


define(
    "routine",
    "*xs",
    "the result of a routine of npusim.routines, whose rule gives shapes and types; params: sorted pairs",
    infer=_infer,
    reference=_reference,
    unit=lambda attrs: Unit[routine_of(attrs).unit.upper()],
    form=Lowered.TILES,
    attrs={"name": REQUIRED, "version": REQUIRED, "params": REQUIRED},
)
