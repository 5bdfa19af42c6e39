"""npusim: a neural processing unit that does not exist in silicon, and a driver for it.

>>> import npusim
>>> session = npusim.Session(npusim.load_config("edge"))
>>> result = session.run("model.onnx", {"x": array})  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim import explore
    from npusim.dtypes import DType
    from npusim.errors import NpusimError
    from npusim.graph import Graph
    from npusim.hw.config import Config, list_configs, load_config
    from npusim.ops.build import GraphBuilder
    from npusim.program import Program
    from npusim.runtime import Result, Session

__version__ = "0.1.0"

_HOMES = {
    "Config": "npusim.hw.config",
    "DType": "npusim.dtypes",
    "Graph": "npusim.graph",
    "GraphBuilder": "npusim.ops.build",
    "NpusimError": "npusim.errors",
    "Program": "npusim.program",
    "Result": "npusim.runtime",
    "Session": "npusim.runtime",
    "list_configs": "npusim.hw.config",
    "load_config": "npusim.hw.config",
}
__all__ = [
    "Config",
    "DType",
    "Graph",
    "GraphBuilder",
    "NpusimError",
    "Program",
    "Result",
    "Session",
    "explore",
    "list_configs",
    "load_config",
]


def __getattr__(name: str) -> Any:
    """Import attributes on first use, because ``npusim --help`` needs none of them."""
    from importlib import import_module

    if name == "explore":
        return import_module("npusim.explore")
    if name not in _HOMES:
        raise AttributeError(f"module 'npusim' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
