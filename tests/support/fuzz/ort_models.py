"""Damaged models and damaged compiled models, through ONNX Runtime and its execution provider."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

import npusim.ort
from tests.support.fuzz.damaged_models import broken, edited, flipped, seeds, truncated

SIZES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
MOST_ELEMENTS = 1 << 16


class World:
    """Sessions of ONNX Runtime on one device, which a session without damage keeps."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        onnxruntime.set_default_logger_severity(4)
        self._devices = npusim.ort.register()
        self._kept = self._session(seeds()[0])
        self._compiled = [self._context(seed) for seed in seeds()[:4]]

    def _session(self, model: bytes, **entries: str) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_provider_for_devices(self._devices, {"config": "tiny", "cache": "off"})
        for key, value in entries.items():
            options.add_session_config_entry(f"ep.context_{key}", value)
        return onnxruntime.InferenceSession(model, options)

    def _context(self, model: bytes) -> bytes:
        """The contents of the node of a compiled model."""
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(self._devices, {"config": "tiny", "cache": "off"})
        compiler = onnxruntime.ModelCompiler(options, model, embed_compiled_data_into_model=True)
        proto = ModelProto.FromString(compiler.compile_to_bytes())
        [data] = [each.s for each in proto.graph.node[0].attribute if each.name == "ep_cache_context"]
        return bytes(data)

    def case(self, rng: random.Random) -> list[str]:
        """Make a session and run it; the process must go on. Errors that are not npusim's are in its log."""
        model = self._damaged_context(rng) if rng.random() < 0.3 else rng.choice((broken, _edited))(rng)
        try:
            session = self._session(model)
        except Exception as error:  # noqa: BLE001 ONNX Runtime refuses most
            return self._ended("refused by npusim" if "npusim: " in str(error) else "refused")
        try:
            session.run(None, {each.name: _zeros(each, rng) for each in session.get_inputs()})
        except Exception:  # noqa: BLE001 as above
            return self._ended("failed")
        return self._ended("ran")

    def _ended(self, how: str) -> list[str]:
        self.tally[how] += 1
        return []

    def _damaged_context(self, rng: random.Random) -> bytes:
        data = rng.choice((flipped, flipped, truncated))(rng.choice(self._compiled), rng)
        node = helper.make_node(
            "EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context=data, source="npusim",
            embed_mode=rng.choice((1, 1, 1, 0, -1)), main_context=1,
        )  # fmt: skip
        shapes = [rng.choice(([4], [1, 4], [2, "n"])) for _ in range(2)]
        x, y = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in zip("xy", shapes, strict=True)
        )
        opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "fuzz", [x], [y])
        made = helper.make_model(graph, ir_version=8, opset_imports=opsets)
        return bytes(made.SerializeToString())


def _edited(rng: random.Random) -> bytes:
    """A model that is damaged as a message, of which ONNX Runtime accepts more than of damaged bytes."""
    return edited(rng.choice(seeds()), rng)


def _zeros(argument: Any, rng: random.Random) -> Any:
    shape = [each if isinstance(each, int) else rng.choice((0, 1, 2, 5)) for each in argument.shape]
    if int(np.prod(shape, dtype=np.float64)) > MOST_ELEMENTS:
        shape = [1] * len(shape)
    return np.zeros(shape, SIZES.get(argument.type, np.float32))


def make() -> World:
    return World()
