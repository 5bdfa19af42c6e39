"""Reads a space file. All problems are reported in one message, with key, value and allowed values."""

from __future__ import annotations

import functools
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npusim.errors import ConfigError, shown
from npusim.explore.axes import RANGE, SpaceAxis, config_key, config_keys, name_of, read_axis
from npusim.explore.figures import FIGURES
from npusim.explore.formula import FLAG, TEXT, Formula, FormulaError, FormulaScope, Name, condition, formula, noun
from npusim.explore.kinds import SpaceFile
from npusim.explore.space import MOST_DESIGNS, Derived, Space
from npusim.explore.workloads import Workload, workloads
from npusim.hw.build import Reading, read_section
from npusim.hw.config import Config, load_config
from npusim.hw.keys import Section, ValueType, entries
from npusim.untrusted import TOML_BYTES, FileKind

MOST_KEYS = 256
"""Limit of the keys that vary or are derived."""
SPACE = FileKind("space file", TOML_BYTES, ConfigError, ConfigError)


def read_space(source: str | os.PathLike[str]) -> Space:
    """The space described by a TOML file. Raises ConfigError with all its problems."""
    path = Path(source)
    label = os.fspath(source)
    return make_space(SPACE.toml(path, label), label, path.parent, path.stem)


def make_space(
    plain: Mapping[str, Any],
    label: str = "space",
    folder: Path = Path(),
    name: str = "space",
    given: Sequence[Workload] = (),
) -> Space:
    """The space of a TOML table. ``given``: models in addition to those that it names. Raises ConfigError."""
    reading = Reading(label)
    if given and "model" not in plain:
        plain = {**plain, "model": []}
    elif not plain.get("model", True):
        reading.refuse("model", "must have at least one table [[model]]")
    file = read_section(SpaceFile, plain, "", reading)
    if file is None:  # None may be due to keys that nothing else depends on, so further problems are collected
        needed = {entry.name for _, entry in entries(SpaceFile)} - {"name", "search"}
        file = read_section(SpaceFile, {key: plain[key] for key in plain if key in needed}, "", Reading(label))
    if file is None:
        raise ConfigError(reading.problems)
    made = _Maker(file, reading, folder, given).make(file.name or name)
    if reading.problems or made is None:
        raise ConfigError(reading.problems)
    return made


class _Maker:
    def __init__(self, file: SpaceFile, reading: Reading, folder: Path, given: Sequence[Workload]) -> None:
        self._file, self._reading, self._folder = file, reading, folder
        self._workloads = list(given)
        self._refused = set[str]()
        """Invalid variables of the space. Formulas that use them are not reported again."""

    def make(self, name: str) -> Space | None:
        bases = self._bases()
        self._load_workloads()
        raw = dict(_flat(self._file.vary or {}))
        formulas = dict(_flat(self._file.derive or {}))
        if len(raw) + len(formulas) > MOST_KEYS:
            self._reading.refuse(
                "vary", f"must have at most {MOST_KEYS} keys together with derive, got {len(raw) + len(formulas)}"
            )
            return None
        own = self._own_names(raw, formulas)
        for key in raw.keys() & formulas.keys():
            self._reading.refuse(f"vary.{key}", "must be in [vary] or in [derive], not in both")
        axes = [axis for key, value in raw.items() if (axis := self._axis(key, value, own)) is not None]
        # A refused key counts as known, so that formulas that use it are not reported as well.
        refused = [key for key in raw if key not in {axis.key for axis in axes}]
        self._refused |= own.intersection(refused)
        derived = self._derived(formulas, axes, own, refused)
        scope = self._scope([axis.key for axis in axes] + refused + list(formulas), own, axes, derived)
        objectives = self._formulas("objectives", self._file.objectives, scope)
        constraints = self._formulas("constraints", self._file.constraints or (), scope)
        size = math.prod((len(bases), *map(len, axes)))
        if size > MOST_DESIGNS:
            self._reading.refuse("vary", f"must have at most 2^63 - 1 designs, got some 2^{size.bit_length() - 1}")
        if self._reading.problems:
            return None
        definition = {
            "bases": [base.name for base in bases],
            "devices": {base.name: base.fingerprint()[:16] for base in bases},
            "keys": [axis.key for axis in axes],
            "vary": {axis.key: list(axis.plain) for axis in axes},
            "derive": {each.key: each.formula.text for each in derived},
        }
        return Space(
            name, tuple(bases), tuple(axes), tuple(derived), tuple(self._workloads), tuple(objectives),
            tuple(constraints), self._file.search, definition, self._reading.label,
        )  # fmt: skip

    def _bases(self) -> list[Config]:
        found: list[Config] = []
        changes = self._changes()
        for source in self._file.base:
            beside = self._folder / source
            try:
                config = load_config(beside if source.endswith(".toml") and os.path.isfile(beside) else source)
                found.append(config.with_(**changes) if changes else config)
            except ConfigError as error:
                for problem in error.problems:
                    self._reading.refuse("base", problem)
        names = [config.name for config in found]
        for again in sorted({name for name in names if names.count(name) > 1}):
            self._reading.refuse("base", f"must name each device once, got {shown(again)} again")
        return found

    def _changes(self) -> dict[str, Any]:
        """The values of ``[set]``, with units as in a description."""
        found = {}
        for key, value in _flat(self._file.set or {}):
            kind = config_key(key)
            if isinstance(kind, str):
                self._reading.refuse(f"set.{key}", kind)
            elif isinstance(kind, Section):
                found[key] = None if value is False and kind.optional else value
            else:
                problems: list[str] = []
                read = kind.read(value, lambda _, problem, found=problems: found.append(problem), False)  # type: ignore[misc]
                for problem in problems:
                    self._reading.refuse(f"set.{key}", problem)
                if not problems:
                    found[key] = kind.raw(read)
        return found

    def _load_workloads(self) -> None:
        for each in workloads(self._file.model, self._folder):
            if isinstance(each, Workload):
                self._workloads.append(each)
            else:
                self._reading.refuse(*each)
        names = [each.name for each in self._workloads]
        for again in sorted({name for name in names if names.count(name) > 1}):
            self._reading.refuse("model", f"must have each name once, got {shown(again)} again; name = says another")

    def _own_names(self, raw: Mapping[str, Any], formulas: Mapping[str, Any]) -> set[str]:
        """Names that a formula uses and that are not keys of a device: variables defined by the space."""
        used = (value for value in formulas.values() if isinstance(value, str))
        wanted = set().union(*map(_words, (*self._file.objectives, *(self._file.constraints or ()), *used)))
        keys = (*raw, *formulas)
        return {key for key in keys if "." not in key and isinstance(config_key(key), str) and _named(key, wanted)}

    def _axis(self, key: str, raw: object, own: set[str]) -> SpaceAxis | None:
        path = f"vary.{key}"
        kind = None if key in own else config_key(key)
        if isinstance(kind, str):
            self._reading.refuse(path, f"{kind}; a variable of your own must be used in a formula")
            return None
        return read_axis(key, raw, kind, lambda problem: self._reading.refuse(path, problem))

    def _derived(
        self, formulas: Mapping[str, Any], axes: Sequence[SpaceAxis], own: set[str], refused: Sequence[str]
    ) -> list[Derived]:
        """The derived keys, in an order in which each depends only on earlier ones."""
        left, found = dict(formulas), list[Derived]()
        words = {key: _words(_text(raw)) for key, raw in formulas.items()}
        while left:
            known = [*(axis.key for axis in axes), *refused, *(each.key for each in found)]
            ready = [key for key in left if not any(_named(other, words[key]) for other in left)]
            if not ready:
                for key in left:
                    self._reading.refuse(f"derive.{key}", f"must not depend on itself, through {', '.join(left)}")
                break
            for key in ready:
                scope = self._scope(known, own, axes, found)
                raw = left.pop(key)
                each = None if words[key] & self._refused else self._derive(key, raw, scope, own)
                if each is not None:
                    found.append(each)
                elif key in own:
                    self._refused.add(key)
        return found

    def _derive(self, key: str, raw: object, scope: FormulaScope, own: set[str]) -> Derived | None:
        path = f"derive.{key}"
        kind: ValueType | Section | str | None = None if key in own else config_key(key)
        if isinstance(kind, str):
            self._reading.refuse(path, f"{kind}; a variable of your own must be used in a formula")
            return None
        if isinstance(kind, Section) or (kind is not None and name_of(kind) is None):
            self._reading.refuse(path, "must be a key with one value, not a table")
            return None
        try:
            made = formula(_text(raw), FormulaScope(scope.names))
        except FormulaError as error:
            self._reading.refuse(path, str(error))
            return None
        wanted = name_of(kind)
        if wanted is not None and made.dim != wanted.dim:
            self._reading.refuse(path, f"must be {noun(wanted.dim)}, got {noun(made.dim)}: {shown(made.text)}")
            return None
        return Derived(key, kind, made)

    def _scope(
        self, varied: Sequence[str], own: set[str], axes: Sequence[SpaceAxis], derived: Sequence[Derived]
    ) -> FormulaScope:
        names = dict(_device_names())
        names |= {axis.key: axis.name for axis in axes if axis.key in own}
        # Stored in SI units, as formulas compute them.
        names |= {each.key: Name(each.formula.dim, size=each.formula.size) for each in derived if each.key in own}
        lasts = [key.rpartition(".")[2] for key in varied]
        often = Counter(lasts)
        for key, last in zip(varied, lasts, strict=True):
            if "." in key and often[last] == 1 and last not in names and key in names:
                names[last] = names[key]
        return FormulaScope(names, FIGURES, tuple(each.name for each in self._workloads))

    def _formulas(self, key: str, texts: Sequence[str], scope: FormulaScope) -> list[Formula]:
        found = []
        for place, text in enumerate(texts, 1):
            if _words(text) & self._refused:
                continue
            try:
                made = condition(text, scope) if key == "constraints" else formula(text, scope)
                if text in texts[: place - 1]:
                    raise FormulaError(f"must occur once, got {shown(text)} again")
                if made.dim in (TEXT, FLAG) and key == "objectives":
                    raise FormulaError(f"must be a number or a quantity, got {noun(made.dim)}: {shown(text)}")
                if key == "objectives" and not made.uses & _figures(scope):
                    raise FormulaError(f"must have a figure of {', '.join(FIGURES)}, got {shown(text)}")
            except FormulaError as error:
                self._reading.refuse(f"{key}.{place}", str(error))
            else:
                found.append(made)
        return found


@functools.cache
def _device_names() -> dict[str, Name]:
    """The types of the keys of a device in formulas."""
    return {key: name for key, kind in config_keys() if (name := name_of(kind)) is not None}


def _figures(scope: FormulaScope) -> set[str]:
    return {*scope.figures, *(f"{figure}({model})" for figure in scope.figures for model in scope.models)}


def _flat(raw: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of nested tables: ``matrix.rows = [...]`` is a table in TOML, but so is a range."""
    for name, value in raw.items():
        if isinstance(value, Mapping) and not set(value) & set(RANGE) and value:
            yield from _flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def _words(text: str) -> set[str]:
    """The names in a formula, without quoted text."""
    return set(re.findall(r"[\w.]+", re.sub(r"'[^']*'|\"[^\"]*\"", "", text)))


def _named(key: str, words: Collection[str]) -> bool:
    """Whether a formula with these words uses a key, by its full name or its last part."""
    return key in words or key.rpartition(".")[2] in words


def _text(raw: object) -> str:
    if isinstance(raw, bool):
        return str(raw)
    return str(raw) if isinstance(raw, str | int | float) else shown(raw)
