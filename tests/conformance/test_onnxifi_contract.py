"""Every line of ONNXIFI's contract through the Python interface."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hal import onnxifi
from tests.support.onnxifi.contract import CONTRACT, Client, Line


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client(onnxifi)
    yield made
    made.close()


@pytest.mark.parametrize("line", [CONTRACT[number] for number in sorted(CONTRACT)], ids=lambda line: line.label)
def test_line(client: Client, line: Line) -> None:
    line.check(client)
