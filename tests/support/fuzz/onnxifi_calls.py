"""Fuzz calls of libonnxifi-npusim.so; see tests.support.fuzz.run."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

os.environ["NPUSIM_ONNXIFI_BACKENDS"] = "tiny,edge"

from hal import abi
from hal.onnxifi.constants import TAG_MEMORY_FENCE_V1
from hal.onnxifi.status import RETURNS, Status
from tests.support.fuzz import hosts
from tests.support.fuzz.damaged_models import broken, seeds
from tests.support.fuzz.damaged_tensors import U64, Descriptors
from tests.support.onnxifi.c_library import Fence, Tensor96

SIGNALLED = 0x3395
SENTINEL = 0xBAD0_BAD0_BAD0
EXTENSIONS = (
    "onnxSetIOAndRunGraphFunction", "onnxReleaseTraceEventsFunction", "onnxWaitEventForFunction",
    "npusimGetRunTimingFunction",
)  # fmt: skip
DIFFERENT = ((Status.SUCCESS, Status.UNSUPPORTED_SHAPE), (Status.UNSUPPORTED_SHAPE, Status.NO_DEVICE_MEMORY))
"""Allowed differences (compatibility, onnxInitGraph): an input must be a constant, which compatibility may not require;
the graph is too large, which compatibility cannot report."""
FAILED = (Status.INTERNAL_ERROR, Status.FATAL_ERROR, Status.BACKEND_UNAVAILABLE)


class World(Descriptors):
    """A live backend, graphs of the first seed models and events, and invalid handles."""

    def __init__(self, library: abi.Library, kind: type[ctypes.Structure]) -> None:
        super().__init__(kind)
        self.c = ctypes.CDLL(str(library.path))
        self.problems: list[str] = []
        self.short = False  # a resource limit is in force
        ids, count = (c_void_p * 4)(), c_size_t(4)
        self.must("onnxGetBackendIDs", ids, byref(count))
        self.id, self.other_id = ids[0], ids[1]
        self.backend = self.made("onnxInitBackend", c_void_p(self.id), None)
        self.graphs = [self.graph_of(seed) for seed in seeds()[:2]]
        self.event = self.made("onnxInitEvent", c_void_p(self.backend))
        self.must("onnxSignalEvent", c_void_p(self.event))
        stale = self.made("onnxInitEvent", c_void_p(self.backend))
        self.must("onnxReleaseEvent", c_void_p(stale))
        self.live = [self.id, self.other_id, self.backend, *self.graphs, self.event]
        self.dead = [
            0,
            1,
            8,
            0xFFFF_FFFF_FFFF_FFFF,
            0x7FFF_FFFF_F000,
            SENTINEL,
            stale,
            *(h ^ 1 << 50 for h in self.live),
        ]
        self.extension = {name: self.extension_of(name) for name in EXTENSIONS}

    # Calls

    def call(self, function: str, *arguments: Any, allowed: tuple[int, ...] = ()) -> int:
        """Call a function and check its status."""
        status = int(getattr(self.c, function)(*arguments))
        if status not in RETURNS[function]:
            self.problems.append(f"{function}: status {status:#x} is not in its list")
        elif status in FAILED and status not in allowed and not self.short:
            self.problems.append(f"{function}: {Status(status).name}")
        return status

    def must(self, function: str, *arguments: Any) -> None:
        status = self.call(function, *arguments)
        if status:
            raise AssertionError(f"{function}: {status:#x}")

    def made(self, function: str, *arguments: Any) -> int:
        out = c_void_p(SENTINEL)
        self.must(function, *arguments, byref(out))
        return int(out.value or 0)

    def graph_of(self, model: bytes) -> int:
        out = c_void_p(SENTINEL)
        arguments = (c_void_p(self.backend), None, c_size_t(len(model)), model, c_uint32(0), None, byref(out))
        self.must("onnxInitGraph", *arguments, c_uint32(0), None)
        return int(out.value or 0)

    def extension_of(self, name: str) -> Any:
        found = c_void_p()
        status = self.c.onnxGetExtensionFunctionAddress(c_void_p(self.id), name.encode(), byref(found))
        if status or not found.value:
            raise AssertionError(f"{name}: {status:#x}")
        return ctypes.CFUNCTYPE(c_int32)(found.value)

    def out_of(self, function: str, status: int, out: c_void_p, good: tuple[int, ...]) -> None:
        """Check that a handle is stored exactly on success, and NULL otherwise."""
        if (status in good) != bool(out.value):
            self.problems.append(f"{function}: status {status:#x} with the handle {out.value}")

    # Arguments

    def handle(self, rng: random.Random, right: int, chance: float = 0.8) -> c_void_p:
        """Return the right handle, or one of another kind, a released one, or garbage."""
        if rng.random() < chance:
            return c_void_p(right)
        return c_void_p(rng.choice((rng.choice(self.live), rng.choice(self.dead), rng.getrandbits(64))))

    def properties(self, rng: random.Random, kinds: tuple[int, ...]) -> Any:
        if rng.random() < 0.3:
            return None
        count = rng.choice((0, 1, 2, 3, 4, 8, 200))
        return (c_uint64 * (count + 2))(*(rng.choice((*kinds, rng.choice(U64))) or 1 for _ in range(count)), 0, 0)

    def fence(self, rng: random.Random, event: int) -> Any:
        if rng.random() < 0.05:
            return None
        tag = TAG_MEMORY_FENCE_V1 if rng.random() < 0.9 else rng.choice((0, 1, -1, TAG_MEMORY_FENCE_V1 + 1))
        kind = 0 if rng.random() < 0.9 else rng.choice((1, 2, 3, *U64))
        return byref(Fence(tag, kind, self.handle(rng, event, 0.9).value))

    # Cases

    def case(self, rng: random.Random) -> list[str]:
        """Run one case of one or more calls."""
        self.problems.clear()
        self.kept.clear()
        kind = rng.random()
        if kind < 0.003:
            self.problems += hosts.in_child(lambda: self.orphan(rng))
        elif kind < 0.01:
            self.short = True
            with hosts.limited(rng):
                rng.choice(CASES)(self, rng)
            self.short = False
        elif kind < 0.04:
            self.case_cancelled(rng)
        elif kind < 0.1:
            with hosts.other_floats(rng, self.problems):
                rng.choice(CASES)(self, rng)
        else:
            rng.choice(CASES)(self, rng)
        return list(self.problems)

    def orphan(self, rng: random.Random) -> list[str]:
        """Make calls in a forked child, which has no device and may release inherited handles."""
        self.problems.clear()
        made, fence = c_void_p(SENTINEL), Fence(TAG_MEMORY_FENCE_V1, 0, self.event)
        gone = [
            ("onnxInitEvent", c_void_p(self.backend), byref(made)),
            ("onnxWaitEvent", c_void_p(self.event)),
            ("onnxSignalEvent", c_void_p(self.event)),
            ("onnxRunGraph", c_void_p(self.graphs[0]), byref(fence), byref(fence)),
        ]
        rng.shuffle(gone)
        for call in gone:
            if self.call(*call, allowed=FAILED) != Status.BACKEND_UNAVAILABLE:
                self.problems.append(f"{call[0]}: not BACKEND_UNAVAILABLE")
        self.must("onnxReleaseGraph", c_void_p(self.graphs[0]))
        self.must("onnxReleaseEvent", c_void_p(self.event))
        self.must("onnxReleaseBackend", c_void_p(self.backend))
        return self.problems

    def case_cancelled(self, rng: random.Random) -> None:
        """Cancel a thread in a call. The call must complete."""
        name = rng.choice(("onnxSignalEvent", "onnxWaitEvent", "onnxReleaseEvent", "onnxReleaseBackend"))
        if rng.random() < 0.1:
            name, handle = "onnxReleaseGraph", self.graph_of(seeds()[0])
        elif name == "onnxReleaseBackend":
            handle = self.made("onnxInitBackend", c_void_p(self.id), None)
        elif name == "onnxWaitEvent":
            handle = self.event
        else:
            handle = self.made("onnxInitEvent", c_void_p(self.backend))
        status = hosts.cancelled(rng, getattr(self.c, name), handle)
        if status != 0:
            self.problems.append(f"{name}: cancelled, {'in the midst' if status is None else hex(status)}")
        if name == "onnxSignalEvent":
            self.must("onnxReleaseEvent", c_void_p(handle))

    def case_ids(self, rng: random.Random) -> None:
        ids, count = (c_void_p * 8)(), c_size_t(rng.choice((0, 1, 2, 8)))
        status = self.call("onnxGetBackendIDs", rng.choice((ids, None)), rng.choice((byref(count), byref(count), None)))
        if status == 0:
            for each in ids[: count.value]:
                self.must("onnxReleaseBackendID", c_void_p(each))
        self.call("onnxReleaseBackendID", c_void_p(rng.choice((*self.dead, self.backend, self.event))))

    def case_info(self, rng: random.Random) -> None:
        kind = rng.choice((*range(40), 50, 60, 61, 70, 2**31 - 1, -(2**31)))
        room = rng.choice((0, 1, 4, 7, 8, 9, 64, 200))
        value, size = (ctypes.c_uint8 * 256)(*[0xA5] * 256), c_size_t(room)
        where = rng.choice((value, value, None))
        self.call(
            "onnxGetBackendInfo", self.handle(rng, self.id), c_int32(kind), where, rng.choice((byref(size), None))
        )
        if any(byte != 0xA5 for byte in value[room:]):
            self.problems.append(f"onnxGetBackendInfo: type {kind}: wrote beyond {room} bytes")

    def case_compatibility(self, rng: random.Random) -> None:
        model = broken(rng)
        size = len(model) if rng.random() < 0.95 else rng.choice((0, 1, len(model) // 2))
        data = model if rng.random() < 0.97 else None
        self.call("onnxGetBackendCompatibility", self.handle(rng, self.id, 0.95), c_size_t(size), data)

    def case_backend(self, rng: random.Random) -> None:
        out = c_void_p(SENTINEL)
        where = byref(out) if rng.random() < 0.95 else None
        properties = self.properties(rng, (1, 2, 4, 8))
        status = self.call("onnxInitBackend", self.handle(rng, self.id), properties, where)
        if where is not None:
            self.out_of("onnxInitBackend", status, out, (0,))
        if status == 0:
            self.must("onnxReleaseBackend", out)
            self.call("onnxReleaseBackend", out)
            self.call("onnxInitEvent", out, byref(c_void_p()))

    def case_graph(self, rng: random.Random) -> None:
        model = broken(rng) if rng.random() < 0.8 else rng.choice(seeds())
        self.init_graph(rng, model, c_uint32(0), None)

    def case_verdict(self, rng: random.Random) -> None:
        """Check that compatibility and onnxInitGraph agree as far as the specification allows."""
        model, out = broken(rng), c_void_p(SENTINEL)
        verdict = self.call("onnxGetBackendCompatibility", c_void_p(self.id), c_size_t(len(model)), model)
        arguments = (c_void_p(self.backend), None, c_size_t(len(model)), model, c_uint32(0), None, byref(out))
        status = self.call("onnxInitGraph", *arguments, c_uint32(0), None)
        if status != verdict and (verdict, status) not in DIFFERENT:
            self.problems.append(f"compatibility says {verdict:#x}, onnxInitGraph {status:#x}")
        if status in (0, 1):
            self.must("onnxReleaseGraph", out)

    def case_weights(self, rng: random.Random) -> None:
        """Use descriptors on valid models only: if the model had the same wrong shape, the weights would be read beyond
        their buffer."""
        count, weights = self.tensors(rng, [(rng.choice(("w", "w", "x")), (4,))])
        self.init_graph(rng, seeds()[rng.choice((2, 2, 2, 0, 3))], count, weights)

    def init_graph(self, rng: random.Random, model: bytes, count: c_uint32, weights: Any) -> None:
        out = c_void_p(SENTINEL)
        where = byref(out) if rng.random() < 0.98 else None
        size = len(model) if rng.random() < 0.98 else rng.choice((0, 1, len(model) // 2))
        backend, properties = self.handle(rng, self.backend, 0.95), self.properties(rng, (1, 2, 3, 4, 5, 6, 0))
        arguments = (backend, properties if rng.random() < 0.3 else None, c_size_t(size), model, count, weights, where)
        status = self.call(
            "onnxInitGraph", *arguments, c_uint32(rng.choice((0, 1, 2**32 - 1))), c_void_p(rng.choice(U64))
        )
        if where is not None:
            self.out_of("onnxInitGraph", status, out, (0, 1))
        if status in (0, 1):
            self.must("onnxReleaseGraph", out)
            self.call("onnxReleaseGraph", out)

    def case_io(self, rng: random.Random) -> None:
        which = rng.randrange(2)
        shape = (4,) if which == 0 else (rng.choice((1, 2, 3)), 4)
        inputs, outputs = self.tensors(rng, [("x", shape)]), self.tensors(rng, [("y", shape)])
        graph = self.handle(rng, self.graphs[which], 0.95)
        self.call("onnxSetGraphIO", graph, *inputs, *outputs)
        self.run(rng, self.graphs[which])

    def run(self, rng: random.Random, graph: int) -> None:
        after = Fence(TAG_MEMORY_FENCE_V1 if rng.random() < 0.95 else 1, 0 if rng.random() < 0.95 else 2, SENTINEL)
        status = self.call("onnxRunGraph", self.handle(rng, graph, 0.9), self.fence(rng, self.event), byref(after))
        if status == 0:
            self.finish(rng, after)

    def finish(self, rng: random.Random, after: Fence) -> None:
        event, state, ended = c_void_p(after.event), c_int32(), c_int32()
        text, length = ctypes.create_string_buffer(40), c_size_t(rng.choice((0, 1, 10, 40)))
        wait = self.extension["onnxWaitEventForFunction"]
        status = wait(event, c_uint32(30_000), byref(state), byref(ended), rng.choice((text, None)), byref(length))
        if (status, state.value, ended.value) != (0, SIGNALLED, 0) and (status, ended.value) != (0, 0):
            self.problems.append(f"a run: wait {status:#x}, state {state.value:#x}, status {ended.value:#x}")
        self.must("onnxWaitEvent", event)
        self.must("onnxReleaseEvent", event)
        self.call("onnxReleaseEvent", event)

    def case_io_and_run(self, rng: random.Random) -> None:
        inputs, outputs = self.tensors(rng, [("x", (4,))]), self.tensors(rng, [("y", (4,))])
        after = Fence(TAG_MEMORY_FENCE_V1 if rng.random() < 0.9 else 1, rng.choice((0, 0, 0, 1, 2)), SENTINEL)
        graph, where = self.handle(rng, self.graphs[0], 0.9), byref(after) if rng.random() < 0.95 else None
        function = self.extension["onnxSetIOAndRunGraphFunction"]
        status = function(graph, *inputs, *outputs, where, None)
        if status not in (*RETURNS["onnxSetGraphIO"], *RETURNS["onnxRunGraph"]) or status in FAILED:
            self.problems.append(f"onnxSetIOAndRunGraph: status {status:#x}")
        if status == 0:
            self.finish(rng, after)

    def case_events(self, rng: random.Random) -> None:
        out, state = c_void_p(SENTINEL), c_int32()
        where = byref(out) if rng.random() < 0.9 else None
        status = self.call("onnxInitEvent", self.handle(rng, self.backend), where)
        if where is not None:
            self.out_of("onnxInitEvent", status, out, (0,))
        self.call("onnxGetEventState", self.handle(rng, out.value or 0), byref(state) if rng.random() < 0.9 else None)
        ended, wait = c_int32(), self.extension["onnxWaitEventForFunction"]
        if wait(self.handle(rng, out.value or 0), c_uint32(1), byref(state), byref(ended), None, None) not in (
            0,
            0x108,
        ):
            self.problems.append("onnxWaitEventFor: neither SUCCESS nor INVALID_EVENT")
        if status == 0:
            for _ in range(rng.randrange(3)):
                self.call("onnxSignalEvent", out)
            self.must("onnxReleaseEvent", out)

    def case_handles(self, rng: random.Random) -> None:
        """Use invalid handles in every function that takes one."""
        for function, right in (
            ("onnxReleaseBackend", self.backend), ("onnxSignalEvent", 0), ("onnxWaitEvent", 0),
            ("onnxReleaseEvent", self.event), ("onnxReleaseGraph", self.graphs[0]), ("onnxReleaseBackendID", self.id),
        ):  # fmt: skip
            wrong = rng.choice((*self.dead, rng.getrandbits(64), *(h for h in self.live if h != right)))
            kinds = {"onnxSignalEvent": [self.event], "onnxWaitEvent": [self.event], "onnxReleaseEvent": [self.event]}
            kinds |= {"onnxReleaseGraph": self.graphs, "onnxReleaseBackendID": [self.id, self.other_id]}
            if wrong in (*kinds.get(function, []), right):
                continue
            if self.call(function, c_void_p(wrong)) == 0:
                self.problems.append(f"{function}: SUCCESS for the handle {wrong:#x}")

    def case_extension(self, rng: random.Random) -> None:
        name = rng.choice((*EXTENSIONS, "", "nothing", "a" * 1000)).encode()
        found = c_void_p(SENTINEL)
        arguments = (c_char_p(rng.choice((name, None))), rng.choice((byref(found), None)))
        status = self.c.onnxGetExtensionFunctionAddress(self.handle(rng, self.id), *arguments)
        if status not in (0, Status.INVALID_ID, Status.INVALID_POINTER, Status.UNIDENTIFIED_NAME):
            self.problems.append(f"onnxGetExtensionFunctionAddress: status {status:#x}")
        timing = (c_uint64 * 5)()
        status = self.extension["npusimGetRunTimingFunction"](self.handle(rng, self.event), rng.choice((timing, None)))
        if status not in (0, Status.INVALID_EVENT, Status.INVALID_POINTER, Status.INVALID_STATE):
            self.problems.append(f"npusimGetRunTiming: status {status:#x}")
        if self.extension["onnxReleaseTraceEventsFunction"](None) != Status.INVALID_POINTER:
            self.problems.append("onnxReleaseTraceEvents: NULL is not INVALID_POINTER")


CASES: tuple[Callable[[World, random.Random], None], ...] = (
    World.case_ids, World.case_info, World.case_backend, World.case_events, World.case_handles, World.case_extension,
    *[World.case_compatibility] * 4, *[World.case_graph] * 3, *[World.case_weights] * 2, *[World.case_io] * 3,
    World.case_io_and_run, *[World.case_verdict] * 4,
)  # fmt: skip


def make() -> World:
    return World(abi.LIBRARIES[0], Tensor96)
