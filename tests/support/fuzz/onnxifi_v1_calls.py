"""Fuzz calls of libonnxifi-npusim-v1.so; see tests.support.fuzz.run. Its onnxInitGraph ignores the last two
arguments."""

from __future__ import annotations

from hal import abi
from tests.support.fuzz.onnxifi_calls import World
from tests.support.onnxifi.c_library import Tensor56


def make() -> World:
    return World(abi.LIBRARIES[1], Tensor56)
