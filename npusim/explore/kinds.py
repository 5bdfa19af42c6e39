"""Types of the keys of a space file that have no single value: lists, shapes, tables; and the tables themselves.

They are read, validated and documented like device descriptions (``npusim.hw.keys``).
"""

# ruff: noqa: RUF009 - key() and its kin make dataclass fields
from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from npusim.errors import shown
from npusim.hw.build import Reading, read_section
from npusim.hw.keys import Choice, Count, Ratio, Refuse, Text, ValueType, key, section
from npusim.hw.schema import object_schema

METHODS = ("auto", "exhaustive", "halving", "optuna")
SAMPLERS = ("tpe", "nsga2", "random")


@dataclasses.dataclass(frozen=True)
class Texts(ValueType):
    """A list of texts. ``alone``: a single text is accepted as a list of one."""

    alone: bool = False

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        items = [value] if self.alone and isinstance(value, str) else value
        if isinstance(items, list) and items and all(isinstance(each, str) and each.isprintable() for each in items):
            return tuple(items)
        refuse("", f"must be {'text or ' if self.alone else ''}a list of texts, got {shown(value)}")
        return None

    def text(self, value: Any) -> str:
        return "[" + ", ".join(f'"{each}"' for each in value) + "]"

    def allowed(self) -> str:
        return "text or list of texts" if self.alone else "list of texts"

    def schema(self) -> dict[str, Any]:
        texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"anyOf": [{"type": "string"}, texts]} if self.alone else texts


@dataclasses.dataclass(frozen=True)
class Shape(ValueType):
    """Dimensions of a tensor."""

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if isinstance(value, list) and all(type(dim) is int and dim >= 0 for dim in value):
            return tuple(value)
        refuse("", f"must be a list of whole numbers such as [1, 224, 224, 3], got {shown(value)}")
        return None

    def allowed(self) -> str:
        return "list of whole numbers"

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}


@dataclasses.dataclass(frozen=True)
class TableOf(ValueType):
    """A table with arbitrary names and one type of value."""

    element: ValueType

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if not isinstance(value, Mapping):
            refuse("", f"must be a table, got {shown(value)}")
            return None
        found = {}
        for name, item in value.items():
            found[name] = self.element.read(item, lambda _, problem, name=name: refuse(name, problem), bare)  # type: ignore[misc]
        return found

    def allowed(self) -> str:
        return f"table: {self.element.allowed()}"

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.element.schema()}


@dataclasses.dataclass(frozen=True)
class Numbers(ValueType):
    """The value of an input: a number, a boolean, or a list of them."""

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        items = value if isinstance(value, list) else [value]
        if items and all(isinstance(each, int | float) for each in items):
            return value
        refuse("", f"must be a number, true, false or a list of them, got {shown(value)}")
        return None

    def allowed(self) -> str:
        return "number, true, false, or list of them"

    def schema(self) -> dict[str, Any]:
        number = {"type": ["number", "boolean"]}
        return {"anyOf": [number, {"type": "array", "items": number, "minItems": 1}]}


@dataclasses.dataclass(frozen=True)
class Anything(ValueType):
    """A table that is validated later, when its device is known."""

    texts: bool = False
    fixed: bool = False

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        refuse("", f"must be a table, got {shown(value)}")
        return None

    def allowed(self) -> str:
        what = "values" if self.fixed else "formulas" if self.texts else "lists and ranges"
        return f"table of {what} by key"

    def schema(self) -> dict[str, Any]:
        if self.fixed:
            element: dict[str, Any] = {}
        elif self.texts:
            element = {"type": ["string", "number", "boolean", "object"]}
        else:
            bound = {"type": ["string", "number"]}
            names = ("from", "to", "step", "times")
            element = {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object"}]}
            ranges = {"type": "object", "properties": dict.fromkeys(names, bound), "required": ["from", "to"]}
            element["anyOf"].insert(1, {**ranges, "additionalProperties": False})
        return {"type": "object", "additionalProperties": element}


@dataclasses.dataclass(frozen=True)
class RowsOf(ValueType):
    """``[[name]]`` tables of one class."""

    cls: type[Any]

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if not isinstance(value, list):
            refuse("", f"must be tables [[...]], got {shown(value)}")
            return None
        return tuple(read_section(self.cls, each, str(place), _Below(refuse)) for place, each in enumerate(value, 1))

    def allowed(self) -> str:
        return "tables"

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": object_schema(self.cls), "minItems": 1}


class _Below(Reading):
    """Passes problems of a row to the reading of the file."""

    def __init__(self, refuse: Refuse) -> None:
        super().__init__("")
        self._refuse = refuse

    def refuse(self, path: str, problem: str) -> None:
        self.problems.append(problem)
        self._refuse(path, problem)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VariantConfig:
    """One form of a model; its values override those of the model."""

    name: str = key(Text(), "name of the form; its figures are called MODEL/NAME")
    weight: Fraction = key(Ratio(1 << 20, positive=True), "weight in means over models", Fraction(1))
    shape: tuple[int, ...] | None = key(Shape(), "input shape of a network", None)
    input_shapes: dict[str, tuple[int, ...]] | None = key(TableOf(Shape()), "shapes of inputs, by name", None)
    bind: dict[str, Any] | None = key(TableOf(Numbers()), "values of inputs that become constants", None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A model and its weight."""

    name: str = key(Text(), "name in figures and formulas; default: the name of the file or network", "")
    file: str = key(Text(), "an ONNX file; a path is relative to the space file", "")
    network: str = key(Text(), "a public network by name, without values of weights", "")
    weight: Fraction = key(Ratio(1 << 20, positive=True), "weight in means over models", Fraction(1))
    shape: tuple[int, ...] | None = key(Shape(), "input shape of a network: batch, rows, columns, channels", None)
    input_shapes: dict[str, tuple[int, ...]] | None = key(TableOf(Shape()), "shapes of inputs, by name", None)
    bind: dict[str, Any] | None = key(TableOf(Numbers()), "values of inputs that become constants", None)
    variant: tuple[VariantConfig, ...] | None = key(
        RowsOf(VariantConfig), "forms of the model, each with its own figures", None
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """Selection of the designs to simulate."""

    method: str = key(Choice(METHODS), "auto: exhaustive up to budget designs, halving over more", "auto")
    budget: int = key(Count(1, 1 << 24), "maximum number of simulated designs", 500)
    seed: int = key(Count(0, 1 << 31), "seed of all random choices", 0)
    screen: int = key(
        Count(1, 1 << 24), "halving: maximum number of estimated designs, a sample of a larger space", 200_000
    )
    margin: Fraction = key(
        Ratio(8), "halving: assumed relative error of estimates, within which a design is kept", Fraction(1, 4)
    )
    sampler: str = key(Choice(SAMPLERS), "optuna: the sampler", "tpe")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpaceFile:
    """A space file before its keys of a device are resolved."""

    name: str = key(Text(), "short name; default: the name of the file", "")
    base: tuple[str, ...] = key(Texts(alone=True), "the device to vary, or several: names or paths")
    objectives: tuple[str, ...] = key(
        Texts(alone=True), "figures to minimise, or formulas of them", ("latency", "area")
    )
    constraints: tuple[str, ...] | None = key(Texts(alone=True), "conditions that a design must meet", None)
    set: dict[str, Any] | None = key(
        Anything(fixed=True), "keys of the device with values that replace those of the bases", None
    )
    vary: dict[str, Any] | None = key(Anything(), "keys of the device, or names for formulas, and their values", None)
    derive: dict[str, Any] | None = key(Anything(texts=True), "keys of the device derived from others", None)
    model: tuple[ModelConfig, ...] = key(RowsOf(ModelConfig), "the models that run on the devices")
    search: SearchConfig = section(SearchConfig, "selection of designs")
