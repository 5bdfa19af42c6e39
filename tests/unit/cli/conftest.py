"""Run the command line in this process, with the real or the stand-in runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from npusim.cli.app import main
from tests.support.cli import fake_runtime


class Outcome(NamedTuple):
    """What a user sees of one command."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """Return the error text. Fails unless standard error is exactly one message of one paragraph."""
        assert self.err.startswith("npusim: error: "), self.err
        assert "Traceback" not in self.err
        assert "\n\n" not in self.err
        assert "a defect of npusim" not in self.err
        return self.err.removeprefix("npusim: error: ").rstrip("\n")


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "npusim.runtime", fake_runtime)
    monkeypatch.setattr("npusim.frontends.onnx.input_names", lambda model: ["x", "ids"])
    fake_runtime.CALLS.clear()
    fake_runtime.BEHAVIOUR.clear()
    yield
    fake_runtime.BEHAVIOUR.clear()
