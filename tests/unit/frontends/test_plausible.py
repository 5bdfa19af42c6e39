"""Proposed sizes for open dimensions: likely ones that the model accepts."""

from __future__ import annotations

import pytest

from npusim.errors import NeedsValueError, OpenInputsError, UnsupportedError
from npusim.frontends.onnx import load, plausible
from npusim.frontends.onnx.importer import Importer
from npusim.graph import Graph
from tests.support.onnx_models.small import text_model

COPY = "g (float[{dims}] x) => (float y) {{ y = Relu(x) }}"


def proposed(body: str, **given: object) -> OpenInputsError:
    """Return the error about a model; with the sizes and values that it names the model loads."""
    model = text_model(body)
    with pytest.raises(OpenInputsError) as caught:
        load(model, **given)  # type: ignore[arg-type]
    error = caught.value
    shapes = {**given.get("input_shapes", {}), **error.shapes}  # type: ignore[dict-item]
    assert load(model, input_shapes=shapes, bind=error.values).outputs
    return error


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ("batch, 3, height, width", (1, 3, 224, 224)),
        ("a, 3, b, c", (1, 3, 224, 224)),
        ("a, b, c, 3", (1, 224, 224, 3)),
        ("a, b, c, d", (1, 3, 224, 224)),
        ("a, 1, 28, c", (1, 1, 28, 224)),
        ("batch_size, sequence_length", (1, 128)),
        ("a, b", (1, 128)),
        ("a, 2048", (1, 2048)),
        ("sequence_length, 576", (128, 576)),
        ("a, b, 80", (1, 128, 80)),
        ("2, a, 128", (2, 1, 128)),
        ("3, height, width", (3, 224, 224)),
        ("a", (128,)),
        ("batch", (1,)),
        ("a, 3, b, c, d", (1, 3, 16, 224, 224)),
        ("a, b, c, d, e, f", (1, 1, 1, 1, 1, 1)),
    ],
)
def test_sizes_follow_from_names_and_places(dims: str, shape: tuple[int, ...]) -> None:
    assert proposed(COPY.format(dims=dims)).shapes == {"x": shape}


def test_sizes_are_those_that_the_network_takes() -> None:
    """The product needs rows of 3 x 64 x 64; the filter is larger than 28 x 28."""
    error = proposed(
        """g (float[n, 3, h, w] x) => (float y) <float[1, 12288] one = {0}> {
        flat = Flatten(x) y = Gemm<transB = 1>(flat, one) }""".replace("{0}", "{" + ", ".join(["0"] * 12288) + "}")
    )
    assert error.shapes == {"x": (1, 3, 64, 64)}
    assert str(error) == (
        "the model leaves input shapes open: 'x' is float32[n, 3, h, w]. "
        "Give arrays, or sizes: input_shapes={'x': (1, 3, 64, 64)}"
    )


def test_every_open_input_is_in_the_message() -> None:
    error = proposed("""g (float[batch, 3, h, w] x, float[2, batch, 4] state, float[5] known) => (float y, float z) {
        y = Relu(x) s = Relu(state) k = Relu(known) z = Identity(s) }""")
    assert error.shapes == {"x": (1, 3, 224, 224), "state": (2, 1, 4)}
    for text in ("'x' is float32[batch, 3, h, w]", "'state' is float32[2, batch, 4]", "(2, 1, 4)"):
        assert text in str(error)


def test_one_name_is_one_size_and_what_is_given_counts() -> None:
    body = """g (float[n, k] x, float[k, n] y, float[k] z) => (float a) {
        p = MatMul(x, y) s = ReduceSum(z) a = Add(p, s) }"""
    assert proposed(body).shapes == {"x": (1, 128), "y": (128, 1), "z": (128,)}
    assert proposed(body, input_shapes={"z": (7,)}).shapes == {"x": (1, 7), "y": (7, 1)}


def test_no_rank_is_taken_for_an_image() -> None:
    model = text_model("g (float[a] x) => (float y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(OpenInputsError, match=r"'x' is float32 of unknown rank.*'x': \(1, 3, 224, 224\)"):
        load(model)


BRANCH = """g (float[n, m] x, int64[1] rate) => (float y) {
    i = Constant<value_int = 0>() first = Gather(rate, i) sixteen = Constant<value_int = 16000>()
    c = Equal(first, sixteen)
    y = If (c) <then_branch = t () => (float[2] a) { s = Constant<value_ints = [2, 256]>() a = Reshape(x, s) },
                else_branch = e () => (float[2] b) { s = Constant<value_ints = [3, 3]>() b = Reshape(x, s) }> }"""


def test_a_value_that_decides_is_proposed_with_the_sizes() -> None:
    """It is a value that the model compares with; the sizes fit the branch that it selects."""
    error = proposed(BRANCH)
    assert (error.shapes, error.values) == ({"x": (1, 512)}, {"rate": [16000]})
    assert "input_shapes={'x': (1, 512)}, bind={'rate': [16000]}" in str(error)
    with pytest.raises(NeedsValueError) as caught:
        load(text_model(BRANCH), input_shapes={"x": (1, 512)})
    assert caught.value.values == {"rate": [16000]}
    assert str(caught.value) == (
        "If_4 (If): input 0 must be a constant; it follows from input 'rate'\n"
        "Give arrays, or values: bind={'rate': [16000]}"
    )


def test_where_nothing_fits_a_reason_is_told() -> None:
    model = text_model("g (float[n, m] x, float[7, 11] w) => (float y) { y = MatMul(x, w) }")
    with pytest.raises(OpenInputsError, match=r"Not every size is valid: MatMul_0.*'x': \(1, 128\)"):
        load(model)
    said = r"^Frobnicate_0 \(Frobnicate\): npusim has no operator Frobnicate of version \d+ of the standard domain"
    with pytest.raises(UnsupportedError, match=said):
        load(text_model("g (float[n] x) => (float y) { y = Frobnicate(x) }"))


def test_what_is_tried_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OpenInputsError):
        load(text_model("g (float[n, 3, h, w] x) => (float[1, 3, 7, 7] y) { y = Relu(x) }"))
    assert caplog.records == []


def test_large_models_are_tried_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of visited nodes counts: here 100 rounds of three nodes, written out because they compute with their
    number, and four nodes around the loop."""
    runs: list[object] = []
    run = Importer.run

    def counted(importer: Importer) -> Graph:
        runs.append(importer)
        return run(importer)

    monkeypatch.setattr(Importer, "run", counted)
    model = text_model("""g (float[n, m] x, float[7, 11] w) => (float y) {
        hundred = Constant<value_int = 100>() yes = Constant<value = bool {1}>()
        last = Loop (hundred, yes, x) <body = b (int64 i, bool k, float[n, m] v) => (bool c, float[n, m] r) {
            c = Identity(k) a = CastLike(i, v) r = Sub(v, a) }>
        y = MatMul(last, w) }""")
    for nodes, times in ((1, 1), (304, 1), (305, 2), (609, 3), (10**6, len(plausible.LENGTHS))):
        monkeypatch.setattr(plausible, "NODES", nodes)
        with pytest.raises(OpenInputsError):
            load(model)
        assert len(runs) == 1 + times
        runs.clear()


def test_sizes_of_well_known_networks_are_tried() -> None:
    """ImageNet, detectors, digits; lines of text as PaddleOCR reads them, version 3 and before."""
    assert {(224, 224), (640, 640), (28, 28), (48, 320), (32, 320)} <= set(plausible.IMAGES)
