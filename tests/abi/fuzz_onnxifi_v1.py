"""The fuzz of libonnxifi-npusim-v1.so: see tests.abi.fuzz. Its onnxInitGraph ignores the last two arguments."""

from __future__ import annotations

from hal import abi
from tests.abi.door import Tensor56
from tests.abi.fuzz_onnxifi import World


def make() -> World:
    return World(abi.LIBRARIES[1], Tensor56)
