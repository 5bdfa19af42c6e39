"""Session: compile, load and run on one device, for facades, tools and the command line."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from npusim._core import DefaultFloats
from npusim.cache import Cache, default_directory
from npusim.compiler.schedule.schedule import FREE, Schedule
from npusim.compiler.schedule.schedule_file import read_schedule
from npusim.device.findings import Finding
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.dtypes import DType, dtype_of, from_storage, to_storage, value_text
from npusim.errors import DriverCheckError, InputError, NeedsValueError, UndecidedError, UsageError, shown
from npusim.faults import Faulty, script_of
from npusim.graph import DOUBLING, Graph
from npusim.hw.config import Config, load_config
from npusim.hw.mapping import changes
from npusim.program import Program
from npusim.runtime.compile_request import CompileRequest
from npusim.runtime.dispatcher import Dispatcher
from npusim.runtime.job import check_program
from npusim.runtime.planned import PlannedProgram, execute, held_value, planned_program
from npusim.runtime.provenance import Origin
from npusim.runtime.request import Request
from npusim.runtime.result import Result
from npusim.runtime.state import State
from npusim.runtime.store import ProgramStore
from npusim.turns import Turns, serialised
from npusim.units import Dimension, parse
from npusim.weights import check

if TYPE_CHECKING:
    from npusim.compiler.pipeline import Explained
    from npusim.runtime.compile_request import Source

Array = npt.NDArray[Any]

DECISION_LIMIT = "2 s"
"""Default limit of the simulated time of a run with decisions."""


class _Decided(Exception):  # noqa: N818 it is no error
    """Values of inputs have determined the graph, so its program has another key. Argument: the graph."""


class Session:
    """One simulated device with its driver. Thread-safe: one thread at a time compiles or runs, the others wait.

    ``config``: a Config, a name from ``configs/`` or a path. ``cache_dir``: directory for compiled programs; None is
    the cache directory of the user, False disables the cache. ``faults``: a script of faults for the device, see
    :mod:`npusim.faults`; ``device.faults`` lists those that have happened, and closing the session raises UsageError if
    one has not. ``timeout``: simulated time (text such as ``"2 s"``, or ps) from the doorbell to the end of a run;
    after that the device is reset, and the run fails with DeviceFaultError TIMEOUT. None: a run only fails with TIMEOUT
    if the device has no pending events. ``check_driver``: check the accesses of the driver, see
    docs/reference/driver-check.md; its mistakes are in :attr:`findings`, and :meth:`close` raises them. ``adversary``:
    a seed for delays that the contract of the device leaves open. ``decision_limit``: simulated time of a run in which
    the host decides what is computed, after which DeadlineError ends it, because a loop may be endless. ``bus_trace``:
    a file to record the accesses between
    driver and device, see docs/guide/bus-traces.md; :meth:`close` completes it. An unpickled session has a fresh device
    and no bus trace.
    """

    def __init__(
        self,
        config: Config | str | os.PathLike[str],
        *,
        cache_dir: str | os.PathLike[str] | bool | None = None,
        faults: Faulty | None = None,
        timeout: str | int | None = None,
        check_driver: bool | str | None = None,
        adversary: int | None = None,
        bus_trace: str | os.PathLike[str] | None = None,
        decision_limit: str | int = DECISION_LIMIT,
    ) -> None:
        self.config = load_config(config)
        self._limit_ps = _time(decision_limit, "decision_limit")
        self._faults = None if faults is None else script_of(faults)
        self._timeout_ps = None if timeout is None else _time(timeout, "timeout")
        self._cache_dir = cache_dir
        self.check_driver = check_driver
        self.adversary = adversary
        self.bus_trace = bus_trace
        # Programs belong to the caller; a session only keeps cache files.
        folder = default_directory() if cache_dir is None or isinstance(cache_dir, bool) else Path(cache_dir)
        self.turns = Turns()
        self._store = ProgramStore(self.config, self.unload, None if cache_dir is False else Cache(folder))
        self._deciding: dict[str, tuple[str, ...]] = {}  # inputs that determine the program, by key of the request
        # By key and determining values.
        self._forms: weakref.WeakValueDictionary[tuple[str, ...], Program] = weakref.WeakValueDictionary()
        self._origins: weakref.WeakKeyDictionary[Program, Origin] = weakref.WeakKeyDictionary()
        self._contents: dict[tuple[str, str], tuple[str, str]] = {}  # identities with values, by identities without
        self._planned: dict[str, PlannedProgram] = {}  # models with decisions at run time, by key of the request
        self._dispatcher: Dispatcher | None = None
        if self._faults is not None:
            self._powered()  # now, so that unsupported faults are reported to the caller

    def __getstate__(self) -> dict[str, Any]:
        names = {"cache_dir": self._cache_dir, "faults": self._faults, "timeout": self._timeout_ps}
        options = {
            "check_driver": self.check_driver,
            "adversary": self.adversary,
            "decision_limit": self._limit_ps,
        }
        return {"config": self.config, **names, **options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Session.__init__(self, **state)

    @property
    def device(self) -> NpuDevice:
        """The simulated device, powered on at the first use."""
        return self._power_on().device

    @property
    def driver(self) -> Driver:
        """The reference driver on the bus of the device."""
        return self._power_on().driver

    @property
    def findings(self) -> list[Finding]:
        """Mistakes of the driver found so far; empty without ``check_driver``."""
        checker = self._dispatcher.device.checker if self._dispatcher is not None else None
        return checker.findings if checker is not None else []

    def _power_on(self) -> Dispatcher:
        """The dispatcher. Does not wait for other threads if the device is on already."""
        found = self._dispatcher
        if found is None:
            with self.turns.lock:
                found = self._powered()
        return found

    def _powered(self) -> Dispatcher:
        if self._dispatcher is None:
            self._dispatcher = Dispatcher(
                self.config,
                self._faults,
                preemption=False,
                timeout_ps=self._timeout_ps,
                check=self.check_driver,
                adversary=self.adversary,
                bus_trace=self.bus_trace,
                turns=self.turns,
            )
        return self._dispatcher

    @serialised
    def compile(
        self,
        source: Source,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        *,
        bind: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        deciding: Mapping[str, Any] | None = None,
        cache_rows: int = 0,
        timing_only: bool = False,
        schedule: Schedule | str | os.PathLike[str] | None = None,
        decisions: bool = False,
    ) -> Program:
        """Compile a model, or take its program from the cache: a path, bytes, an ``onnx.ModelProto`` or a Graph.

        ``input_shapes``: dimensions that the model leaves open, by input. ``bind``: inputs that become constants, as
        numbers or arrays by name. ``inputs``: an array for each input, from which the remaining open dimensions are
        taken, and values that decide shapes, branches or loops if they follow from inputs of at most 32 elements. The
        host computes these values; ``host`` of the program lists them, and the program refuses inputs that decide
        otherwise. Integers and booleans that only decide are not inputs of the program, but in its ``bound``.
        ``deciding``: arrays for some inputs, only used for decisions. ``cache_rows``: capacity in rows of inputs that
        grow to outputs by concatenation, such as the caches of a decoder; 0: exactly the rows of the output. They grow
        in place, and are listed in ``states`` of the program. ``timing_only``: compile for runs with ``timing_only``,
        which take the same time. Large weights are not read, hashed or kept unless their values decide what is
        compiled, and their files need not exist. ``schedule``: choices of the compiler that are given, or the file
        with them; the others are searched. ``decisions``: a model that decides at run time what is computed, which no
        program can, becomes a :class:`PlannedProgram` for :meth:`run`; otherwise it is refused with UndecidedError.
        Raises UsageError, InputError, ModelError, UnsupportedError, CompileError, and ScheduleError for a schedule that
        cannot be built.
        """
        request = CompileRequest(
            self.config, source, input_shapes or {}, dict(bind or {}), cache_rows, timing_only, _schedule(schedule)
        )
        if isinstance(source, Graph):
            given = {"input_shapes": input_shapes, "bind": bind, "deciding": deciding, "cache_rows": cache_rows}
            if refused := next((name for name, value in given.items() if value), None):
                raise UsageError(f"{refused}: not allowed for a Graph, whose shapes and values are fixed")
            return self._read(request, {})
        if inputs is None:
            return self._read(request, deciding or {}, decisions)
        return self._compile_for(request, inputs, decisions=decisions)

    def _read(self, request: CompileRequest, arrays: Mapping[str, Any], decisions: bool = False) -> Program:
        """The program of a model whose open dimensions and bound inputs are known.

        ``arrays``: values of the inputs that may determine the graph.
        """
        if not decisions:
            return self._read_whole(request, arrays)
        # Most sessions have no planned model, and the key takes time.
        planned = self._planned.get(request.key(self._identity(request))) if self._planned else None
        if planned is not None:
            return planned
        try:
            return self._read_whole(request, arrays)
        except UndecidedError as error:
            if isinstance(error, NeedsValueError) or request.timing_only:
                raise
            key = request.key(self._identity(request))
            self._planned[key] = self._plan(request, key)
            return self._planned[key]

    def _plan(self, request: CompileRequest, key: str) -> PlannedProgram:
        """A model that decides at run time what is computed. Its programs are compiled when they are needed."""
        from npusim.frontends.models import planned_model

        assert not isinstance(request.source, Graph)
        model = planned_model(request.source, self.config, request.shapes, request.bind, self._segment, self.unload)
        name = model.name if request.file is None else Path(request.file).stem
        program = planned_program(model, name, key)
        self._origins[program] = request.origin(self._identity(request)[0])
        return program

    def _segment(self, graph: Graph) -> Program:
        """The program of a segment of a plan. It is shared by equal segments that need the same work of the host."""
        request = CompileRequest(self.config, graph)
        return self._compiled(request, request.identity, lambda: graph, repr(graph.host.work))

    def _read_whole(self, request: CompileRequest, arrays: Mapping[str, Any]) -> Program:
        """The program of a model that is one program."""

        def make() -> Graph:
            graph = request.load(arrays)
            if graph.host.deciding:
                raise _Decided(graph)
            return graph

        model = self._identity(request)
        decided: dict[str, Any] = {}
        try:
            # No value of an input has affected programs with this key.
            program = self._compiled(request, model, make)
        except _Decided as found:
            graph: Graph = found.args[0]
            decided = {name: arrays[name] for name in graph.host.deciding}
            choice = repr((graph.bound, graph.host.decided))
            program = self._compiled(request, model, lambda: graph, choice)
            program.host = graph.host  # a program from a file cannot check its inputs
        self._origins[program] = request.origin(model[0], decided)
        return program

    def _compiled(
        self, request: CompileRequest, model: tuple[str, str], graph: Callable[[], Graph], choice: str = ""
    ) -> Program:
        """The program from the store, which compiles the graph if it has none."""
        made: list[Graph] = []

        def make() -> Graph:
            made.append(graph())
            return made[0]

        def confirm() -> None:
            check(tensor.data for graph in made for tensor in graph.constants() if tensor.data is not None)

        computing = replace(request, timing_only=False).key(self._contents.get(model, model), choice)
        if not request.timing_only:
            return self._store.compile(computing, make, confirm, schedule=request.schedule)
        key = request.key(model, choice)
        return self._store.compile(key, make, confirm, computing=computing, schedule=request.schedule)

    def _compile_for(
        self,
        request: CompileRequest,
        inputs: Mapping[str, Any],
        held: Set[str] = frozenset(),
        *,
        decisions: bool = False,
    ) -> Program:
        """The program for arrays. Only shapes and types of the ``held`` ones are known."""
        from npusim.frontends.models import shapes_of

        source, bound = request.source, dict(request.bind)
        assert not isinstance(source, Graph)
        shapes = shapes_of(source, inputs, request.shapes, bound)
        request = replace(request, shapes=shapes, bind=bound)
        free = request.key(self._identity(request))
        # The determining inputs are known once the model has been read. Programs for values that were seen before are
        # then found without reading the model again.
        known = self._deciding.get(free, ())
        program = self._forms.get(_form(free, known, inputs))
        if program is not None and known and not program.constants.lost:
            return program
        arrays = {name: array for name, array in inputs.items() if name not in held and name not in bound}
        try:
            program = self._read(request, arrays, decisions)
        except NeedsValueError as error:
            for name in held & error.values.keys():
                raise UsageError(f"state {name!r}: its value determines the program; give it as an input") from None
            raise
        if program.host.deciding:
            self._deciding[free] = tuple(sorted({*known, *program.host.deciding}))
            self._forms[_form(free, self._deciding[free], inputs)] = program
        return program

    def state(
        self, arrays: Mapping[str, Any] | Source, *, feeds: Mapping[str, str] | None = None, cache_rows: int = DOUBLING
    ) -> State:
        """Tensors that stay on the device between runs, by the names of the inputs that they replace; for a TFLite
        model in place of the arrays, its variables with their first values.

        ``feeds``: input names by the names of outputs that become inputs of the next run; not needed for inputs that
        grow to outputs by concatenation. ``cache_rows``: capacity in rows of tensors that grow, so that no run moves
        them. By default their capacity is doubled when needed, and the host moves them each time. Raises UsageError.
        """
        feeds = dict(feeds or {})
        if not isinstance(arrays, Mapping):
            from npusim.frontends.models import variables

            if isinstance(arrays, Graph):
                raise UsageError("state: give arrays by input name, or a model with variables")
            arrays, own = variables(arrays)
            if not arrays:
                raise UsageError("state: the model has no variables; give arrays by input name")
            feeds = {**own, **feeds}
        return State(self._power_on(), arrays, feeds, cache_rows)

    def explain_memory(
        self,
        source: Source,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        *,
        bind: Mapping[str, Any] | None = None,
        schedule: Schedule | str | os.PathLike[str] | None = None,
    ) -> Explained:
        """Compile a model without the cache and explain its memory allocation. Arguments as for :meth:`compile`."""
        from npusim.compiler.pipeline import explain_graph

        with DefaultFloats():
            graph = CompileRequest(self.config, source, input_shapes or {}, bind or {}).load()
            return explain_graph(graph, self.config, _schedule(schedule))

    def run(
        self,
        program: Program | Source,
        inputs: Mapping[str, Any] | None = None,
        *,
        timing_only: bool = False,
        state: State | None = None,
        on: Config | str | os.PathLike[str] | None = None,
    ) -> Result:
        """Run a program, or compile and run a model, once.

        ``inputs``: an array for each input, of its shape and type; not needed with ``timing_only``, which takes the
        same simulated time without computing. Open dimensions of a model are taken from them, see :meth:`compile`; it
        is compiled once per form. ``state``: inputs that are on the device, and outputs that stay there for the next
        run. ``on``: another device that runs the program compiled for this one unchanged. It may differ in costs
        (``npusim.hw.mapping`` lists the keys), but not in structure; the result names the device of the program.
        KeyboardInterrupt powers the device off: its states are lost, and the next run starts a fresh device. Raises
        InputError, DeviceFaultError, DeviceMemoryError.
        """
        if on is not None:
            return self._run_on(load_config(on), program, inputs, timing_only, state)
        try:
            return self._run_here(program, inputs, timing_only, state)
        except KeyboardInterrupt:  # it may occur at any point
            self._lose()
            raise

    @serialised
    def _run_here(
        self, program: Program | Source, inputs: Mapping[str, Any] | None, timing_only: bool, state: State | None
    ) -> Result:
        held = state.placeholders() if state is not None else {}
        if state is not None:
            state.check_owner(self._powered())
            if double := held.keys() & (inputs or {}).keys():
                raise UsageError(f"input {min(double)!r} is in the state already")
        if not isinstance(program, Program):
            source = program
            if state is None or isinstance(program, Graph):
                arrays_given = None if timing_only and inputs is None else inputs or {}
                program = self.compile(program, inputs=arrays_given, timing_only=timing_only, decisions=not timing_only)
            else:
                request = CompileRequest(self.config, program, cache_rows=state.cache_rows, timing_only=timing_only)
                program = self._compile_for(request, {**(inputs or {}), **held}, held.keys())
            inputs = _with_variables(source, program, inputs or {}, held)
        check_program(program, self.config.name, self.config.fingerprint())
        return self._run_program(program, inputs, held, timing_only, state)

    def _run_program(
        self,
        program: Program,
        inputs: Mapping[str, Any] | None,
        held: Mapping[str, Any],
        timing_only: bool,
        state: State | None,
    ) -> Result:
        if isinstance(program, PlannedProgram):
            return self._run_planned(program, inputs or {}, timing_only, state)
        arrays: dict[str, Any] = {} if timing_only else _checked_inputs(program, inputs or {}, held)
        if state is None:
            result = self._powered().run(Request(program, arrays, timing_only=timing_only))
        else:
            buffers, kept, after = state.buffers(program)
            request = Request(program, {**arrays, **buffers}, kept, timing_only=timing_only)
            result = self._powered().run(request)
            state.advance(kept, after)
        result.origin, result.state = self._origins.get(program), state is not None
        kinds = {binding.name: binding.dtype for binding in program.outputs}
        result.outputs = {name: from_storage(array, kinds[name]) for name, array in result.outputs.items()}
        return result

    def _run_planned(
        self, program: PlannedProgram, inputs: Mapping[str, Any], timing_only: bool, state: State | None
    ) -> Result:
        if timing_only or state is not None:
            what = "timing_only" if timing_only else "state"
            raise UsageError(f"{what}: not allowed for a model that decides at run time what is computed")
        assert program.plan is not None
        held, texts = program.plan.shared.held, program.plan.shared.texts
        arrays: dict[str, Any] = _checked_inputs(program, {n: value for n, value in inputs.items() if n not in held})
        arrays |= {name: held_value(name, inputs.get(name), dtype, text=name in texts) for name, dtype in held.items()}
        with DefaultFloats():
            result = execute(program, arrays, self._powered(), self._limit_ps)
        result.origin = self._origins.get(program)
        return result

    def _run_on(
        self,
        other: Config,
        program: Program | Source,
        inputs: Mapping[str, Any] | None,
        timing_only: bool,
        state: State | None,
    ) -> Result:
        """Run a program compiled for the device of this session on another device, created for this run."""
        if state is not None:
            raise UsageError("on: a state is on the device of this session and cannot be used with another device")
        if self._faults is not None:
            raise UsageError("on: not allowed with faults, which belong to the device of this session")
        changes(self.config, other)
        with Session(other, cache_dir=False) as session:
            if not isinstance(program, Program):
                given = None if timing_only and inputs is None else inputs or {}
                program = self.compile(program, inputs=given, timing_only=timing_only)
            check_program(program, self.config.name, self.config.fingerprint())
            result = session._run_program(program, inputs, {}, timing_only, None)
        result.made_for, result.origin = self.config, self._origins.get(program)
        return result

    @serialised
    def _lose(self) -> None:
        """Power the device off, whatever its state."""
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.device.unplug()
            dispatcher.close()

    @serialised
    def close(self) -> None:
        """Power the device off, forget compiled programs and release memory at once; the next use starts a fresh
        device. Raises DriverCheckError for mistakes of the driver, UsageError if a fault of the script has not
        happened."""
        dispatcher = self._dispatcher
        if dispatcher is not None:
            dispatcher.check_idle("close")
        self._store.close()
        self._planned.clear()
        if dispatcher is not None:
            dispatcher.close()
        findings = self.findings
        self._dispatcher = None
        if findings:
            raise DriverCheckError([str(finding) for finding in findings])
        if dispatcher is not None:
            dispatcher.device.faults.check()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # An earlier error must not be hidden by the findings, which are in the log, or by faults that therefore did not
        # happen.
        with contextlib.suppress(*([DriverCheckError, UsageError] if kind is not None else [])):
            self.close()

    def unload(self, program: Program) -> None:
        """Release the device memory of a program; the next run loads it again. Does not wait for other threads: a
        thread that is running does it afterwards."""
        self.turns.post(partial(self._unload, program))

    def _unload(self, program: Program) -> None:
        if self._dispatcher is not None:
            self._dispatcher.memory.unload(program)

    def _identity(self, request: CompileRequest) -> tuple[str, str]:
        """The identity of a model. A file whose weights were read once is recognised when they are not read."""
        if not request.timing_only and request.file is not None:
            self._contents[replace(request, timing_only=True).identity] = request.identity
        return request.identity


def _time(given: str | int, what: str) -> int:
    """A time in ps. Raises UsageError."""
    try:
        time_ps = parse(given, Dimension.TIME) if isinstance(given, str) else given
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
    if type(time_ps) is not int or time_ps <= 0:
        raise UsageError(f"{what}: must be a time above 0 such as '2 s', or whole ps, got {shown(given)}")
    return time_ps


def _form(free: str, deciding: Sequence[str], inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The key of a program: model, shapes, and values of determining inputs."""
    return free, *(f"{name}={value_text(np.asarray(inputs[name]))}" for name in deciding)


def _checked_inputs(program: Program, inputs: Mapping[str, Any], held: Collection[str] = ()) -> dict[str, Array]:
    """Arrays for all inputs that are not ``held`` on the device."""
    bindings, bound = [binding for binding in program.inputs if binding.name not in held], dict(program.bound)
    names = {binding.name for binding in bindings}
    for name in inputs:
        if name in bound and value_text(np.asarray(inputs[name])) != bound[name]:
            raise InputError(
                f"input {name!r} is bound to {bound[name]} in this program, got {value_text(np.asarray(inputs[name]))}"
            )
        if name not in names and name not in bound:
            raise InputError(f"there is no input {name!r}; the program takes {', '.join(sorted(names)) or 'none'}")
    checked = {}
    for name, kind, shape in ((binding.name, binding.dtype, binding.shape) for binding in bindings):
        if name not in inputs:
            raise InputError(f"input {name!r} is missing: {kind.label}{list(shape)}")
        array = np.asarray(inputs[name])
        try:
            dtype: DType | None = dtype_of(array)
        except TypeError:
            dtype = None
        if dtype is not kind and not (kind is DType.BFLOAT16 and dtype is DType.UINT16):
            raise InputError(f"input {name!r}: type must be {kind.label}, got {array.dtype}")
        if array.shape != shape:
            raise InputError(f"input {name!r}: shape must be {list(shape)}, got {list(array.shape)}")
        checked[name] = to_storage(array)
    return checked


def _with_variables(
    source: Source, program: Program, inputs: Mapping[str, Any], held: Collection[str]
) -> Mapping[str, Any]:
    """The inputs of a run, with the first values of variables of the model that are neither given nor on the device."""
    if isinstance(source, Graph) or all(binding.name in inputs or binding.name in held for binding in program.inputs):
        return inputs
    from npusim.frontends.models import variables

    return {
        **{name: array for name, array in variables(source, program.inputs)[0].items() if name not in held},
        **inputs,
    }


def _schedule(given: Schedule | str | os.PathLike[str] | None) -> Schedule:
    """The choices given by a caller, as a record or a file."""
    if given is None:
        return FREE
    return given if isinstance(given, Schedule) else read_schedule(given)
