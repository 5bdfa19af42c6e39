"""Engine tests run on two small devices, without the user's settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hal.onnxifi import engine
from tests.support.onnxifi.engine_client import Runs, connected

DEVICES = "tiny,edge"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:
    """Each test reads settings from its own environment."""
    for name in ("NPUSIM_ONNXIFI_LENIENT", "NPUSIM_ONNXIFI_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NPUSIM_ONNXIFI_BACKENDS", DEVICES)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = engine._State.settings, engine._State.devices
    engine._State.settings, engine._State.devices = None, ()
    yield
    engine._State.settings, engine._State.devices = before


@pytest.fixture
def runs() -> Iterator[Runs]:
    with connected() as found:
        yield found
