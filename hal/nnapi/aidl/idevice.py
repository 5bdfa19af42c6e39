"""The AIDL interface of the same driver: ``device(open_device(...))``.

Methods return results, or raise ServiceSpecificException with an ErrorStatus. Times are in nanoseconds, -1 if omitted;
deadlines are points on the steady clock, as in HAL 1.3. These classes only convert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..border import status_of
from ..driver.device import Device
from ..driver.prepared import PreparedModel
from ..errors import invalid_argument
from ..memory import Memory
from ..operations.versions import NEWEST
from ..types import BufferDesc, BufferRole, Capabilities, DeviceType, ErrorStatus, Extension
from ..validation.fields import instance, items
from .border import raises_status
from .config import check_hints
from .memory import to_memory
from .model import model_to_1_3
from .prepared import AidlPreparedModel, handles_of
from .request import time_to_1_3
from .types import DeviceBuffer, Interface, NumberOfCacheFiles, PrepareModelConfig, ServiceSpecificException

T = TypeVar("T")


def device(idevice: Device) -> AidlDevice:
    """The AIDL interface of a device. The caller remains responsible for closing the device."""
    return AidlDevice(idevice)


class AidlDevice(Interface):
    """IDevice."""

    def __init__(self, idevice: Device) -> None:
        self._device = idevice

    @raises_status
    def getCapabilities(self) -> Capabilities:
        """Performance by operand type, with IF and WHILE."""
        return _result(self._device.getCapabilities_1_3())

    @raises_status
    def getNumberOfCacheFilesNeeded(self) -> NumberOfCacheFiles:
        """Files of the compilation cache."""
        return NumberOfCacheFiles(*_checked(self._device.getNumberOfCacheFilesNeeded()))

    @raises_status
    def getSupportedExtensions(self) -> list[Extension]:
        """Vendor extensions that are registered."""
        return _result(self._device.getSupportedExtensions())

    @raises_status
    def getSupportedOperations(self, model: Any) -> list[bool]:
        """For each operation of the main subgraph whether it is supported."""
        return _result(self._device.supported(model_to_1_3(model), NEWEST))

    @raises_status
    def getType(self) -> DeviceType:
        """An accelerator."""
        return _result(self._device.getType())

    @raises_status
    def getVersionString(self) -> str:
        """The version of the driver and its device."""
        return _result(self._device.getVersionString())

    @raises_status
    def prepareModel(
        self,
        model: Any,
        preference: int,
        priority: int,
        deadlineNs: int,
        modelCache: Sequence[int],
        dataCache: Sequence[int],
        token: bytes,
        callback: Any,
    ) -> None:
        """Start to prepare a model. The callback's ``notify(status, preparedModel)`` is called once, also on
        failure."""

        def launch(adapter: _Callback) -> ErrorStatus:
            return self._prepare(model, preference, priority, deadlineNs, modelCache, dataCache, token, adapter)

        _launch(launch, callback)

    @raises_status
    def prepareModelFromCache(
        self, deadlineNs: int, modelCache: Sequence[int], dataCache: Sequence[int], token: bytes, callback: Any
    ) -> None:
        """Prepare a model from the cache."""

        def launch(adapter: _Callback) -> ErrorStatus:
            deadline = time_to_1_3(deadlineNs, "deadlineNs")
            return self._device.prepareModelFromCache_1_3(
                deadline, handles_of(modelCache), handles_of(dataCache), token, adapter
            )

        _launch(launch, callback)

    @raises_status
    def prepareModelWithConfig(self, model: Any, config: PrepareModelConfig, callback: Any) -> None:
        """As ``prepareModel``. Vendor hints are checked; this driver follows none."""

        def launch(adapter: _Callback) -> ErrorStatus:
            given = instance(config, PrepareModelConfig, "config")
            check_hints(given.compilationHints, given.extensionNameToPrefix, "compilationHints")
            return self._prepare(
                model,
                given.preference,
                given.priority,
                given.deadlineNs,
                given.modelCache,
                given.dataCache,
                given.cacheToken,
                adapter,
            )

        _launch(launch, callback)

    def _prepare(
        self,
        model: Any,
        preference: int,
        priority: int,
        deadlineNs: int,
        modelCache: Sequence[int],
        dataCache: Sequence[int],
        token: bytes,
        callback: _Callback,
    ) -> ErrorStatus:
        return self._device.prepare(
            lambda: model_to_1_3(model),
            NEWEST,
            preference,
            priority,
            time_to_1_3(deadlineNs, "deadlineNs"),
            handles_of(modelCache),
            handles_of(dataCache),
            token,
            callback,
        )

    @raises_status
    def allocate(
        self,
        desc: BufferDesc,
        preparedModels: Sequence[Any],
        inputRoles: Sequence[BufferRole],
        outputRoles: Sequence[BufferRole],
    ) -> DeviceBuffer:
        """Memory of the device for inputs and outputs of prepared models."""
        models = [getattr(each, "preparedModel", each) for each in items(preparedModels, "preparedModels")]
        inner = [model.prepared if isinstance(model, AidlPreparedModel) else model for model in models]
        buffer, token = _checked(self._device.allocate(desc, inner, inputRoles, outputRoles))
        return DeviceBuffer(AidlBuffer(buffer), token)


class AidlBuffer(Interface):
    """IBuffer."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    @raises_status
    def copyTo(self, dst: Any) -> None:
        """Copy the contents to shared memory of their size."""
        _checked((self._buffer.copyTo(_memory(dst)),))

    @raises_status
    def copyFrom(self, src: Any, dimensions: Sequence[int]) -> None:
        """Fill the buffer from shared memory of its size. ``dimensions`` may be empty if they are known."""
        _checked((self._buffer.copyFrom(_memory(src), dimensions),))


class _Callback:
    """Passes callbacks of the driver to a client of the AIDL interface."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.told = False

    def notify_1_3(self, status: ErrorStatus, prepared: PreparedModel | None) -> None:
        """IPreparedModelCallback of HAL 1.3."""
        self.told = True
        self._client.notify(status, None if prepared is None else AidlPreparedModel(prepared))


def _launch(launch: Callable[[_Callback], ErrorStatus], client: Any) -> None:
    """Start a preparation. A failure is reported to the callback once, and raised."""
    if not callable(getattr(client, "notify", None)):
        raise invalid_argument(f"the callback must have a method notify, got {client!r}")
    adapter = _Callback(client)
    try:
        status = launch(adapter)
    except Exception as error:  # the driver has not seen arguments that could not be converted
        adapter.notify_1_3(status_of(error, "preparation"), None)
        raise
    _checked((status,))


def _checked(results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results after the status. Raises ServiceSpecificException if the status is not NONE."""
    status, *others = results
    if status is not ErrorStatus.NONE:
        raise ServiceSpecificException(status, "the driver's log says why")
    return tuple(others)


def _result(results: tuple[ErrorStatus, T]) -> T:
    """The single result after the status. Raises ServiceSpecificException if the status is not NONE."""
    _checked(results)
    return results[1]


def _memory(memory: Any) -> Memory:
    return memory if isinstance(memory, Memory) else to_memory(memory)
