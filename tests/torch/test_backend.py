"""PyTorch's unmodified NNAPI backend on the simulated device: ``make torch``. Skipped if torch is not installed.

torch opens "libneuralnetworks.so" and gets the library that this process has already loaded, because the name is its
SONAME.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hal.abi import LIB

torch = pytest.importorskip("torch", reason="make torch installs it")

nn: Any = torch.nn
TOLERANCE = 1e-4
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's deprecation warnings


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    ctypes.CDLL(str(LIB / "libneuralnetworks.so"))
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.backends.quantized.engine = engine


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def on_nnapi(module: Any, *inputs: Any) -> Any:
    """Return the module's output when it runs through NNAPI."""
    from torch.backends._nnapi.prepare import convert_model_to_nnapi

    with torch.no_grad():
        traced = torch.jit.trace(module, inputs)
        return convert_model_to_nnapi(traced, list(inputs))(*inputs)


def check(module: Any, *inputs: Any) -> None:
    """Check that the module gives the same through NNAPI as in torch."""
    module.eval()
    with torch.no_grad():
        expected = module(*inputs)
    found = on_nnapi(module, *inputs)
    several = isinstance(expected, (tuple, list))
    for want, got in zip(expected if several else [expected], found if several else [found], strict=True):
        assert got.shape == want.shape
        if want.is_quantized:
            steps = (want.int_repr().int() - got.int_repr().int()).abs().max()
            assert steps <= 1, f"{steps} steps"
            assert (got.q_scale(), got.q_zero_point()) == (want.q_scale(), want.q_zero_point())
        else:
            torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


def nhwc(tensor: Any) -> Any:
    """Return the image with channels last, as NNAPI requires."""
    converted = tensor.contiguous(memory_format=torch.channels_last)
    converted.nnapi_nhwc = True
    return converted


def image(channels: int = 3, size: int = 8) -> Any:
    return torch.randn(1, channels, size, size)


class Binary(nn.Module):  # type: ignore[misc, name-defined]
    """One function of two tensors."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Any, b: Any) -> Any:
        return self.function(a, b)


class Unary(nn.Module):  # type: ignore[misc, name-defined]
    """One function of a tensor."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def test_linear() -> None:
    check(nn.Linear(16, 32), torch.randn(2, 16))


CONVOLUTIONS = {
    "plain": {"in_channels": 3, "out_channels": 5, "kernel_size": 3},
    "1x1": {"in_channels": 3, "out_channels": 8, "kernel_size": 1},
    "no bias": {"in_channels": 3, "out_channels": 5, "kernel_size": 3, "bias": False},
    "strided": {"in_channels": 3, "out_channels": 5, "kernel_size": 3, "stride": 2, "padding": 1},
    "uneven": {"in_channels": 3, "out_channels": 5, "kernel_size": (3, 2), "padding": (1, 0)},
    "depthwise": {"in_channels": 6, "out_channels": 6, "kernel_size": 3, "padding": 1, "groups": 6},
}


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_convolution(options: dict[str, Any], layout: str) -> None:
    picture = image(options["in_channels"])
    check(nn.Conv2d(**options), nhwc(picture) if layout == "NHWC" else picture)


def test_transposed_convolution() -> None:
    check(nn.ConvTranspose2d(4, 5, 3, stride=2), nhwc(image(4)))


POOLS = {
    "max": nn.MaxPool2d(2),
    "max, strided": nn.MaxPool2d(3, 1, 1),
    "average": nn.AvgPool2d(2),
    "average, strided": nn.AvgPool2d(3, 2),
    "global average": nn.AdaptiveAvgPool2d(1),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pool(pool: Any, layout: str) -> None:
    check(pool, nhwc(image()) if layout == "NHWC" else image())


BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "concatenate": lambda a, b: torch.cat([a, b], 1),
}


@pytest.mark.parametrize("function", BINARY.values(), ids=BINARY)
def test_two_tensors(function: Callable[[Any, Any], Any]) -> None:
    check(Binary(function), torch.randn(2, 3, 4), torch.randn(2, 3, 4))


def test_broadcasting() -> None:
    check(Binary(lambda a, b: a + b), torch.randn(2, 3, 4), torch.randn(1, 1, 4))


UNARY = {
    "relu": torch.relu,
    "relu6": lambda x: nn.functional.hardtanh(x, 0.0, 6.0),
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: torch.softmax(x, -1),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "mean": lambda x: x.mean([1, 2]),
    "mean, kept": lambda x: x.mean([1], True),
    "reshape": lambda x: x.reshape(2, -1),
    "flatten": lambda x: torch.flatten(x, 1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "slice": lambda x: x[:, 1:3],
}


@pytest.mark.parametrize("function", UNARY.values(), ids=UNARY)
def test_one_tensor(function: Callable[[Any], Any]) -> None:
    check(Unary(function), torch.randn(2, 4, 6))


def test_prelu() -> None:
    check(nn.PReLU(4, 0.3), nhwc(image(4)))


def test_upsampling() -> None:
    check(nn.UpsamplingNearest2d(scale_factor=2), nhwc(image(2, 4)))


def test_mlp() -> None:
    layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10), nn.Softmax(-1)]
    check(nn.Sequential(*layers), torch.randn(4, 20))


class InvertedResidual(nn.Module):  # type: ignore[misc, name-defined]
    """The basic block of MobileNetV2."""

    def __init__(self, before: int, after: int, stride: int, expand: int = 4) -> None:
        super().__init__()
        hidden = before * expand
        self.shortcut = stride == 1 and before == after
        self.body = nn.Sequential(
            nn.Conv2d(before, hidden, 1), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden), nn.ReLU6(),
            nn.Conv2d(hidden, after, 1),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.shortcut else self.body(x)


class MobileNet(nn.Module):  # type: ignore[misc, name-defined]
    """The structure of MobileNetV2 at a size for tests."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6(), InvertedResidual(8, 8, 1), InvertedResidual(8, 12, 2),
            InvertedResidual(12, 12, 1), InvertedResidual(12, 16, 2), nn.Conv2d(16, 64, 1), nn.ReLU6(),
        )  # fmt: skip
        self.classify = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return self.classify(self.features(x).mean([2, 3]))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_mobilenet(layout: str) -> None:
    picture = image(3, 32)
    check(MobileNet(), nhwc(picture) if layout == "NHWC" else picture)


def test_open_batch() -> None:
    """A dimension of size 0 in the example is open in the model."""
    from torch.backends._nnapi.prepare import convert_model_to_nnapi

    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval()
    with torch.no_grad():
        traced = torch.jit.trace(module, torch.zeros(1, 8))
        example = torch.zeros(1, 8).expand(1, 8).new_zeros(0, 8)
        converted = convert_model_to_nnapi(traced, [example])
        batch = torch.randn(3, 8)
        torch.testing.assert_close(converted(batch), module(batch), rtol=TOLERANCE, atol=TOLERANCE)


# Quantised


def converted(module: Any, *examples: Any) -> Any:
    """Return the module after static quantisation for qnnpack."""
    module.eval()
    module.qconfig = torch.ao.quantization.get_default_qconfig("qnnpack")
    prepared = torch.ao.quantization.prepare(module)
    for example in examples:
        prepared(example)
    return torch.ao.quantization.convert(prepared)


class Quantised(nn.Module):  # type: ignore[misc, name-defined]
    """A module between quantisation and dequantisation."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.enter = torch.ao.quantization.QuantStub()
        self.body = body
        self.leave = torch.ao.quantization.DeQuantStub()

    def forward(self, x: Any) -> Any:
        return self.leave(self.body(self.enter(x)))


def check_quantised(body: Any, example: Any) -> None:
    """Check that the output is within one step of the last quantisation from torch's."""
    module = converted(Quantised(body), example, example * 0.7)
    with torch.no_grad():
        expected = module(example)
    found = on_nnapi(module, example)
    last = [each for each in module.modules() if hasattr(each, "scale") and not hasattr(each, "enter")][-1]
    step = float(last.scale)
    assert float((expected - found).abs().max()) <= step * 1.001


def test_quantised_linear() -> None:
    example = torch.randn(4, 16)
    module = converted(Quantised(nn.Linear(16, 32)), example)
    check(module.body, module.enter(example))


@pytest.mark.parametrize("name", ["plain", "1x1", "strided", "depthwise"])
def test_quantised_convolution(name: str) -> None:
    options = CONVOLUTIONS[name]
    check_quantised(nn.Sequential(nn.Conv2d(**options)), nhwc(image(options["in_channels"])))


def test_quantised_convolution_and_relu() -> None:
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    module = torch.ao.quantization.fuse_modules(body.eval(), [["0", "1"]])
    check_quantised(module, nhwc(image()))


class QuantisedFunction(nn.Module):  # type: ignore[misc, name-defined]
    """A function of two quantised tensors."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.functional = torch.ao.nn.quantized.QFunctional()
        self.functional.scale, self.functional.zero_point = 0.07, 120
        self.function = function

    def forward(self, a: Any, b: Any) -> Any:
        return getattr(self.functional, self.function)(a, b)


@pytest.mark.parametrize("function", ["add", "add_relu", "mul"])
def test_quantised_function(function: str) -> None:
    a, b = (torch.quantize_per_tensor(torch.randn(2, 8), scale, 128, torch.quint8) for scale in (0.03, 0.04))
    check(QuantisedFunction(function), a, b)
