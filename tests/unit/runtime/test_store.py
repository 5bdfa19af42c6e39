"""Program stores: what is cached, what is unloaded, and what is evicted from the device when memory is short."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from npusim.driver import Driver
from npusim.dtypes import DType
from npusim.errors import DeviceMemoryError
from npusim.graph import Graph
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.runtime import store
from npusim.runtime.store import ProgramStore, Residence
from tests.support.programs.executor_jobs import TINY, adder

# What is compiled


class Keeper:
    """A store that caches two programs, with a record of what it compiles and unloads."""

    def __init__(self, remembered: int = 2) -> None:
        self.compiled: list[str] = []
        self.unloaded: list[Program] = []
        self.store = ProgramStore(TINY, self.unloaded.append, remembered=remembered)

    def compile(self, key: str, *, needed: bool = False) -> Program:
        return self.store.compile(key, lambda: self._graph(key), needed=needed)

    def _graph(self, key: str) -> Graph:
        self.compiled.append(key)
        builder = GraphBuilder(key)
        return builder.finish([builder.add("reshape", [builder.input("x", (4,), DType.INT32)], {"shape": (2, 2)})])


def test_what_was_not_asked_for_longest_is_forgotten_and_unloaded() -> None:
    keeper = Keeper()
    a, b = keeper.compile("a"), keeper.compile("b")
    assert keeper.compile("a") is a
    assert keeper.unloaded == []
    keeper.compile("c")  # for which b has to go
    assert keeper.unloaded == [b]
    assert keeper.compile("a") is a
    assert keeper.compile("b") is not b
    assert keeper.compiled == ["a", "b", "c", "b"]


def test_a_program_that_is_needed_is_unloaded_when_nobody_needs_it_any_more() -> None:
    keeper = Keeper()
    a = keeper.compile("a", needed=True)
    keeper.store.acquire([a])
    for key in "bcd":
        keeper.compile(key)
    assert a not in keeper.unloaded
    keeper.store.release([a])
    assert a not in keeper.unloaded
    keeper.store.release([a])
    assert keeper.unloaded.count(a) == 1


def test_a_program_that_was_needed_once_is_like_any_other() -> None:
    """It is cached and may have been loaded onto the device again, so it is unloaded when it is evicted."""
    keeper = Keeper()
    a = keeper.compile("a", needed=True)
    keeper.store.release([a])
    assert keeper.unloaded == [a]
    assert keeper.compile("a") is a
    keeper.compile("b")
    assert keeper.unloaded == [a]
    keeper.compile("c")
    assert keeper.unloaded == [a, a]


def test_many_bytes_of_constants_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = [adder(number, size=256) for number in range(3)]
    assert [program.constants.nbytes for program in heavy] == [256] * 3
    for limit, gone in ((768, []), (767, heavy[:1]), (255, heavy[:2])):  # the last one stays, whatever it has
        keeper, programs = Keeper(remembered=9), iter(heavy)
        monkeypatch.setattr(store, "REMEMBERED_BYTES", limit)
        with monkeypatch.context() as patched:
            patched.setattr("npusim.compiler.pipeline.compile_graph", lambda *graph, made=programs: next(made))
            for key in "abc":
                keeper.compile(key)
        assert keeper.unloaded == gone


def test_what_could_not_be_confirmed_is_not_remembered() -> None:
    keeper = Keeper()

    def gone() -> None:
        raise OSError("the file was cut")

    with pytest.raises(OSError, match="cut"):
        keeper.store.compile("a", lambda: keeper._graph("a"), gone)
    keeper.compile("a")
    assert keeper.compiled == ["a", "a"]


def test_a_closed_store_knows_nothing() -> None:
    keeper = Keeper()
    keeper.compile("a", needed=True)
    keeper.store.close()
    keeper.compile("a")
    assert keeper.compiled == ["a", "a"]


# What is on the device


@dataclasses.dataclass(eq=False)
class Loaded:
    """A program on the device. ``idle``: free slots that can be trimmed."""

    program: Program
    idle: bool = False
    running: int = 0


class Room:
    """A driver with memory for a number of programs or blocks."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.done: list[tuple[str, Any]] = []

    def load(self, program: Program, slots: int) -> Loaded:
        assert slots == 0
        self._take(program)
        return Loaded(program)

    def unload(self, loaded: Loaded) -> None:
        self.free_bytes += 1
        self.done.append(("unload", loaded.program))

    def trim(self, loaded: Loaded) -> None:
        self.free_bytes += 1
        loaded.idle = False
        self.done.append(("trim", loaded.program))

    def allocate(self, nbytes: int) -> int:
        self._take("block")
        return 4096

    def free(self, address: int) -> None:
        self.free_bytes += 1
        self.done.append(("free", address))

    def write_constants(self, loaded: Loaded) -> None:
        self.done.append(("constants", loaded.program))

    def footprint(self, program: Program) -> tuple[int, int]:
        """One block that stays, and one more for each run."""
        return 1, 1

    def _take(self, what: object) -> None:
        if not self.free_bytes:
            raise DeviceMemoryError(f"no room for {what}")
        self.free_bytes -= 1


def of(room: Room) -> Residence:
    return Residence(cast("Driver", room))


A, B, C = (adder(number) for number in range(3))


def test_the_program_used_longest_ago_makes_room() -> None:
    room = Room(2)
    residence = of(room)
    for program in (A, B, A, C):
        residence.load(program)
    assert room.done == [("unload", B)]
    assert [residence.resident(program) is None for program in (A, B, C)] == [False, True, False]


def test_slots_go_before_programs() -> None:
    room = Room(2)
    residence = of(room)
    residence.load(A)
    residence.load(B).idle = True
    residence.load(C)
    assert room.done == [("trim", B)]


def test_what_runs_or_is_wanted_stays() -> None:
    room = Room(2)
    residence = of(room)
    a, b = residence.load(A), residence.load(B)
    a.running = 1
    assert not residence.make_room(b)
    b.running = 1
    with pytest.raises(DeviceMemoryError):
        residence.load(C)
    b.running = 0
    residence.load(C)
    assert room.done == [("unload", B)]


def test_a_pinned_program_stays_until_as_many_unpins() -> None:
    room = Room(1)
    residence = of(room)
    residence.pin(A)
    residence.keep(A)
    assert room.done == [("constants", A)]
    assert not residence.make_room(None)
    residence.unpin(A)
    assert not residence.make_room(None)
    with pytest.raises(DeviceMemoryError):
        residence.allocate(64)
    residence.unpin(A)
    assert residence.make_room(None)
    assert room.done[1:] == [("unload", A)]


def test_programs_that_are_pinned_to_run_leave_room_for_a_run() -> None:
    """Two programs and a run of one of them need three."""
    residence = of(Room(3))
    residence.pin(A, to_run=True)
    residence.pin(A, to_run=True)  # which is no further program
    residence.pin(B, to_run=True)
    with pytest.raises(DeviceMemoryError, match="3 programs and a run of one of them need 4 bytes"):
        residence.pin(C, to_run=True)
    residence.unpin(B)
    residence.pin(C, to_run=True)


def test_the_longest_run_of_all_that_are_pinned_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    prints = {A: (1, 3), B: (2, 1)}
    for capacity, fits in ((6, True), (5, False)):
        room = Room(capacity)
        monkeypatch.setattr(room, "footprint", prints.__getitem__)
        residence = of(room)
        residence.pin(A, to_run=True)
        if fits:
            residence.pin(B, to_run=True)
        else:
            with pytest.raises(DeviceMemoryError, match="need 6 bytes of device memory, there are 5"):
                residence.pin(B, to_run=True)


def test_a_program_is_unloaded_when_its_last_job_has_ended() -> None:
    room = Room(2)
    residence = of(room)
    residence.load(A)
    residence.job_begins(A)
    residence.job_begins(A)
    residence.short = True
    residence.unload(A)
    residence.job_ends(A)
    assert (room.done, residence.short) == ([], True)
    residence.job_ends(A)
    assert (room.done, residence.short) == ([("unload", A)], False)
    residence.load(A)
    residence.job_begins(A)
    residence.job_ends(A)
    assert residence.resident(A) is not None  # it was not unloaded since


@pytest.mark.parametrize("again", ["pin", "keep"])
def test_who_pins_a_program_wants_it_again(again: str) -> None:
    room = Room(2)
    residence = of(room)
    residence.load(A)
    residence.job_begins(A)
    residence.unload(A)
    getattr(residence, again)(A)
    residence.job_ends(A)
    assert ("unload", A) not in room.done


def test_unloading_takes_the_pins() -> None:
    room = Room(2)
    residence = of(room)
    residence.pin(A)
    residence.unload(A)
    residence.load(A)
    assert residence.make_room(None)
    assert room.done == [("constants", A), ("unload", A), ("unload", A)]


def test_a_dropped_block_is_free_when_its_last_user_is_gone() -> None:
    room = Room(1)
    residence = of(room)
    block = residence.allocate(64)
    assert (block.address, block.nbytes) == (4096, 64)
    residence.free_unused(block)  # which may be used again
    block.users = 1
    residence.short = True
    residence.drop(block)
    assert not residence.short
    assert room.done == []
    block.users = 0
    residence.free_unused(block)
    assert room.done == [("free", 4096)]


def test_memory_is_made_by_idle_programs() -> None:
    room = Room(1)
    residence = of(room)
    residence.load(A)
    residence.allocate(64)
    assert room.done == [("unload", A)]
    with pytest.raises(DeviceMemoryError):
        residence.allocate(64)


def test_a_lost_device_has_nothing() -> None:
    room = Room(2)
    residence = of(room)
    residence.pin(A)
    residence.forget()
    assert residence.resident(A) is None
    residence.load(A)
    assert residence.make_room(None)  # it is not pinned any more
