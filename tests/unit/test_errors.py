"""The exception tree: texts, and that errors survive copying, pickling and SimPy."""

from __future__ import annotations

import copy
import pickle

import pytest

from npusim import errors
from npusim.errors import ConfigError, DeviceFaultError, NpusimError, UnsupportedError

EXAMPLES: list[NpusimError] = [
    errors.UsageError("no such thing"),
    ConfigError("a.toml: clock: must be > 0, got 0"),
    ConfigError(["one", "two"]),
    errors.ModelError("broken"),
    UnsupportedError([("conv1", "Conv", "no matrix unit")]),
    UnsupportedError([("a", "A", "x"), ("", "B", "y")]),
    errors.OpenInputsError("'x' is open", {"x": (1, 3)}, {"n": 5}),
    errors.NeedsValueError([("if", "If", "must be a constant")], {"n": 5}),
    errors.CompileError("does not fit"),
    errors.InputError("input 'x' is missing"),
    errors.ProgramError("unknown opcode"),
    errors.CacheError("truncated"),
    DeviceFaultError("DATA", 0x40, "index out of range"),
    errors.DeviceGoneError("UNPLUGGED", 0, "the device is gone from the bus"),
    errors.DeviceMemoryError("needs 5, has 4"),
    errors.DriverCheckError(["no-doorbell at 5 ps: TAIL is 1", "leaked at 7 ps: 256 bytes"]),
    errors.QueueFullError("5 jobs wait"),
    errors.DeadlineError("not within 5 ps"),
    errors.JobAbortedError("on request"),
    errors.CheckpointError("truncated"),
    errors.FileCutError("a mapped file was cut"),
    errors.ScheduleError("layer 3: cannot be built"),
    errors.UndecidedError([("boxes", "NonZero", "its size depends on data")]),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_can_be_made_again_from_their_arguments(error: NpusimError) -> None:
    for again in (type(error)(*error.args), pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)


def test_every_class_is_here_and_under_one_root() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes == {type(error) for error in EXAMPLES} | {NpusimError}
    assert all(issubclass(cls, NpusimError) for cls in classes)
    assert all((cls.__doc__ or "").strip() for cls in classes)


def test_texts() -> None:
    assert str(EXAMPLES[1]) == "a.toml: clock: must be > 0, got 0"
    assert str(EXAMPLES[2]) == "one\ntwo"
    assert str(EXAMPLES[4]) == "conv1 (Conv): no matrix unit"
    assert str(EXAMPLES[5]) == "2 unsupported:\na (A): x\n(unnamed) (B): y"
    assert str(EXAMPLES[6]) == "'x' is open. Give arrays, or sizes: input_shapes={'x': (1, 3)}, bind={'n': 5}"
    assert str(EXAMPLES[7]) == "if (If): must be a constant\nGive arrays, or values: bind={'n': 5}"
    assert str(EXAMPLES[12]) == "device fault DATA at 0x40: index out of range"


def test_refusals_are_one_line_a_cause() -> None:
    reasons = [(f"n{i}", "Foo", "unknown") for i in range(5)] + [
        ("", "Bar", "no"),
        ("m1", "Foo", "new"),
        ("m2", "Foo", "new"),
    ]
    assert str(UnsupportedError(reasons)).splitlines() == [
        "8 unsupported:",
        "Foo: unknown: 5 nodes, n0, n1, n2 and 2 more",
        "(unnamed) (Bar): no",
        "Foo: new: 2 nodes, m1, m2",
    ]
    assert str(UnsupportedError(reasons[:4])) == "Foo: unknown: 4 nodes, n0, n1, n2 and 1 more"


def test_parts() -> None:
    assert ConfigError(["one", "two"]).problems == ("one", "two")
    assert UnsupportedError([("a", "A", "x")]).reasons == (("a", "A", "x"),)
    fault = DeviceFaultError("DMA", 16, "bus error")
    assert (fault.code, fault.address) == ("DMA", 16)
