"""The file of a load test: the models or the decoder, their request rates, and the duration."""

# ruff: noqa: RUF009 - key() makes dataclass fields
from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from npusim.errors import ConfigError, shown
from npusim.hw.build import Reading, read_section
from npusim.hw.keys import Choice, Count, Quantity, Ratio, Text, key, unknown
from npusim.units import Dimension
from npusim.untrusted import TOML_BYTES, FileKind

SCENARIO = FileKind("load-test scenario", TOML_BYTES, ConfigError, ConfigError)
RINGS, TIMES = "rings", "times"
PRIORITIES = ("low", "medium", "high")
TIME = Quantity(Dimension.TIME, 1, 10**18)
RATE = Ratio(10**9, positive=True)
WORDS = ("batch", "length", "context")
"""The names that may replace numbers in the shapes of the inputs of a decoder."""

Shapes = Mapping[str, tuple[int | str, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RequestSource:
    """The arrivals of requests: one of ``rate`` (per second, Poisson), ``every`` and ``trace`` (a CSV file)."""

    rate: Fraction | None = key(RATE, "requests per second, a Poisson process", None)
    every_ps: int | None = key(TIME, "interval between requests", None)
    trace: str = key(Text(), "a CSV file with a column time; a path is relative to this file", "")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ArrivalLoad(RequestSource):
    """A model that receives requests."""

    name: str = key(Text(), "name in reports")
    file: str = key(Text(), "the model file; a path is relative to this file")
    priority: str = key(Choice(PRIORITIES), "the ring of the device for its jobs", "medium")
    shapes: Shapes = dataclasses.field(default_factory=dict)
    bind: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSource(RequestSource):
    """A decoder: a model for whole prompts and one for a step.

    ``lengths``, ``contexts``, ``batches``: sizes for which programs are compiled; a request uses the next larger one.
    ``prompt``, ``output``: minimum and maximum tokens of a request.
    """

    prefill: str = key(Text(), "the model for a prompt; a path is relative to this file")
    decode: str = key(Text(), "the model for one token of each request in the batch")
    kv_cache: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 48),
        "capacity of the KV cache; 0 = DRAM minus the constants of the models",
        0,
    )
    prefill_shapes: Shapes = dataclasses.field(default_factory=dict)
    decode_shapes: Shapes = dataclasses.field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    prompt: tuple[int, int] = (0, 0)
    output: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """``until_ps``: requests arrive before this time, and all of them are served."""

    device: str = key(Text(), "the device, a name or a file", "edge")
    seed: int = key(Count(0, 1 << 62), "seed of all random numbers", 0)
    until_ps: int = key(TIME, "requests arrive from 0 to this time")
    method: str = key(
        Choice((RINGS, TIMES)), "rings: every job on the device; times: events, with the time of each program", RINGS
    )
    folder: Path = dataclasses.field(default_factory=Path)
    models: tuple[ArrivalLoad, ...] = ()
    decoder: DecoderSource | None = None


_LISTS = {"lengths": 0, "contexts": 0, "batches": 0, "prompt": 2, "output": 2}
"""Keys with lists of integers, and their length; 0: any length, ascending."""
_OF_TRACES = ("prompt", "output")
"""Columns of a trace, in addition to the time."""


def read_scenario(path: Path) -> Scenario:
    """The scenario in a file. Raises ConfigError with all its problems."""
    plain = SCENARIO.toml(path)
    reading = Reading(str(path))
    models, decoder = plain.pop("model", []), plain.pop("decoder", None)
    scenario = read_section(Scenario, plain, "", reading)
    if not isinstance(models, list):
        reading.refuse("model", "must be tables: [[model]]")
        models = []
    loads = [_read(ArrivalLoad, each, f"model[{number}]", reading) for number, each in enumerate(models)]
    served = None if decoder is None else _read(DecoderSource, decoder, "decoder", reading)
    names = [load.name for load in loads if load is not None]
    for name in {name for name in names if names.count(name) > 1}:
        reading.refuse("model", f"names must be unique: {name!r}")
    if bool(models) == (decoder is not None):
        reading.refuse("model", "there must be [[model]] tables, or a [decoder], and not both")
    if reading.problems or scenario is None:
        raise ConfigError(reading.problems)
    found: Scenario = dataclasses.replace(scenario, folder=path.parent, models=tuple(loads), decoder=served)
    return found


def _read(cls: type[Any], plain: object, path: str, reading: Reading) -> Any:
    """A source: keys of a section class, and shapes, lists and values, which such classes do not support."""
    if not isinstance(plain, dict):
        reading.refuse(path, "must be a table")
        return None
    plain = dict(plain)
    extra: dict[str, Any] = {}
    before = len(reading.problems)
    for field in dataclasses.fields(cls):
        name = field.name
        if "kind" in field.metadata:
            continue
        if name in _OF_TRACES and plain.get("trace"):
            if name in plain:
                reading.refuse(f"{path}.{name}", "must not be given with a trace, which has a column for it")
                plain.pop(name)
        elif name in _LISTS:
            extra[name] = _numbers(plain.pop(name, None), _LISTS[name], f"{path}.{name}", reading)
        elif name in plain:
            extra[name] = _table(plain.pop(name), name, f"{path}.{name}", reading, cls is DecoderSource)
    found = read_section(cls, plain, path, reading)
    if found is None or len(reading.problems) > before:
        return None
    if sum((found.rate is not None, found.every_ps is not None, bool(found.trace))) != 1:
        reading.refuse(path, "must have one of rate, every and trace")
        return None
    return dataclasses.replace(found, **extra)


def _numbers(value: object, count: int, path: str, reading: Reading) -> tuple[int, ...]:
    if count and isinstance(value, int) and not isinstance(value, bool):
        value = [value] * count
    legal = (
        isinstance(value, list)
        and value
        and all(isinstance(each, int) and not isinstance(each, bool) and 0 < each <= 1 << 30 for each in value)
        and value == sorted(value)
        and (len(value) == count if count else len(set(value)) == len(value))
    )
    if not legal:
        wanted = "a whole number, or a minimum and a maximum" if count else "increasing whole numbers"
        said = f"missing; must be given: {wanted}" if value is None else f"must be {wanted}, got {shown(value)}"
        reading.refuse(path, said)
        return ()
    assert isinstance(value, list)
    return tuple(value)


def _table(value: object, name: str, path: str, reading: Reading, words: bool) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        reading.refuse(path, "must be a table by input")
        return {}
    if not name.endswith("shapes"):
        return value
    for tensor, shape in value.items():
        if not isinstance(shape, list):
            reading.refuse(f"{path}.{tensor}", "must be a list of dimensions")
            continue
        for dim in shape:
            if isinstance(dim, str) and words and dim not in WORDS:
                reading.refuse(f"{path}.{tensor}", unknown(dim, WORDS))
            elif not (words and isinstance(dim, str)) and (
                isinstance(dim, bool) or not isinstance(dim, int) or dim < 0
            ):
                reading.refuse(f"{path}.{tensor}", f"must be whole numbers, got {dim!r}")
    return {tensor: tuple(shape) if isinstance(shape, list) else () for tensor, shape in value.items()}
