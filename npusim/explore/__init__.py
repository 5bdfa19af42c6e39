"""Architecture exploration: the costs of many designs for several models, the best designs, and the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.explore.reading import make_space, read_space
    from npusim.explore.space import Space
    from npusim.explore.study import Study

_HOMES = {
    "Space": "npusim.explore.space",
    "Study": "npusim.explore.study",
    "make_space": "npusim.explore.reading",
    "read_space": "npusim.explore.reading",
}
__all__ = ["Space", "Study", "make_space", "read_space"]


def __getattr__(name: str) -> Any:
    """Import a public name on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module 'npusim.explore' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
