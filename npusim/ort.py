"""The device as an execution provider of ONNX Runtime.

``npusim.ort.register()`` once, then ``onnxruntime.InferenceSession(model, providers=["npusim"])``. Programs in other
languages register the file :func:`library`. Needs onnxruntime 1.23 or newer, and ``npusim[onnx]``.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

from npusim.errors import UsageError

__all__ = ["library", "register"]

NAME = "npusim"
VIRTUAL_NAME = "npusim.virtual"
"""ONNX Runtime allows devices that no hardware stands behind for names with this end."""
OLDEST = (1, 23)
"""The first onnxruntime with plug-ins that compile."""
NAMED = (1, 25)
"""The first one whose ``providers=`` takes the name of a plug-in."""
_log = logging.getLogger("npusim.ort")


def library() -> Path:
    """The shared library to register with ONNX Runtime. Raises UsageError if it was not built."""
    spec = importlib.util.find_spec("hal")
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        path = Path(place, "abi", "lib", "libnpusim-ort.so")
        if path.exists():
            return path
    raise UsageError("libnpusim-ort.so is not installed: it is built with the package, on Linux")


def register(*, virtual: bool = False) -> list[Any]:
    """Register the provider in this process, once. Returns its ``onnxruntime.OrtEpDevice`` s.

    ``virtual``: as provider ``npusim.virtual``, with an NPU device for each configuration that ``NPUSIM_ORT_CONFIGS``
    names, at most 8. Otherwise there is one device on the CPU, and the option ``config`` chooses the configuration.
    Raises UsageError for an onnxruntime that is missing or too old.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise UsageError("the execution provider needs onnxruntime: pip install onnxruntime") from error
    name, found = (VIRTUAL_NAME if virtual else NAME), onnxruntime.__version__
    version = tuple(int(part) for part in found.split(".")[:2])
    needed = (1, 24) if virtual else OLDEST
    if version < needed:
        what = "virtual devices need" if virtual else "the execution provider needs"
        raise UsageError(f"{what} onnxruntime {needed[0]}.{needed[1]} or newer, this is {found}")
    if not any(device.ep_name == name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, str(library()))
        if version < NAMED:
            way = "SessionOptions.add_provider_for_devices"
            _log.warning("onnxruntime %s ignores %s in providers=: use %s", found, name, way)
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
