"""The Android neural-networks driver of the simulated device: HAL 1.3 ``IDevice`` and the objects that it creates.

``open_device("edge")`` opens a device, ``hal.nnapi.types`` has the structures of the interface, ``hal.nnapi.memory``
creates shared memory, ``hal.nnapi.aidl`` is the AIDL interface of the same driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .driver.device import Device, open_device

__all__ = ["Device", "open_device"]


_MODULES = ("aidl", "extensions", "fence", "fmq", "memory", "types")


def __getattr__(name: str) -> Any:
    """Import the names above and the public modules at their first use, so that importing types does not load the
    simulator."""
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in __all__:
        from .driver import device

        return getattr(device, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
