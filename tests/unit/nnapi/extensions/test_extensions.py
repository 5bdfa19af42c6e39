"""The registry of vendor extensions."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest

from hal.nnapi import extensions
from hal.nnapi.extensions import ExtensionDefinition, ExtensionOperandType, fibonacci, registry
from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import Extension, ExtensionNameAndPrefix, Model, OperandTypeInformation, Subgraph

KIND = ExtensionOperandType("BYTES", np.dtype(np.uint8), tensor=True)


@pytest.fixture
def registered():
    extension = extensions.register(ExtensionDefinition("org.test.bytes", {7: KIND}))
    yield extension
    extensions.unregister(extension)


def model_with(*names):
    return Model(Subgraph([], [], [], []), extensionNameToPrefix=[ExtensionNameAndPrefix(*pair) for pair in names])


def test_what_is_registered_is_found(registered):
    assert extensions.find_extension("org.test.bytes") is registered
    assert [item.name for item in extensions.registered()] == ["com.example.fibonacci", "org.test.bytes"]


def test_it_describes_itself_to_the_client(registered):
    assert registered.describe() == Extension("org.test.bytes", [OperandTypeInformation(7, True, 1)])


def test_a_model_reaches_its_types_by_its_own_prefixes(registered):
    model = model_with(("org.test.bytes", 5), ("com.example.fibonacci", 9), ("org.test.unknown", 2))
    storage = extensions.storage_of(model)
    assert storage[5 << 16 | 7] == np.uint8
    assert storage[9 << 16 | fibonacci.EXAMPLE_INT64] == np.int64
    assert extensions.definitions_of(model)[9 << 16] is fibonacci.EXTENSION.operations[0]
    assert all(kind in storage for kind in STORAGE)


def test_a_model_without_extensions_has_the_interfaces_types_alone():
    assert extensions.definitions_of(model_with()) is REGISTRY
    assert extensions.storage_of(model_with()) is STORAGE


def test_a_name_is_defined_once(registered):
    with pytest.raises(ValueError, match=r"org\.test\.bytes is already registered"):
        extensions.register(ExtensionDefinition("org.test.bytes"))
    with pytest.raises(ValueError, match="not registered"):
        extensions.unregister(ExtensionDefinition("org.test.bytes"))


@pytest.mark.parametrize("name", ["", "nodots", "Upper.Case", "a b.c", ".x", "x."])
def test_a_name_starts_with_a_domain(name):
    with pytest.raises(ValueError, match="extension name"):
        extensions.register(ExtensionDefinition(name))


@pytest.mark.parametrize("code", [-1, 1 << 16])
def test_codes_have_16_bits(code):
    with pytest.raises(ValueError, match="65535"):
        extensions.register(ExtensionDefinition("org.test.codes", {code: KIND}))


def test_packages_bring_theirs_by_an_entry_point(monkeypatch, caplog):
    good = ExtensionDefinition("org.test.installed", {1: KIND})

    class Point:
        def __init__(self, name, thing):
            self.name, self.value, self._thing = name, f"package:{name}", thing

        def load(self):
            if isinstance(self._thing, Exception):
                raise self._thing
            return self._thing

    points = [Point("b", good), Point("a", ImportError("no such package"))]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: points if group == registry.ENTRY_POINTS else []
    )
    try:
        extensions.load_entry_points()
        extensions.load_entry_points()  # a second device
        assert extensions.find_extension("org.test.installed") is good
        assert "package:a" in caplog.text
        assert "no such package" in caplog.text
    finally:
        extensions.unregister(good)
