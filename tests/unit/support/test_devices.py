"""The devices that represent the others in tests."""

from __future__ import annotations

import pytest

from tests.support import devices


def test_every_matrix_model_has_one() -> None:
    assert devices.missing() == set()


def test_a_model_without_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "EACH_MODEL", ("edge", "server", "edge_tpu", "gemmini_mesh16", "rk3588"))
    assert devices.missing() == {("direct", False)}
