"""The run that a JSON describes, once more: the same, or what differs and where first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import ConfigError, UsageError
from npusim.hw.config import Config, config_of
from npusim.report.format import duration
from npusim.runtime.provenance import bound_value, versions

if TYPE_CHECKING:
    from npusim.program import Program
    from npusim.runtime import Result, Session


@dataclass(frozen=True, slots=True, eq=False)
class Rerun:
    """``same``: the digests of the timelines are equal. ``changed``: what is not as it was, ``model``, ``versions`` or
    ``device``, and how; ``first``: where the timelines differ first, empty if they do not."""

    result: Result
    same: bool
    changed: tuple[str, ...]
    first: str

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "same": self.same,
            "changed": list(self.changed),
            "first": self.first,
            "timeline_digest": self.result.timeline.digest(),
            "time_ps": self.result.time_ps,
        }


def rerun(record: Mapping[str, Any], label: str, model: str | os.PathLike[str] | None = None) -> Rerun:
    """Run again what ``record``, the JSON of a run from file ``label``, describes.

    ``model``: the model's file; without it, where the record says, from here or from beside ``label``. Without
    arithmetic, since times do not depend on it, and compiled afresh. Raises UsageError if the record does not say
    enough, ConfigError if its device is none any more, and what compiling and running raise.
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
    changed = _changed(told, config, file)
    with Session(config, cache_dir=False) as session:
        program = _compile(session, told["model"], file, label)
        result = session.run(program, timing_only=True)
        if record.get("residents_held") and program.resident_bytes:
            result = session.run(program, timing_only=True)
    same = result.timeline.digest() == record["timeline_digest"]
    return Rerun(result, same, changed, "" if same else _first(record, result))


def _provenance(record: Mapping[str, Any], label: str) -> dict[str, Any]:
    told = record.get("provenance")
    if not isinstance(told, dict) or not isinstance(record.get("timeline_digest"), str):
        raise UsageError(f"{label}: has no provenance; must be what npusim run --json writes")
    wanted = {"config": dict, "versions": dict, "model": dict, "fingerprint": str}
    for name, kind in wanted.items():
        if not isinstance(told.get(name), kind):
            raise UsageError(f"{label}: provenance.{name}: must be {'text' if kind is str else 'an object'}")
    if told.get("state"):
        raise UsageError(f"{label}: tensors lay on the device from a run before, which is not in the file")
    return told


def _model_file(told: Mapping[str, Any], label: str, given: str | os.PathLike[str] | None) -> Path:
    if given is not None:
        return Path(given)
    if not isinstance(told.get("file"), str):
        raise UsageError(f"{label}: the model was no file; give it with --model FILE")
    named = Path(told["file"])
    beside = Path(label).parent / named
    if not named.is_file() and not beside.is_file():
        raise UsageError(f"{named}: no such file, the model of {label}; give it with --model FILE")
    return named if named.is_file() else beside


def _changed(told: Mapping[str, Any], config: Config, file: Path) -> tuple[str, ...]:
    from npusim.frontends.onnx.external import digest_file

    found = []
    values = told["model"].get("digest_of_values") is not False
    digest = digest_file(file, config.dram.bytes, values=values)
    if told["model"].get("digest") not in (None, digest):
        unread = "" if values else ", large weights by their files"
        found.append(
            f"model: {file} is not what it was{unread}: SHA-256 {digest[:16]}..., was {told['model']['digest'][:16]}..."
        )
    now = versions()
    for name, version in told["versions"].items():
        if now.get(name) != version:
            found.append(f"versions: {name} is {now.get(name, 'not there')}, was {version}")
    if config.fingerprint() != told["fingerprint"]:
        found.append("device: keys that it has now have been added or have another default since")
    return tuple(found)


def _compile(session: Session, told: Mapping[str, Any], file: Path, label: str) -> Program:
    if told.get("kind") == "program":
        from npusim.cache import read_program

        return read_program(file)
    try:
        bind = {str(name): bound_value(value) for name, value in dict(told.get("bind", {})).items()}
        shapes = {str(name): [int(dim) for dim in dims] for name, dims in dict(told.get("input_shapes", {})).items()}
        rows = int(told.get("cache_rows", 0))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{label}: provenance.model: cannot be read: {error}") from None
    return session.compile(file, shapes, bind=bind, cache_rows=rows, timing_only=True)


def _first(record: Mapping[str, Any], result: Result) -> str:
    """Where the run differs first from the one that is told of, in its operators, else in its units."""
    was = [dict(row) for row in record.get("ops", ())]
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


_Row = dict[str, Any] | None


def _aligned(was: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[tuple[_Row, _Row]]:
    """Rows of the same operators side by side: by name, and of several of one name in their order."""
    pairs: dict[tuple[str, int], list[_Row]] = {}
    for side, rows in enumerate((was, now)):
        seen: dict[str, int] = {}
        for row in rows:
            seen[row["name"]] = number = seen.get(row["name"], 0) + 1
            pairs.setdefault((row["name"], number), [None, None])[side] = row
    return [(old, new) for old, new in pairs.values()]
