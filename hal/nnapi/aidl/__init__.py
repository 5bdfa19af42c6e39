"""The AIDL interface of the same driver: ``device(open_device(...))``.

Its structures are in ``hal.nnapi.aidl.types`` where they are not those of HAL 1.3, its union Memory in
``hal.nnapi.aidl.memory``.
"""

from .idevice import device
from .prepared import AidlPreparedModel

__all__ = ["AidlPreparedModel", "device"]
