"""ANeuralNetworksCompilation: a model prepared on devices."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..aidl.types import BYTE_SIZE_OF_CACHE_TOKEN, OMITTED, PrepareModelConfig, ServiceSpecificException, TokenValuePair
from ..types import ErrorStatus, ExecutionPreference, Priority
from . import diagnostics, extensions
from .caching import Cache, CachedCompilation, CacheFiles
from .codes import PRIORITIES, ApiError, ResultCode, bad_data, bad_state, code_of
from .devices import Device, devices
from .model import Model
from .partition import Part, Stretch, available, parts_of, spread

INT64_MAX = (1 << 63) - 1
ALIGNMENT = 64
PADDING = 64
"""Preferred alignment and padding of input and output memory in bytes: a cache line of the host."""
NO_TOKEN = bytes(BYTE_SIZE_OF_CACHE_TOKEN)
_serials = itertools.count(1)
_log = logging.getLogger("hal.nnapi.capi")


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """A part of the model, prepared by its device."""

    part: Part
    prepared: Any


class Compilation:
    """A compilation. ``chosen``: the devices that the client named, None if the runtime chooses."""

    def __init__(self, model: Model, chosen: Sequence[Device] | None) -> None:
        if not model.finished:
            raise bad_state("the model is not finished, or not valid")
        self.model = model
        self.serial = next(_serials)
        self.steps: list[PreparedPart] = []
        self._chosen = chosen
        self._preference = ExecutionPreference.FAST_SINGLE_ANSWER
        self._priority = Priority.MEDIUM
        self._timeout_ns = 0
        self._cache: Cache | None = None
        self._files: CacheFiles | None = None
        self._hints: list[TokenValuePair] = []
        self._finished = False

    # Before the end

    def set_preference(self, preference: int) -> None:
        """LOW_POWER, FAST_SINGLE_ANSWER or SUSTAINED_SPEED."""
        self._check_open("setPreference")
        if preference not in set(ExecutionPreference):
            raise bad_data(f"the preference must be 0, 1 or 2, got {preference}")
        self._preference = ExecutionPreference(preference)

    def set_priority(self, priority: int) -> None:
        """ANEURALNETWORKS_PRIORITY_*."""
        self._check_open("setPriority")
        if priority not in PRIORITIES:
            raise bad_data(f"the priority must be one of {sorted(PRIORITIES)}, got {priority}")
        self._priority = PRIORITIES[priority]

    def set_timeout(self, nanoseconds: int) -> None:
        """Limit the duration of ``finish``; 0 for no limit."""
        self._check_open("setTimeout")
        self.check_one_device("setTimeout")
        self._timeout_ns = nanoseconds

    def set_caching(self, directory: str, token: bytes) -> None:
        """Set the directory and the token of the compilation cache."""
        self._check_open("setCaching")
        if not directory:
            raise bad_data("the directory of the cache must have a name")
        self._cache = Cache(directory, token)

    def set_cache_files(self, model_files: Sequence[int], data_files: Sequence[int], token: bytes) -> None:
        """Set open files of the compilation cache, whose descriptors are duplicated, and their token."""
        self._check_open("setCachingFromFds")
        self.check_one_device("setCachingFromFds")
        try:
            self._files = CacheFiles(model_files, data_files, token)
        except OSError as error:
            raise bad_data(f"setCachingFromFds: a descriptor cannot be duplicated: {error.strerror}") from None

    def add_attribute(self, extension: str, code: int, data: bytes) -> None:
        """Add a vendor hint, which is passed to the driver unchanged."""
        self._check_open("addExtensionAttribute")
        self.check_one_device("addExtensionAttribute")
        self._hints.append(TokenValuePair(extensions.full_type(extension, code), data))

    # The end

    @property
    def finished(self) -> bool:
        """Whether it can be executed."""
        return bool(self.steps)

    def check_finished(self) -> None:
        """Raise ApiError (BAD_STATE) unless it can be executed."""
        if not self.steps:
            raise bad_state("the compilation is not finished, or has failed")

    def check_one_device(self, function: str) -> None:
        """Raise ApiError (BAD_DATA) unless the client has named exactly one device."""
        if self._chosen is None or len(self._chosen) != 1:
            raise bad_data(f"{function} needs a compilation made by createForDevices with one device")

    @property
    def cached(self) -> bool:
        """Whether the client has set a cache."""
        return self._cache is not None or self._files is not None

    def devices(self) -> Sequence[Device]:
        """The devices that execute it; before the end, those that may."""
        return [step.part.device for step in self.steps] or self._chosen or devices()

    def finish(self) -> None:
        """Compile. Raises ApiError: BAD_STATE the second time, BAD_DATA if no device can execute the model."""
        self._check_open("finish")
        since, code = diagnostics.started_ns(), ResultCode.OP_FAILED
        try:
            self._finish()
            code = ResultCode.NO_ERROR
        except (ApiError, ServiceSpecificException) as error:
            code = error.code if isinstance(error, ApiError) else code_of(error.errorCode)
            raise
        finally:
            diagnostics.compiled(self, code, since)

    def _finish(self) -> None:
        # Even if it fails now: a compilation has a single attempt, as on Android.
        self._finished = True
        deadline = OMITTED
        if self._timeout_ns:
            deadline = min(time.monotonic_ns() + self._timeout_ns, INT64_MAX)
        choice = available(self._chosen or devices())
        if self._files is not None:
            with self._files as files:
                self.steps = self._with_files(choice, files, deadline)
            return
        kept = None
        if self._cache is not None:
            types = [int(operation.type) for operation in self.model.composed.main.operations]
            kept = CachedCompilation(self._cache, choice, len(types), types, int(self._preference), int(self._priority))
        self.steps = (self._from_cache(kept, deadline) if kept else []) or self._compile(choice, kept, deadline)

    def _with_files(self, choice: Sequence[Device], files: CacheFiles, deadline: int) -> list[PreparedPart]:
        """The only step, from the client's open files, or compiled and stored in them."""
        [device], model = choice, self.model.composed
        opened = (files.model_files, files.data_files)
        stretch: Stretch = (device, range(len(model.main.operations)))
        config = self._config(deadline, files.token)
        found = _prepare_cached(device, opened, config) if files.model_files else None
        if found is not None:
            return [PreparedPart(parts_of(model, [stretch])[0], found)]
        [part] = parts_of(model, spread(model, choice, self._preference, deadline))
        config.modelCache, config.dataCache = opened
        return [PreparedPart(part, _prepare_fresh(part, config))]

    def _from_cache(self, kept: CachedCompilation, deadline: int) -> list[PreparedPart]:
        """The steps that an earlier compilation stored; empty unless the drivers accept all of them."""
        for stretches in kept.candidates():
            prepared = []
            for stretch in stretches:
                entry = kept.entry(stretch)
                with entry.opened(create=False) as files:
                    config = self._config(deadline, entry.token)
                    found = None if files is None else _prepare_cached(stretch[0], files, config)
                if found is None:
                    if files is not None:
                        _log.warning("%s: is not used: the driver did not write it, or not so", entry.model_files[0])
                    break
                prepared.append(found)
            else:
                parts = parts_of(self.model.composed, stretches)
                return [PreparedPart(part, each) for part, each in zip(parts, prepared, strict=True)]
        return []

    def _compile(self, choice: Sequence[Device], kept: CachedCompilation | None, deadline: int) -> list[PreparedPart]:
        model = self.model.composed
        stretches = spread(model, choice, self._preference, deadline)
        steps = []
        for stretch, part in zip(stretches, parts_of(model, stretches), strict=True):
            if kept is None:
                steps.append(PreparedPart(part, _prepare_fresh(part, self._config(deadline))))
                continue
            entry = kept.entry(stretch)
            config = self._config(deadline, entry.token)
            with entry.opened(create=True) as files:
                config.modelCache, config.dataCache = files or ((), ())
                steps.append(PreparedPart(part, _prepare_fresh(part, config)))
        if kept is not None:
            kept.note(stretches)
        return steps

    def _config(self, deadline: int, token: bytes = NO_TOKEN) -> PrepareModelConfig:
        return PrepareModelConfig(
            self._preference,
            self._priority,
            deadline,
            cacheToken=token,
            compilationHints=self._hints,
            extensionNameToPrefix=extensions.known() if self._hints else (),
        )

    def _check_open(self, function: str) -> None:
        if self._finished:
            raise bad_state(f"{function}: the compilation is finished")


class _Callback:
    """IPreparedModelCallback: waits for the result of a preparation."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._status = ErrorStatus.GENERAL_FAILURE
        self._prepared: Any = None

    def notify(self, status: ErrorStatus, prepared: Any) -> None:
        self._status, self._prepared = status, prepared
        self._told.set()

    def result(self) -> Any:
        """The prepared model. Raises ApiError."""
        self._told.wait()
        if self._status is not ErrorStatus.NONE:
            raise ApiError(
                code_of(self._status), "the driver has not prepared the model; the log of hal.nnapi says why"
            )
        return self._prepared


def _prepare_fresh(part: Part, config: PrepareModelConfig) -> Any:
    return _prepared(lambda callback: part.device.aidl.prepareModelWithConfig(part.model, config, callback))


def _prepare_cached(device: Device, files: tuple[list[int], list[int]], config: PrepareModelConfig) -> Any | None:
    """The model from the cache; None if the driver cannot use the files for any reason."""
    try:
        return _prepared(
            lambda callback: device.aidl.prepareModelFromCache(config.deadlineNs, *files, config.cacheToken, callback)
        )
    # For any reason, because the cache only avoids compiling.
    except (ApiError, ServiceSpecificException):
        return None


def _prepared(launch: Callable[[_Callback], None]) -> Any:
    callback = _Callback()
    launch(callback)
    return callback.result()
