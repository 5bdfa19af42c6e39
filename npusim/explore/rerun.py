"""Repeats the run described by a JSON file, and reports the first difference."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.compiler.schedule.schedule_file import parse_schedule
from npusim.errors import ConfigError, UsageError, shown
from npusim.hw.config import Config, config_of
from npusim.hw.files import REPORT
from npusim.report.format import duration
from npusim.runtime.provenance import Origin, bound_value, versions

if TYPE_CHECKING:
    from npusim.program import Program
    from npusim.runtime import Result, Session


RUN_JSON = replace(REPORT, error=UsageError, unreadable=UsageError)
EXEMPT = {
    "compile_from_cache": "the program is compiled afresh",
    "inputs": "no arrays are read",
    "provenance.seed": "no arrays are read",
    "provenance.arithmetic": "none is done, as times do not depend on it",
    "provenance.config_origin": "a path",
    "provenance.model.file": "a path",
    "provenance.versions": "told as a change",
    "provenance.simd": "no result depends on it",
    "provenance.model.digest_of_values": "names the digested data",
    "provenance.model.digest": "compared with the file's, as the record says it is to be taken",
    "provenance.overrides": "compared with the device, which has these values and no longer knows whose they are",
}
"""Values that a rerun does not compare, or compares in another way, by path in the JSON of a run, with the reason.

All other values are compared.
"""
_MOST_DIFFERENCES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Rerun:
    """``same``: all comparable values of the record are equal. Other versions alone are not a difference.

    ``changed``: differences of ``model``, ``versions`` and ``device``. ``first``: the first difference of the
    timelines; empty if there is none. ``differs``: paths in the JSON of each figure or option that differs.
    """

    result: Result
    same: bool
    changed: tuple[str, ...]
    first: str
    differs: tuple[str, ...]

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "same": self.same,
            "changed": list(self.changed),
            "first": self.first,
            "differs": list(self.differs),
            "timeline_digest": self.result.timeline.digest(),
            "time_ps": self.result.time_ps,
        }


def rerun(record: Mapping[str, Any], label: str, model: str | os.PathLike[str] | None = None) -> Rerun:
    """Repeat the run of ``record``, the JSON of a run from file ``label``, and compare all values.

    ``model``: the file of the model; without it, the path in the record, relative to the working directory or to
    ``label``. It is compiled afresh and runs without arithmetic, because times do not depend on it. Raises UsageError
    if the record is incomplete, ConfigError if its device is no longer valid, and errors of compiling and running.
    """
    from npusim.runtime import Session

    told = _provenance(record, label)
    try:
        config = config_of(told["config"], label)
    except ConfigError as error:
        raise ConfigError(
            [f"the device of this run is not valid any more: {each}" for each in error.problems]
        ) from None
    file = _model_file(told["model"], label, model)
    if "decisions" in record:
        raise UsageError(
            f"{label}: this run made decisions that depend on its data, which it does not hold: run {file}"
        )
    digest = _digest(told["model"], config, file)
    first = None
    with Session(config, cache_dir=False) as session:
        program = _compile(session, told["model"], file, label)
        result = session.run(program, timing_only=True)
        if record.get("residents_held") is True and program.resident_bytes:
            first, result = result, session.run(program, timing_only=True)
    if result.origin is None:
        result.origin = Origin("program", str(file), "")
    now = json.loads(json.dumps(result.to_json_dict()))
    if first is not None and "first" in record:  # npusim run adds this member
        now["first"] = first.costs()
    if told["model"].get("kind") == "graph" and told["model"].get("file") is None:
        now["provenance"]["model"]["kind"] = "graph"  # it was not read from a file then
    now["provenance"]["model"].pop("digest", None)
    older = told["versions"].get("npusim") != versions()["npusim"]
    differs = tuple(islice(_differences(record, now, older), _MOST_DIFFERENCES))
    differs += _overridden(told, config)
    changed = [*digest, *_versions_changed(told), *_device_changed(told, config)]
    same = not differs and not digest and (older or config.fingerprint() == told["fingerprint"])
    alike = result.timeline.digest() == record["timeline_digest"]
    return Rerun(result, same, tuple(changed), "" if alike else _first(record, result, label), differs)


def _differences(was: Any, now: Any, older: bool, path: str = "") -> Iterator[str]:
    """Yield each common value that differs. Values that only one side has count as well, unless the record is of
    another version."""
    if path in EXEMPT or (path == "provenance.fingerprint" and older):
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*was, *now]):
            below = f"{path}.{name}" if path else name
            if below in EXEMPT:
                continue
            if name in was and name in now:
                yield from _differences(was[name], now[name], older, below)
            elif not older:
                yield f"{below} is {'gone' if name in was else 'new'}"
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _differences(old, new, older, f"{path}[{number}]")
    elif type(was) is not type(now) or was != now:
        yield f"{path} is {_words(now)}, was {_words(was)}"


def _words(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "a table" if isinstance(value, dict) else shown(value)


def _overridden(told: Mapping[str, Any], config: Config) -> tuple[str, ...]:
    """Overrides in the record that its device does not have."""
    said = told.get("overrides")
    if not isinstance(said, dict):
        return ("provenance.overrides must be an object",)
    values = {key: value for key, value, _, _ in config.resolved()}
    return tuple(
        f"provenance.overrides.{key} is {shown(value)}, the device has {shown(values.get(key))}"
        for key, value in said.items()
        if values.get(key) != value
    )


def _provenance(record: Mapping[str, Any], label: str) -> dict[str, Any]:
    told = record.get("provenance")
    if not isinstance(told, dict) or not isinstance(record.get("timeline_digest"), str):
        raise UsageError(f"{label}: has no provenance; must be the output of npusim run --json")
    wanted = {"config": dict, "versions": dict, "model": dict, "fingerprint": str}
    for name, kind in wanted.items():
        if not isinstance(told.get(name), kind):
            raise UsageError(f"{label}: provenance.{name}: must be {'text' if kind is str else 'an object'}")
    if not all(isinstance(version, str) for version in told["versions"].values()):
        raise UsageError(f"{label}: provenance.versions: must be texts by name")
    if record.get("faults"):
        raise UsageError(f"{label}: faults were injected, but their script is not in the file")
    if told.get("state"):
        raise UsageError(f"{label}: tensors on the device came from an earlier run, which is not in the file")
    return told


def _model_file(told: Mapping[str, Any], label: str, given: str | os.PathLike[str] | None) -> Path:
    if given is not None:
        return Path(given)
    if not isinstance(told.get("file"), str):
        raise UsageError(f"{label}: the model was not a file; give it with --model FILE")
    named = Path(told["file"])
    for path in (named, Path(label).parent / named):
        if os.path.isfile(path):  # a name that no file can have is not found either
            return path
    raise UsageError(f"{named}: no such file, the model of {label}; give it with --model FILE")


def _digest(told: Mapping[str, Any], config: Config, file: Path) -> tuple[str, ...]:
    """Differences between the model file and the recorded one; empty if there are none, or if that is unknown."""
    from npusim.frontends.models import digest_file

    was = told.get("digest")
    if was is None and told.get("file") is None:
        return ()
    values = told.get("digest_of_values") is not False
    digest = digest_file(file) if told.get("kind") == "program" else digest_file(file, config.dram.bytes, values=values)
    if was == digest:
        return ()
    unread = "" if values else ", large weights by their files"
    was = f"{was[:16]}..." if isinstance(was, str) else shown(was)
    return (f"model: {file} is not what it was{unread}: SHA-256 {digest[:16]}..., was {was}",)


def _versions_changed(told: Mapping[str, Any]) -> list[str]:
    now, then = versions(), told["versions"]
    names = [name for name in dict.fromkeys([*then, *now]) if then.get(name) != now.get(name)]
    return [f"versions: {name} is {now.get(name, 'not there')}, was {then.get(name, 'not there')}" for name in names]


def _device_changed(told: Mapping[str, Any], config: Config) -> list[str]:
    if config.fingerprint() == told["fingerprint"]:
        return []
    return ["device: keys were added since, or have another default now"]


def _compile(session: Session, told: Mapping[str, Any], file: Path, label: str) -> Program:
    if told.get("kind") == "program":
        from npusim.cache import read_program

        return read_program(file)
    try:
        bind, deciding = (
            {str(name): bound_value(value) for name, value in dict(told.get(key, {})).items()}
            for key in ("bind", "deciding")
        )
        shapes = {str(name): [int(dim) for dim in dims] for name, dims in dict(told.get("input_shapes", {})).items()}
        rows = int(told.get("cache_rows", 0))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{label}: provenance.model: cannot be read: {error}") from None
    schedule = parse_schedule(told["schedule"], f"{label}: schedule") if "schedule" in told else None
    return session.compile(
        file, shapes, bind=bind, deciding=deciding, cache_rows=rows, timing_only=True, schedule=schedule
    )


def _first(record: Mapping[str, Any], result: Result, label: str) -> str:
    """The first difference between the run and the recorded one: in operators, otherwise in units."""
    was = record.get("ops", [])
    if not isinstance(was, list) or not all(map(_is_row, was)):
        raise UsageError(f"{label}: ops: must be rows in the format of npusim run --json")
    now = [row.to_json_dict() for row in result.ops]
    places = sorted(
        (min(row["start_ps"] for row in (old, new) if row), index)
        for index, (old, new) in enumerate(_aligned(was, now))
        if old != new
    )
    if not places:
        return "no operator's own times: the order or the sizes of its instructions"
    old, new = _aligned(was, now)[places[0][1]]
    if old is None or new is None:
        known = old or new
        assert known is not None
        return f"operator {known['name']!r} at {duration(known['start_ps'])}: is {'new' if old is None else 'gone'}"
    names = [name for name in new if old.get(name) != new[name]]
    values = ", ".join(f"{name} is {new[name]}, was {old.get(name)}" for name in names)
    return f"operator {new['name']!r} at {duration(places[0][0])}: {values}"


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and isinstance(row.get("name"), str) and type(row.get("start_ps")) is int


_Row = dict[str, Any] | None


def _aligned(was: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[tuple[_Row, _Row]]:
    """Pairs of rows of the same operators: by name, and operators of equal name in order."""
    pairs: dict[tuple[str, int], list[_Row]] = {}
    for side, rows in enumerate((was, now)):
        seen: dict[str, int] = {}
        for row in rows:
            seen[row["name"]] = number = seen.get(row["name"], 0) + 1
            pairs.setdefault((row["name"], number), [None, None])[side] = row
    return [(old, new) for old, new in pairs.values()]
