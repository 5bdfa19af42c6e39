"""The provider of one session of ONNX Runtime: it claims nodes, and compiles and runs programs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto

from hal.ort.claims import claim
from hal.ort.context import EP_CONTEXT, read_context, write_context
from hal.ort.group import Group
from npusim.cache import FORMAT_VERSION
from npusim.errors import NpusimError, UsageError
from npusim.frontends.onnx.signature import free_inputs
from npusim.frontends.onnx.source import Model
from npusim.hw.config import list_configs, load_config
from npusim.isa.base import ISA_VERSION
from npusim.runtime import Result, Session

_log = logging.getLogger("npusim.ort")
Log = Callable[..., None]

OPTIONS = ("config", "cache", "timing_only", "faults", "trace", "dump")
CONFIGS_VARIABLE = "NPUSIM_ORT_CONFIGS"
"""Environment variable: names of the devices to offer, separated by commas."""
DEFAULT_CONFIG = "edge"
EXTERNAL_BYTES = 1 << 30
"""Models with larger weights are dumped with the weights in a second file, because protobuf ends at 2 GiB."""
OPTIMAL, RECOMPILE, UNSUPPORTED = 1, 2, 3
"""OrtCompiledModelCompatibility."""

_SWITCHES = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_devices: weakref.WeakValueDictionary[tuple[str, str], Session] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class OrtError(Exception):
    """A function of ONNX Runtime has failed."""


class Received:
    """A graph of ONNX Runtime. ``weights``: views of large initializers by name, valid during the call that passes the
    graph. ``path``: of the model, or an empty string. ``scalars``: values without a shape may be scalars."""

    def __init__(self, proto: ModelProto, weights: dict[str, memoryview], path: str, scalars: bool) -> None:
        self.proto = proto
        self.weights = weights
        self.path = path
        self.scalars = scalars

    def kept(self) -> Model:
        """As a model with its own copy of the weights."""
        return Model(self.proto, None, {name: memoryview(bytes(view)) for name, view in self.weights.items()})


def offered(room: int) -> list[str]:
    """The names of the devices that a factory offers, at most ``room``. Raises UsageError, ConfigError."""
    given = [name.strip() for name in os.environ.get(CONFIGS_VARIABLE, "").split(",") if name.strip()]
    for name in given:
        load_config(name)
    names = given or [DEFAULT_CONFIG, *(name for name in list_configs() if name != DEFAULT_CONFIG)]
    return names[:room]


def verdict(text: str) -> int:
    """Whether a model that was compiled for this :attr:`Provider.compatibility` can be used."""
    found = re.fullmatch(r"npusim (\d+)\.(\d+) (\S+) (\S+)", text)
    if found is None or (int(found[1]), int(found[2])) != (FORMAT_VERSION, ISA_VERSION):
        return UNSUPPORTED
    try:
        return OPTIMAL if load_config(found[3]).fingerprint() == found[4] else RECOMPILE
    except NpusimError:
        return UNSUPPORTED


def described(error: BaseException) -> str:
    """The text of an error for a client. The traceback of an error that is none of npusim's goes to the log."""
    if isinstance(error, NpusimError):
        return f"npusim: {error}"
    if isinstance(error, Exception) and not isinstance(error, OrtError):
        _log.error("a defect of the execution provider", exc_info=error)
    return f"npusim: {type(error).__name__}: {error}"


class Provider:
    """``name``: of the registration. ``configs``: of the devices that the session names. ``entries``: the options of
    the session. ``failure``: an error while nodes were claimed, raised when they are compiled."""

    def __init__(self, name: str, configs: Sequence[str], entries: Mapping[str, str], log: Log) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._entries = entries
        self._log = log
        prefix = f"ep.{name.lower()}."
        options = {key[len(prefix) :]: value for key, value in entries.items() if key.startswith(prefix)}
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise UsageError(f"option {', '.join(unknown)}: unknown; there are {', '.join(OPTIONS)}")
        if "config" not in options and len(set(configs)) > 1:
            raise UsageError(f"the session names the devices {', '.join(configs)}: name one, or set config")
        self.timing_only = _switch("timing_only", options.get("timing_only", "0"))
        self._trace, self._dump = (_folder(key, options.get(key)) for key in ("trace", "dump"))
        config = options.get("config") or (configs[0] if configs else DEFAULT_CONFIG)
        self.session = _session(config, options.get("cache", ""), options.get("faults"))
        self._profile: list[tuple[str, str, int, int]] | None = None
        self._profile_start_ns = 0

    # Graphs

    def claim(self, graph: Received) -> list[list[int]]:
        """The groups of nodes that the device runs, by number. The others are in the log."""
        contexts = [number for number, node in enumerate(graph.proto.graph.node) if node.op_type == EP_CONTEXT]
        own = [n for n in contexts if self._is_own(graph.proto.graph.node[n])]
        nodes = len(graph.proto.graph.node)
        if len(contexts) == nodes:
            return [[number] for number in own]
        model = Model(graph.proto, None, graph.weights)
        groups, refused = claim(model, self.session.config, contexts, scalars=graph.scalars)
        for kind, reason in sorted({(graph.proto.graph.node[n].op_type, reason) for n, reason in refused.items()}):
            self._log(f"{self.name}: not on {self.session.config.name}: {kind}: {reason}")
        return [[number] for number in own] + groups

    def _is_own(self, node: onnx.NodeProto) -> bool:
        return any(each.name == "source" and each.s == self.name.encode() for each in node.attribute)

    def compile(self, graph: Received, name: str) -> Group:
        """A group of nodes that this provider has claimed. Raises errors of the compiler."""
        nodes = graph.proto.graph.node
        names = [value.name for value in free_inputs(graph.proto.graph)]
        outputs = [value.name for value in graph.proto.graph.output]
        if len(nodes) == 1 and nodes[0].op_type == EP_CONTEXT:
            source = read_context(nodes[0], graph.path)
            return Group(self, name, source, names, outputs)
        if self._dump is not None:
            _dump(graph, _file(self._dump, name, ".onnx"))
        group = Group(self, name, graph.kept(), names, outputs)
        group.compile_fixed()
        return group

    def context_of(self, group: Group, path: str) -> dict[str, bytes | int] | None:
        """The attributes of the node EPContext of a group, if the session asks for it. Raises UsageError."""
        entries = self._entries
        if entries.get("ep.context_enable") != "1":
            return None
        embedded = entries.get("ep.context_embed_mode", "0") == "1"
        file = None if embedded else self._context_file(group, path)
        return {**write_context(group.source, file), "source": self.name.encode()}

    def _context_file(self, group: Group, path: str) -> Path:
        path = self._entries.get("ep.context_file_path") or (path and f"{Path(path).with_suffix('')}_ctx.onnx")
        if not path:
            raise UsageError("ep.context_embed_mode is 0, and ep.context_file_path does not name the model's file")
        return _file(Path(path).parent, f"{Path(path).stem}_{group.name}", ".npusim")

    # Runs

    def finished(self, group: Group, result: Result, started_ns: int) -> None:
        """Record a run in the trace and the profile that were asked for."""
        if self._trace is not None:
            from npusim.report.flows import flows
            from npusim.report.perfetto import write_trace

            group.runs += 1
            path = _file(self._trace, f"{group.name}-{group.runs}", ".perfetto-trace")
            program, timeline = result.program, result.timeline
            clock = result.device.clock_hz
            arrows = flows(program, timeline)
            write_trace(path, timeline, program.ops, clock, result.memory, result.provenance, arrows)
        profile = self._profile
        if profile is not None:
            start_us = (started_ns - self._profile_start_ns) // 1000
            profile.append((group.name, "device", start_us, result.total_ps))
            profile += [
                (op.name, "layer", start_us + op.start_ps // 10**6, op.end_ps - op.start_ps) for op in result.ops
            ]

    def start_profiling(self, offset_ns: int) -> None:
        """Record runs. ``offset_ns``: since the start of ONNX Runtime's profile."""
        self._profile_start_ns = time.monotonic_ns() - offset_ns
        self._profile = []

    def end_profiling(self) -> list[tuple[str, str, int, int]]:
        """(name, kind, start in microseconds of host time, simulated ps) of each run and each layer."""
        found, self._profile = self._profile, None
        return found or []

    def set_options(self, options: Mapping[str, str]) -> None:
        """Options that a client changes while the session exists. Raises UsageError for all but ONNX Runtime's own."""
        for key, value in options.items():
            if key != "ep.dynamic.workload_type" or value not in ("Default", "Efficient"):
                raise UsageError(f"dynamic option {key}={value}: unknown; options are set when a session is made")

    @property
    def compatibility(self) -> str:
        """What programs of this provider depend on."""
        config = self.session.config
        return f"npusim {FORMAT_VERSION}.{ISA_VERSION} {config.name} {config.fingerprint()}"


class FailedProvider:
    """A provider that could not be made, with the error.

    Some versions of the Python package of ONNX Runtime then use the CPU. All raise the error of a compilation.
    """

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        self.compatibility = ""

    def claim(self, graph: Received) -> list[list[int]]:
        """Raises the error, so that all nodes are claimed and their compilation fails."""
        raise self.failure

    def start_profiling(self, offset_ns: int) -> None:
        """See Provider."""

    def end_profiling(self) -> list[tuple[str, str, int, int]]:
        """See Provider."""
        return []


def opened(name: str, configs: Sequence[str], entries: Mapping[str, str], log: Log) -> Provider | FailedProvider:
    """The provider of a session."""
    try:
        return Provider(name, configs, entries, log)
    except Exception as error:  # noqa: BLE001 raised by the session
        return FailedProvider(error)


def _file(folder: Path, name: str, suffix: str) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}{suffix}"


def _switch(key: str, value: str) -> bool:
    if value.lower() not in _SWITCHES:
        raise UsageError(f"option {key}: must be one of {', '.join(_SWITCHES)}, got {value!r}")
    return _SWITCHES[value.lower()]


def _folder(key: str, value: str | None) -> Path | None:
    """A directory for files, made if it is missing. Raises UsageError."""
    if not value:
        return None
    try:
        Path(value).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"option {key}: {value}: {error.strerror or error}") from None
    return Path(value)


def _session(config: str, cache: str, faults: str | None) -> Session:
    """The device of a configuration, which sessions of ONNX Runtime share while one of them exists. One with faults is
    not shared."""
    cache_dir = _SWITCHES.get(cache.lower(), cache or True)
    if faults is not None:
        return Session(config, cache_dir=cache_dir, faults=faults)
    with _lock:
        session = _devices.get((config, str(cache_dir)))
        if session is None:
            session = _devices[config, str(cache_dir)] = Session(config, cache_dir=cache_dir)
        return session


def _dump(graph: Received, path: Path) -> None:
    """Write a graph as an ONNX file. Raises UsageError."""
    proto = ModelProto()
    proto.CopyFrom(graph.proto)
    total = sum(len(view) for view in graph.weights.values())
    weights = path.with_suffix(".weights") if total > EXTERNAL_BYTES else None
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(weights.open("wb")) if weights is not None else None
            for tensor in proto.graph.initializer:
                view = graph.weights.get(tensor.name)
                if view is None:
                    continue
                if file is None:
                    tensor.raw_data = bytes(view)
                    continue
                tensor.data_location = onnx.TensorProto.EXTERNAL
                place = {"location": Path(file.name).name, "offset": str(file.tell()), "length": str(len(view))}
                for key, value in place.items():
                    tensor.external_data.add(key=key, value=value)
                file.write(view)
        path.write_bytes(proto.SerializeToString())
    except OSError as error:
        raise UsageError(f"option dump: {path}: {error.strerror or error}") from None
