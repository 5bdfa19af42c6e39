"""The library, loaded into this process, and a compiled model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.nnapi.c_api import Api, add_model, compiled


@pytest.fixture(scope="session")
def api() -> Api:
    return Api()


@pytest.fixture(scope="session")
def add(api: Api) -> Iterator[int]:
    """A finished compilation of y = a + b, four numbers each, for the first device."""
    model = add_model(api)
    compilation = compiled(api, model)
    yield compilation
    api.Compilation_free(compilation)
    api.Model_free(model)


@pytest.fixture
def execution(api: Api, add: int) -> Iterator[int]:
    made = api.make("Execution_create", add)
    yield made
    api.Execution_free(made)


@pytest.fixture(scope="session")
def open_add(api: Api) -> int:
    """y = a + b of unknown length."""
    return compiled(api, add_model(api, [0], []))
