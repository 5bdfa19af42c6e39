"""Operators in the forms that exporters write take the time and traffic of the plain operator and give its values."""

from random import Random

import numpy as np
import onnxruntime
import pytest

from npusim.frontends.onnx import load
from npusim.hw.config import load_config
from npusim.runtime import Session
from tests.support.laws.forms import FORMS, models
from tests.support.laws.measure import measure

WRITTEN = [(name, form) for name, forms in FORMS.items() for form in forms.written]


@pytest.mark.parametrize(("name", "form"), WRITTEN)
def test_written_nodes_cost_what_the_operator_costs(name: str, form: str) -> None:
    config = load_config("edge")
    single, written = (measure(load(model), config) for model in models(name, form, Random(f"{name} {form}")))
    assert not single.refusal
    assert not written.refusal
    assert written.time_ps <= 1.1 * single.time_ps
    assert written.traffic <= 1.1 * single.traffic
    if name.endswith("attention"):
        assert single.time_ps <= 1.01 * written.time_ps


@pytest.mark.parametrize(("name", "form"), WRITTEN)
def test_values_are_those_of_the_written_nodes(name: str, form: str) -> None:
    """Within the bound stated in the documentation. A fifth of the mask's rows allow only one element."""
    _, model = models(name, form, Random(f"{name} {form}"), small=True)
    rng = np.random.default_rng(len(name) + len(form))
    feeds = {
        value.name: rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32) * 3
        for value in model.graph.input
    }
    if "mask" in feeds:
        hidden = rng.random(feeds["mask"].shape) < 0.5
        hidden[..., 0] = False
        feeds["mask"] = np.where(hidden, np.float32(-np.inf), np.float32(0))
    with Session(load_config("edge"), cache_dir=False) as session:
        (found,) = session.run(load(model), feeds).outputs.values()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    scale = np.abs(wanted).max()
    bound = 2**-8 if name.startswith("half") else 2**-18
    np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound * scale)
