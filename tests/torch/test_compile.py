"""torch.compile with the device as its backend, and npusim.torch.run: ``make torch``. Skipped without torch."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make torch installs it")
pytest.importorskip("onnxscript", reason="make torch installs it")

from npusim.errors import ModelError  # noqa: E402
from npusim.torch import run, trace  # noqa: E402

nn: Any = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's deprecation warnings
TOLERANCE = 1e-3
OPTIONS = {"config": "edge", "cache_dir": False}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def leaves(value: Any) -> list[Any]:
    """The tensors and numbers in the result of a module."""
    return torch.utils._pytree.tree_leaves(value)


def check(model: Any, make: Callable[[int], tuple[Any, ...]], steps: int = 2, tolerance: float = TOLERANCE) -> Any:
    """Compare some calls of the compiled model with eager mode: outputs, and what is left in the arguments.

    Returns the trace of the compiled calls.
    """
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend="npusim", options={**OPTIONS, "strict": True})
    with trace() as found:
        for step in range(steps):
            wanted_arguments, arguments = make(step), make(step)
            wanted, got = model(*wanted_arguments), compiled(*arguments)
            for want, have in zip(leaves((wanted, wanted_arguments)), leaves((got, arguments)), strict=True):
                if torch.is_tensor(want):
                    assert have.shape == want.shape
                    assert have.dtype == want.dtype
                    torch.testing.assert_close(
                        have, want, rtol=tolerance, atol=tolerance * float(want.float().abs().max())
                    )
                else:
                    assert have == want
    for name, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)
    return found


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu_(self.first(x))
        y = self.norm(self.second(x))
        y += x
        return self.head(y.relu_().mean((2, 3)))


class Cached(nn.Module):
    """A decoder's attention whose cache is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Any, at: Any, keys: Any, values: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        keys.index_copy_(1, at, k)
        values[:, at] = v
        mask = torch.arange(keys.shape[1])[None, None] <= at[:, None]
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


class InPlace(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        x.add_(1)
        y[0] = x[1]
        y.mul_(2)
        return (x * y).sum(-1)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if y.sum().item() > 0:
            y = y + 1
        return self.second(y).relu_()


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(8, 6, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8).to(torch.bfloat16)

    def forward(self, x: Any) -> Any:
        return self.layer(x.to(torch.bfloat16))


def test_a_network_with_activations_in_place() -> None:
    found = check(
        Residual().eval(), lambda step: (torch.randn(1, 3, 16, 16),) if step else (torch.ones(1, 3, 16, 16),), 1
    )
    assert len(found.results) == 1
    assert found.time_ps == found.results[0].time_ps > 0


def test_each_shape_has_a_program() -> None:
    check(Residual().eval(), lambda step: (torch.ones(step + 1, 3, 8, 8),), 3)


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}])
@pytest.mark.parametrize("masked", [False, True])
def test_a_transformer_layer(options: dict[str, Any], masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options).eval()
    padding = (None, torch.tensor([[False, False, False, True, True]])) if masked else ()
    check(layer, lambda step: (torch.linspace(-1, 1, 80).reshape(1, 5, 16) * (step + 1), *padding))


def test_attention_with_its_weights() -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    check(layer, lambda step: (torch.linspace(-1, 1, 80).reshape(1, 5, 16) * (step + 1),) * 3)


def test_a_cache_that_is_written_in_place() -> None:
    keys, values = torch.randn(1, 8, 16), torch.randn(1, 8, 16)
    check(
        Cached().eval(), lambda step: (torch.ones(1, 1, 16), torch.tensor([step + 3]), keys.clone(), values.clone()), 3
    )


def test_inputs_that_are_written() -> None:
    check(InPlace(), lambda step: (torch.ones(2, 8) * step, torch.ones(2, 8)))


def test_a_buffer_that_is_written() -> None:
    check(Counting(), lambda step: (torch.ones(3),), 3)


def test_breaks_between_graphs() -> None:
    check(Breaking().eval(), lambda step: (torch.ones(2, 8) * (step - 1),), 3)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_stay_whole(kind: str) -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        found = check(Recurrent(kind).eval(), lambda step: (torch.ones(1, 5, 8) * (step + 1),))
    assert len(found.results) == 2


def test_bfloat16() -> None:
    check(Half().eval(), lambda step: (torch.linspace(-1, 1, 16).reshape(2, 8),), tolerance=2e-2)


def test_a_view_of_an_input_stays_a_view() -> None:
    x = torch.ones(4, 4)
    y = torch.compile(lambda x: x.view(-1), backend="npusim", options=OPTIONS)(x)
    y.zero_()
    assert not x.any()


def test_weights_that_change_after_compiling() -> None:
    model = nn.Linear(4, 4).eval()
    compiled = torch.compile(model, backend="npusim", options=OPTIONS)
    x = torch.ones(1, 4)
    compiled(x)
    model.weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x), rtol=TOLERANCE, atol=TOLERANCE)


def test_what_cannot_run_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Dropout(0.5).train()
    with caplog.at_level(logging.WARNING, "npusim.torch"):
        torch.compile(model, backend="npusim", options=OPTIONS)(torch.ones(8, 8))
    (line,) = {record.getMessage() for record in caplog.records if record.name == "npusim.torch"}
    assert "runs in eager mode" in line
    torch._dynamo.reset()
    with pytest.raises(ModelError, match="cannot run on edge"):
        torch.compile(model, backend="npusim", options={**OPTIONS, "strict": True})(torch.ones(8, 8))


def test_gradients_are_computed_in_eager_mode(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 4)
    with torch.enable_grad(), caplog.at_level(logging.WARNING, "npusim.torch"):
        torch.compile(model, backend="npusim", options=OPTIONS)(torch.ones(1, 4)).sum().backward()
    assert model.weight.grad is not None
    assert "it needs gradients" in caplog.text


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="devices: unknown; there are config"):
        torch.compile(nn.ReLU(), backend="npusim", options={"devices": 2})(torch.ones(1))


def test_threads_need_no_lock() -> None:
    model = nn.Linear(8, 8).eval()
    compiled = torch.compile(model, backend="npusim", options=OPTIONS)
    compiled(torch.ones(1, 8))
    wrong: list[int] = []

    def call(number: int) -> None:
        with torch.no_grad():
            for step in range(20):
                x = torch.full((1, 8), float(number + step))
                if not torch.allclose(compiled(x), model(x), atol=TOLERANCE * 30):
                    wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_run_exports_and_runs_a_module() -> None:
    model, x = Residual().eval(), torch.ones(2, 3, 8, 8)
    with trace() as found:
        result = run(model, (x,), "tiny")
    (output,) = result.outputs.values()
    torch.testing.assert_close(torch.from_numpy(output.copy()), model(x.clone()), rtol=TOLERANCE, atol=TOLERANCE)
    assert found.results == [result]
    assert run(model, (x,), "tiny", timing_only=True).time_ps == result.time_ps


def test_run_refuses_a_module_that_writes() -> None:
    with pytest.raises(ModelError, match=r"use torch\.compile"):
        run(Counting(), (torch.ones(3),))
