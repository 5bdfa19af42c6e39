"""The device: ``IDevice`` of HAL 1.0 to 1.3 over one simulated NPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import npusim
from npusim.faults import Faulty, faults_asked
from npusim.hw.config import Config, load_config
from npusim.runtime import Executor

from .. import extensions, v1_0, v1_1, v1_2
from ..border import never_raises, nothing, older_status, status_of
from ..cache import files as cache
from ..execution.deadline import Clock, TimePoint, deadline_of, steady_clock
from ..execution.engine import Engine
from ..operations.versions import NEWEST, V1_0, V1_1, V1_2, V1_3, Version
from ..types import (
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Model,
    Priority,
)
from .callbacks import check_callback, notify_prepared
from .capabilities import capabilities_of
from .explain import OperationSupport, explain
from .preparation import Preparation
from .prepared import PreparedModel

FAST, MEDIUM = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM
NO_TOKEN = bytes(32)


def open_device(
    config: Config | str | os.PathLike[str],
    *,
    clock: Clock = steady_clock,
    state_dir: str | os.PathLike[str] | None = None,
    faults: Faulty | None = None,
    strict_float32: bool = False,
) -> Device:
    """Open the driver of one simulated device.

    ``config``: a name from ``configs/``, a path or a Config. ``clock``: nanoseconds of the steady clock, for deadlines.
    ``state_dir``: the directory for the key of the compilation cache, by default the user's state directory.
    ``faults``: a fault script for the device, by default the file named by ``$NPUSIM_FAULTS``. ``strict_float32``:
    compute models with relaxed FLOAT32 in FLOAT32, too; by default they are computed in FLOAT16 where that is faster,
    or the only way. Raises ConfigError.

    The methods of the device raise nothing, except that :meth:`Device.close` finally raises UsageError if a fault has
    not happened.
    """
    return Device(
        load_config(config),
        clock,
        None if state_dir is None else Path(state_dir),
        faults or faults_asked(),
        strict_float32,
    )


class Device:
    """IDevice. Methods have the arguments and results of the interface, in its order, and never raise."""

    def __init__(
        self, config: Config, clock: Clock, state_dir: Path | None, faults: Faulty | None, strict_float32: bool
    ) -> None:
        # Before any model, because a model that names an unregistered extension is refused.
        extensions.load_entry_points()
        self.config = config
        self._state_dir = state_dir
        self._engine = Engine(Executor(config, faults=faults), clock, strict=strict_float32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Power the device off. Active work ends, possibly with an error; every callback is called.

        Finally raises UsageError if a fault of the device's script has not happened."""
        self._engine.close()

    # Properties of the device

    @never_raises()
    def getStatus(self) -> DeviceStatus:
        """1.0: OFFLINE if it is unplugged, closed or owned by another process, BUSY if its queue is full."""
        return self._engine.status

    @never_raises(str)
    def getVersionString(self) -> tuple[ErrorStatus, str]:
        """1.2: the version of the driver and its device."""
        return ErrorStatus.NONE, f"npusim {npusim.__version__} {self.config.name} {self.config.fingerprint()[:12]}"

    @never_raises(lambda: DeviceType.OTHER)
    def getType(self) -> tuple[ErrorStatus, DeviceType]:
        """1.2: an accelerator."""
        return ErrorStatus.NONE, DeviceType.ACCELERATOR

    @never_raises(list)
    def getSupportedExtensions(self) -> tuple[ErrorStatus, list[Extension]]:
        """1.2: the extensions registered in ``hal.nnapi.extensions``."""
        return ErrorStatus.NONE, [extension.describe() for extension in extensions.registered()]

    @never_raises(int, int)
    def getNumberOfCacheFilesNeeded(self) -> tuple[ErrorStatus, int, int]:
        """1.2: (status, model files, data files); 0 and 0 if the key of the cache cannot be stored."""
        count = int(cache.driver_key(self._state_dir) is not None)
        return ErrorStatus.NONE, count, count

    @never_raises(nothing)
    def getCapabilities(self) -> tuple[ErrorStatus, v1_0.Capabilities]:
        """1.0: performance with float32 and 8-bit quantised operands."""
        return self._capabilities(v1_0.capabilities_from_1_3)

    @never_raises(nothing)
    def getCapabilities_1_1(self) -> tuple[ErrorStatus, v1_1.Capabilities]:
        """1.1: likewise, with relaxed float32."""
        return self._capabilities(v1_1.capabilities_from_1_3)

    @never_raises(nothing)
    def getCapabilities_1_2(self) -> tuple[ErrorStatus, v1_2.Capabilities]:
        """1.2: performance by operand type."""
        return self._capabilities(v1_2.capabilities_from_1_3)

    @never_raises(nothing)
    def getCapabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """1.3: likewise, with IF and WHILE."""
        return self._capabilities(lambda found: found)

    def _capabilities(self, convert: Callable[[Capabilities], Any]) -> tuple[ErrorStatus, Any]:
        self._engine.check_available()
        return ErrorStatus.NONE, convert(capabilities_of(self.config))

    # Which operations it supports

    @never_raises(list)
    def getSupportedOperations(self, model: v1_0.Model) -> tuple[ErrorStatus, list[bool]]:
        """1.0: for each operation whether it is supported."""
        return self.supported(v1_0.converted(v1_0.model_to_1_3, model), V1_0)

    @never_raises(list)
    def getSupportedOperations_1_1(self, model: v1_1.Model) -> tuple[ErrorStatus, list[bool]]:
        """1.1: likewise."""
        return self.supported(v1_0.converted(v1_1.model_to_1_3, model), V1_1)

    @never_raises(list)
    def getSupportedOperations_1_2(self, model: v1_2.Model) -> tuple[ErrorStatus, list[bool]]:
        """1.2: likewise."""
        return self.supported(v1_0.converted(v1_2.model_to_1_3, model), V1_2)

    @never_raises(list)
    def getSupportedOperations_1_3(self, model: Model) -> tuple[ErrorStatus, list[bool]]:
        """1.3: for each operation of the main subgraph whether it is supported; for IF and WHILE, with all operations
        that they refer to."""
        return self.supported(model, V1_3)

    @never_raises(list)
    def supported(self, model: Model, version: Version) -> tuple[ErrorStatus, list[bool]]:
        """Not part of the interface: ``getSupportedOperations`` of any version."""
        self._engine.check_available()
        with self._engine.limited(None, "getSupportedOperations"):  # the caller may have its own limit
            return ErrorStatus.NONE, [operation.supported for operation in self._explained(model, version)]

    @never_raises(list)
    def explain(self, model: Model) -> tuple[ErrorStatus, list[OperationSupport]]:
        """Not part of the interface: for each operation of the main subgraph whether it is supported, and why not."""
        self._engine.check_available()
        return ErrorStatus.NONE, self._explained(model, NEWEST)

    def _explained(self, model: Model, version: Version) -> list[OperationSupport]:
        return explain(self._engine.executor, model, version, strict=self._engine.time_ps is None)

    # Preparing models

    @never_raises()
    def prepareModel(self, model: v1_0.Model, callback: Any) -> ErrorStatus:
        """1.0: start to prepare a model. Returns the status of the launch."""
        convert = partial(v1_0.converted, v1_0.model_to_1_3, model)
        return older_status(self.prepare(convert, V1_0, FAST, MEDIUM, None, (), (), NO_TOKEN, callback))

    @never_raises()
    def prepareModel_1_1(self, model: v1_1.Model, preference: ExecutionPreference | int, callback: Any) -> ErrorStatus:
        """1.1: likewise, with a preference."""
        convert = partial(v1_0.converted, v1_1.model_to_1_3, model)
        return older_status(self.prepare(convert, V1_1, preference, MEDIUM, None, (), (), NO_TOKEN, callback))

    @never_raises()
    def prepareModel_1_2(
        self,
        model: v1_2.Model,
        preference: ExecutionPreference | int,
        modelCache: Sequence[Sequence[int]],
        dataCache: Sequence[Sequence[int]],
        token: bytes,
        callback: Any,
    ) -> ErrorStatus:
        """1.2: likewise, with files for the compilation cache."""
        convert = partial(v1_0.converted, v1_2.model_to_1_3, model)
        return older_status(
            self.prepare(convert, V1_2, preference, MEDIUM, None, modelCache, dataCache, token, callback)
        )

    @never_raises()
    def prepareModel_1_3(
        self,
        model: Model,
        preference: ExecutionPreference | int,
        priority: Priority | int,
        deadline: TimePoint,
        modelCache: Sequence[Sequence[int]],
        dataCache: Sequence[Sequence[int]],
        token: bytes,
        callback: Any,
    ) -> ErrorStatus:
        """1.3: start to prepare a model and store it in the cache files, if any. Returns the status of the launch."""
        return self.prepare(lambda: model, V1_3, preference, priority, deadline, modelCache, dataCache, token, callback)

    @never_raises()
    def prepareModelFromCache(
        self, modelCache: Sequence[Sequence[int]], dataCache: Sequence[Sequence[int]], token: bytes, callback: Any
    ) -> ErrorStatus:
        """1.2: prepare a model from the cache."""
        return older_status(self.prepareModelFromCache_1_3(None, modelCache, dataCache, token, callback))

    @never_raises()
    def prepareModelFromCache_1_3(
        self,
        deadline: TimePoint,
        modelCache: Sequence[Sequence[int]],
        dataCache: Sequence[Sequence[int]],
        token: bytes,
        callback: Any,
    ) -> ErrorStatus:
        """1.3: likewise, with a deadline."""

        def check(preparation: Preparation) -> Callable[[], PreparedModel]:
            return preparation.from_cache(modelCache, dataCache, token)

        return self._launch(check, MEDIUM, deadline, callback)

    @never_raises()
    def prepare(
        self,
        model: Callable[[], Model],
        version: Version,
        preference: ExecutionPreference | int,
        priority: Priority | int,
        deadline: TimePoint,
        modelCache: Sequence[Sequence[int]],
        dataCache: Sequence[Sequence[int]],
        token: bytes,
        callback: Any,
    ) -> ErrorStatus:
        """Not part of the interface: ``prepareModel`` of any version. ``model``: returns the model; its exceptions
        become the status."""

        def check(preparation: Preparation) -> Callable[[], PreparedModel]:
            return preparation.from_model(model(), version, preference, modelCache, dataCache, token)

        return self._launch(check, priority, deadline, callback)

    def _launch(
        self,
        check: Callable[[Preparation], Callable[[], PreparedModel]],
        priority: int,
        deadline: TimePoint,
        callback: Any,
    ) -> ErrorStatus:
        """Run the function that ``check`` returns on another thread. An exception of ``check`` becomes the status of
        the launch."""
        try:
            check_callback(callback)
            self._engine.check_available()
            limit = deadline_of(deadline, self._engine.clock)
            work = check(Preparation(self._engine, self._state_dir, priority, limit))
            task, patience_s = partial(_prepare_and_notify, work, callback), None
            if limit is not None:  # the client is notified of a timeout even if no thread is free to prepare the model
                patience_s = limit.seconds_left()
            self._engine.tasks.submit(task, priority, patience_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, launch and callback get its status
            status = status_of(error, "preparation")
            # The interface requires both the status of the launch and the callback, even after a failure.
            notify_prepared(callback, status, None)
            return status
        return ErrorStatus.NONE

    # Memory

    @never_raises(nothing, int)
    def allocate(
        self,
        desc: BufferDesc,
        preparedModels: Sequence[PreparedModel],
        inputRoles: Sequence[BufferRole],
        outputRoles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, Any, int]:
        """1.3: memory of the device for inputs and outputs: (status, IBuffer, token)."""
        self._engine.check_available()
        return self._engine.buffers.allocate(desc, preparedModels, inputRoles, outputRoles)


def _prepare_and_notify(work: Callable[[], PreparedModel], callback: Any) -> None:
    prepared = None
    try:
        prepared = work()
        status = ErrorStatus.NONE
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a status
        status = status_of(error, "preparation")
    notify_prepared(callback, status, prepared)
