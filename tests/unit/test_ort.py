"""npusim.ort: the path of the library, and what ``register`` says."""

from __future__ import annotations

import sys
import types

import pytest

import npusim.ort
from npusim.errors import UsageError


def test_the_library_is_there() -> None:
    assert npusim.ort.library().name == "libnpusim-ort.so"
    assert npusim.ort.library().is_file()


def test_a_library_that_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npusim.ort.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="not installed"):
        npusim.ort.library()


@pytest.mark.parametrize(("version", "virtual", "needed"), [("1.22.1", False, "1.23"), ("1.23.2", True, "1.24")])
def test_versions_that_are_too_old(monkeypatch: pytest.MonkeyPatch, version: str, virtual: bool, needed: str) -> None:
    module = types.ModuleType("onnxruntime")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    with pytest.raises(UsageError, match=f"onnxruntime {needed} or newer, this is {version}"):
        npusim.ort.register(virtual=virtual)


def test_a_version_that_ignores_the_name(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Before 1.25 the names in ``providers=`` are those of built-in providers alone."""
    registered: dict[str, str] = {}
    module = types.ModuleType("onnxruntime")
    module.__dict__.update(
        __version__="1.24.4",
        register_execution_provider_library=registered.__setitem__,
        get_ep_devices=lambda: [types.SimpleNamespace(ep_name=name) for name in ("CPU", *registered)],
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    assert [device.ep_name for device in npusim.ort.register()] == ["npusim"]
    assert "add_provider_for_devices" in caplog.text
    caplog.clear()
    assert [device.ep_name for device in npusim.ort.register()] == ["npusim"]
    assert (registered, caplog.text) == ({"npusim": str(npusim.ort.library())}, "")


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match="pip install onnxruntime"):
        npusim.ort.register()
