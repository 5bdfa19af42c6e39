"""The AIDL interface of the same driver: ``device(open_device(...))``.

Structures that differ from HAL 1.3 are in ``hal.nnapi.aidl.types``, the union Memory in ``hal.nnapi.aidl.memory``.
"""

from .idevice import device
from .prepared import AidlPreparedModel

__all__ = ["AidlPreparedModel", "device"]
