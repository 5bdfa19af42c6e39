"""Builds the kernel modules once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernel_module import Workshop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="session")
def module(shop: Workshop) -> Path:
    return shop.module()


@pytest.fixture(scope="session")
def pin(shop: Workshop) -> Path:
    return shop.pin()
