"""Where the kernel module is built, and the module: once for each file of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernel_module import Workshop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def module(shop: Workshop) -> Path:
    return shop.module()
