"""Every line of the contract through the C libraries, called by a client in C that is compiled against the header.

The checks are those of hal.onnxifi.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hal import abi
from tests.support.c_compiler import PROGRAMS, compile_client, needs_gcc
from tests.support.onnxifi.c_library import CDoor
from tests.support.onnxifi.contract import CONTRACT, Client, Line

pytestmark = needs_gcc

LIBRARIES = [library for library in abi.LIBRARIES if "onnxifi" in library.name]


@pytest.fixture(scope="module", params=LIBRARIES, ids=lambda library: library.name)
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CDoor:
    relay = tmp_path_factory.mktemp("relay") / f"relay-{request.param.name}.so"
    compile_client(PROGRAMS / "onnxifi_relay.c", relay, request.param, "-shared", "-fPIC")
    return CDoor(request.param, relay)


@pytest.fixture
def client(door: CDoor) -> Iterator[Client]:
    made = Client(door)
    yield made
    made.close()


@pytest.mark.parametrize("line", CONTRACT.values(), ids=lambda line: line.label)
def test_line(client: Client, line: Line) -> None:
    line.check(client)


def test_there_are_135_lines() -> None:
    assert sorted(CONTRACT) == list(range(1, 136))
