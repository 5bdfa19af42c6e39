"""All exceptions of npusim.

Every message says what is wrong, where, and what is allowed. Arguments are positional only, because SimPy re-creates
the exception of a failed event as ``type(error)(*error.args)``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

NAMED = 3
"""Number of nodes named in the message for one cause."""


class _Short(reprlib.Repr):
    """A short repr of any value, whatever its size and depth."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers with very many digits.
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"


def shown(value: Any) -> str:
    """A value for messages: its ``repr``, shortened if it is long."""
    return _Short().repr(value)


def named(text: str) -> str:
    """A name for messages: unchanged, or :func:`shown` if it is long or cannot be printed."""
    return text if text.isprintable() and len(text) <= 100 else shown(text)


class NpusimError(Exception):
    """Base class of all errors raised by npusim; ``str(error)`` is one paragraph of text."""


class UsageError(NpusimError):
    """A call is wrong: an unknown name, a missing argument, a missing file."""


class ConfigError(NpusimError):
    """A device description is invalid; one line per problem: ``file: key: must be ..., got ...``."""

    def __init__(self, problems: str | Sequence[str], /) -> None:
        lines = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(lines)
        self.problems: tuple[str, ...] = lines

    def __str__(self) -> str:
        return "\n".join(self.problems)


class ModelError(NpusimError):
    """A model is damaged, inconsistent, or lacks something that the caller must supply (a shape, a file)."""


class OpenInputsError(ModelError):
    """A model leaves dimensions of its inputs open, and no values were given.

    Arguments: the open dimensions; possible sizes of the inputs, by name; values for those that decide shapes or
    branches.
    """

    def __init__(
        self,
        problem: str,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        values: Mapping[str, Any] | None = None,
        /,
    ) -> None:
        super().__init__(problem, shapes, values)
        self.problem, self.shapes, self.values = problem, dict(shapes or {}), dict(values or {})

    def __str__(self) -> str:
        bind = f", bind={self.values}" if self.values else ""
        return self.problem + (f". Give arrays, or sizes: input_shapes={self.shapes}{bind}" if self.shapes else "")


class UnsupportedError(NpusimError):
    """A model requires something that npusim or this device does not support.

    ``reasons``: every problem of the model, not only the first, as (node name, operator, reason).
    """

    def __init__(self, reasons: Sequence[tuple[str, str, str]], /) -> None:
        super().__init__(tuple(reasons))
        self.reasons: tuple[tuple[str, str, str], ...] = tuple(reasons)

    def __str__(self) -> str:
        causes: dict[tuple[str, str], list[str]] = {}
        for name, kind, reason in self.reasons:
            causes.setdefault((kind, reason), []).append(name or "(unnamed)")
        lines = [_cause(names, kind, reason) for (kind, reason), names in causes.items()]
        return lines[0] if len(lines) == 1 else f"{len(self.reasons)} unsupported:\n" + "\n".join(lines)


def _cause(names: Sequence[str], kind: str, reason: str) -> str:
    if len(names) == 1:
        return f"{names[0]} ({kind}): {reason}"
    more = f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    return f"{kind}: {reason}: {len(names)} nodes, {', '.join(names[:NAMED])}{more}"


class UndecidedError(UnsupportedError):
    """The operators of a model, or the sizes of values, depend on data that only a run of the model computes.

    ``value``: the value that decides, while a front end reads the model. ``on_host``: no value does; the host can
    execute the operator.
    """

    value: object = None
    on_host = False


class NeedsValueError(UndecidedError):
    """The operators of a model depend on values of inputs (shapes, branches, loops) that are not known.

    Arguments: the reasons; for each such input an example of its value, a number or a list, or None if unknown.
    """

    def __init__(self, reasons: Sequence[tuple[str, str, str]], values: Mapping[str, Any], /) -> None:
        super().__init__(reasons)
        self.args = (self.reasons, dict(values))
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.values = dict(values)

    @property
    def problem(self) -> str:
        """The reasons without advice."""
        return super().__str__()

    def __str__(self) -> str:
        known = None not in self.values.values()
        return f"{self.problem}\nGive arrays, or values: bind={self.values if known else '...'}"


class CompileError(NpusimError):
    """A supported graph does not fit on this device. States what does not fit and what is available."""


class ScheduleError(CompileError):
    """A schedule does not fit the graph or the device, or requires a combination that the compiler cannot build."""


class InputError(NpusimError):
    """The inputs of a run do not fit the program: name, shape or type."""


class ProgramError(NpusimError):
    """An instruction stream is malformed or accesses memory outside its bounds."""


class CacheError(NpusimError):
    """A program file is truncated, altered, foreign or of another version."""


class CheckpointError(NpusimError):
    """A checkpoint cannot be made here, or is truncated, altered, of another version or of another device."""


class FileCutError(NpusimError):
    """A mapped file was truncated while its bytes were needed."""


class DeviceFaultError(NpusimError):
    """The device reported a fault: (code name, device address, explanation)."""

    def __init__(self, code: str, address: int, explanation: str, /) -> None:
        super().__init__(code, address, explanation)
        self.code = code
        self.address = address

    def __str__(self) -> str:
        code, address, explanation = self.args
        return f"device fault {code} at {address:#x}: {explanation}"


class DeviceGoneError(DeviceFaultError):
    """The device was removed from the bus: all jobs that wait for it fail with this. Arguments as for
    DeviceFaultError."""


class DeviceMemoryError(NpusimError):
    """Simulated device memory is exhausted. States required and available bytes."""


class DriverCheckError(NpusimError):
    """A driver has violated the contract of the device; one text per mistake."""

    def __init__(self, findings: Sequence[str], /) -> None:
        super().__init__(tuple(findings))
        self.findings: tuple[str, ...] = tuple(findings)

    def __str__(self) -> str:
        count = len(self.findings)
        return "\n".join([f"the driver made {count} mistake{'s' * (count > 1)}:", *self.findings])


class QueueFullError(NpusimError):
    """The limit of waiting jobs is reached. Try again when one has ended."""


class DeadlineError(NpusimError):
    """A job has not ended within its budget of simulated time, and was stopped."""


class JobAbortedError(NpusimError):
    """A job was stopped on request, or because its queue was closed."""
