"""Fuzz calls of libneuralnetworks.so; see tests.support.fuzz.run.

The prototypes come from the header. Pointers are NULL or point to enough memory, because a library cannot check more;
handles, numbers, structures and call orders are arbitrary.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import tempfile
from collections import defaultdict
from typing import Any

os.environ["NPUSIM_NNAPI_DEVICES"] = "tiny,edge"

from tests.support.fuzz import hosts
from tests.support.nnapi.c_api import CONSTANTS, LIBRARY, ChannelQuant, OperandType, code, prototypes

PREFIX = "ANeuralNetworks"
RESULTS = range(15)
PAGE = 4096
POOL = 4
"""Live handles kept per type."""
KINDS = ("Device", "Memory", "MemoryDesc", "Model", "Compilation", "Execution", "Burst", "Event")
NUMBERS = (0, 1, 2, 3, 4, 5, 8, 64, 100, 127, 128, 129, 1000, PAGE, -1, -2, 2**15, 2**16, 2**31 - 1, -(2**31), 2**31)
HUGE = (2**40, 2**63, 2**64 - 1)
TYPES = [value for name, value in CONSTANTS.items() if re.match("ANEURALNETWORKS_(TENSOR_|FLOAT|INT|UINT|BOOL)", name)]
EXTENSIONS = (b"com.npusim.nothing", b"com.example.fibonacci", b"", b"\xff\xfe", b"a" * 500)


class World:
    """A pool of handles of every type; later cases use the handles of earlier ones."""

    def __init__(self) -> None:
        self.c = ctypes.CDLL(str(LIBRARY))
        self.prototypes = prototypes()
        self.pool: defaultdict[str, list[int]] = defaultdict(list)
        self.dead: list[int] = [0, 1, 4096, 0x7FFF_FFFF_F000, 2**64 - 1]
        self.problems: list[str] = []
        self.scratch = (ctypes.c_uint8 * PAGE)()
        self.page = (ctypes.c_uint8 * PAGE)()
        self.kept: list[Any] = []
        self.file = os.memfd_create("fuzz")
        os.ftruncate(self.file, PAGE)
        self.folder = tempfile.TemporaryDirectory()
        for number in range(2):
            out = ctypes.c_void_p()
            self.c.ANeuralNetworks_getDevice(number, ctypes.byref(out))
            self.pool["Device"].append(out.value or 0)

    # Arguments

    def handle(self, rng: random.Random, kind: str) -> int:
        pool = self.pool[kind]
        if pool and rng.random() < 0.9:
            return rng.choice(pool)
        others = [each for handles in self.pool.values() for each in handles]
        return rng.choice((rng.choice(self.dead), rng.choice(others), rng.getrandbits(64)))

    def operand_type(self, rng: random.Random) -> OperandType:
        rank = rng.choice((0, 1, 1, 2, 3, 4, 5, 8))
        dims = [rng.choice((0, 1, 2, 3, 4, 8, 100, 2**31, 2**32 - 1)) for _ in range(8)]
        array = (ctypes.c_uint32 * 8)(*dims)
        kind = rng.choice((*TYPES, *NUMBERS))
        scale = rng.choice((0.0, 0.5, 1.0, -1.0, float("nan"), float("inf")))
        made = OperandType(ctypes.c_int32(kind).value, rank, array, scale, ctypes.c_int32(rng.choice(NUMBERS)).value)
        if rng.random() < 0.05:
            made.dimensions = None
        return made

    def channel_quant(self, rng: random.Random) -> ChannelQuant:
        scales = (ctypes.c_float * 8)(*(rng.choice((0.5, 0.0, -1.0, float("nan"))) for _ in range(8)))
        return ChannelQuant(
            rng.choice((0, 1, 3, 4, 2**32 - 1)), rng.randrange(9), None if rng.random() < 0.1 else scales
        )

    def numbers(self, rng: random.Random) -> Any:
        """Return a page of uint32_t values, mostly indices."""
        few = [rng.choice((*range(8), *range(4), 2**32 - 1)) for _ in range(64)]
        return (ctypes.c_uint32 * (PAGE // 4))(*few)

    def number(self, rng: random.Random, name: str) -> int:
        if name in ("inputCount", "outputCount", "rank", "numDevices", "num_dependencies"):
            return rng.randrange(9)
        if name == "length":
            return rng.choice((0, 1, 4, 16, 64, 128, 129, 400, PAGE))
        if name == "size":
            return rng.choice((PAGE, PAGE, PAGE, 0, 1, 64, PAGE + 1, *HUGE))
        if name == "offset":
            return rng.choice((0, 0, 0, 0, 1, 4, 64, PAGE, PAGE + 1, *HUGE))
        if name == "protect":
            return rng.choice((1, 2, 3, 3, 3, 0, 4, -1))
        if name in ("fd", "sync_fence_fd"):
            return rng.choice((*[self.file if name == "fd" else -1] * 4, -1, -(2**31), 10**6))
        if name == "index":
            return rng.choice((0, 0, 1, 1, 2, 3, 4, 8, -1, 2**31 - 1, -(2**31)))
        if name == "type":
            return rng.choice((*range(105), *NUMBERS))
        if name in ("duration", "frequency"):
            return rng.choice((0, 1, 1000, 10**9, *HUGE)) if name == "duration" else rng.choice((0, 1, 2, -1))
        return rng.choice((0, 1, 2, 90, 100, 110, *NUMBERS))

    def array(self, rng: random.Random, kind: str) -> Any:
        return (ctypes.c_void_p * 8)(*(self.handle(rng, kind) for _ in range(8)))

    def argument(self, rng: random.Random, parameter: str) -> Any:
        """Return a value for a parameter with this declaration."""
        name = parameter.replace("*", " ").split()[-1]
        if "*" not in parameter:
            plain = self.number(rng, name)
            return (
                ctypes.c_float(plain) if parameter.startswith("float") else ctypes.c_int64(ctypes.c_int64(plain).value)
            )
        kind = next((kind for kind in KINDS if re.search(rf"\b{PREFIX}{kind}\b", parameter)), None)
        if kind and parameter.count("*") == 1:
            return ctypes.c_void_p(self.handle(rng, kind))
        if rng.random() < 0.05:
            return None
        made: Any = self.scratch
        if kind:
            made = self.array(rng, kind) if "*const" in parameter else (ctypes.c_void_p * 1)(0xBAD)
        elif "OperandType " in parameter:
            made = ctypes.byref(self.operand_type(rng))
        elif "QuantParams" in parameter:
            made = ctypes.byref(self.channel_quant(rng))
        elif "const char *" in parameter and "**" not in parameter:
            places = (self.folder.name.encode(), b"/nowhere/at/all", b"")
            made = ctypes.c_char_p(rng.choice(places if name == "cacheDir" else EXTENSIONS))
        elif "const uint32_t" in parameter:
            made = self.numbers(rng)
        elif "const" in parameter or name == "buffer":
            made = self.page
        self.kept.append(made)
        return made

    # Calls

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function; new handles join the pool."""
        result, parameters = self.prototypes[name]
        function = getattr(self.c, name)
        function.restype = None if result == "void" else ctypes.c_int64 if result.endswith("64_t") else ctypes.c_int
        status = function(*arguments)
        if result == "int" and status not in RESULTS:
            self.problems.append(f"{name}: result {status}")
        if result == "int":
            self.collect(name, int(status), parameters, arguments)
        if name.endswith("_free"):
            self.dropped(name.removeprefix(PREFIX).removesuffix("_free"), arguments[0].value or 0)
        return int(status or 0)

    def collect(self, name: str, status: int, parameters: list[str], arguments: tuple[Any, ...]) -> None:
        for parameter, argument in zip(parameters, arguments, strict=True):
            kind = next((kind for kind in KINDS if re.search(rf"\b{PREFIX}{kind}\b", parameter)), None)
            if kind is None or "**" not in parameter or "const" in parameter or argument is None:
                continue
            value = argument[0] or 0
            if status == 0 and value:
                if kind != "Device":
                    self.pool[kind].append(value)
            elif bool(value) == (status != 0) and name != f"{PREFIX}_getDevice":
                self.problems.append(f"{name}: result {status} with the handle {value}")

    def dropped(self, kind: str, handle: int) -> None:
        if handle in self.pool[kind]:
            self.pool[kind].remove(handle)
            self.dead = [*self.dead[:5], *self.dead[5:][-20:], handle]

    def any_call(self, rng: random.Random, name: str) -> int:
        return self.call(name, *(self.argument(rng, parameter) for parameter in self.prototypes[name][1]))

    # Cases

    def case(self, rng: random.Random) -> list[str]:
        """Run one case: a few arbitrary calls, or a model from creation to execution, with mistakes."""
        self.problems.clear()
        self.kept.clear()
        kind = rng.random()
        if kind < 0.003:
            self.problems += hosts.in_child(lambda: self.orphan(rng))
        elif kind < 0.01:
            with hosts.limited(rng):
                self.kind_case(rng)
        elif kind < 0.04:
            self.case_cancelled(rng)
        elif kind < 0.1:
            with hosts.other_floats(rng, self.problems):
                self.kind_case(rng)
        else:
            self.kind_case(rng)
        for kind in ("Execution", "Burst", "Event", "Compilation", "MemoryDesc", "Memory", "Model"):
            while len(self.pool[kind]) > POOL:
                self.call(f"{PREFIX}{kind}_free", ctypes.c_void_p(self.pool[kind][0]))
        return list(self.problems)

    def kind_case(self, rng: random.Random) -> None:
        if rng.random() < 0.3:
            self.story(rng, rng.choice((0.0, 0.02, 0.05, 0.1)))
        else:
            for _ in range(rng.randrange(1, 6)):
                self.any_call(rng, rng.choice(FREE_CHOICE))

    def orphan(self, rng: random.Random) -> list[str]:
        """Make calls in a forked child, where every handle is dead."""
        self.problems.clear()
        for name in rng.sample(FREE_CHOICE, 8):
            if self.prototypes[name][0] == "int" and self.any_call(rng, name) != DEAD:
                self.problems.append(f"{name}: not DEAD_OBJECT")
        return self.problems

    def case_cancelled(self, rng: random.Random) -> None:
        """Cancel a thread in a call. The call must complete."""
        name = rng.choice(OF_ONE_HANDLE)
        (kind,) = (kind for kind in KINDS if re.search(rf"\b{PREFIX}{kind}\b", self.prototypes[name][1][0]))
        handle = self.handle(rng, kind)
        status = hosts.cancelled(rng, getattr(self.c, name), handle)
        if status is None or (self.prototypes[name][0] == "int" and status not in RESULTS):
            self.problems.append(f"{name}: cancelled, {'in the midst' if status is None else status}")
        if name.endswith("_free"):
            self.dropped(kind, handle)

    def step(self, rng: random.Random, spoilt: float, name: str, *arguments: Any) -> int:
        """Make a call of a story. With probability ``spoilt`` each, it is omitted, repeated, or one argument is
        replaced."""
        name = PREFIX + name
        given, parameters = list(arguments), self.prototypes[name][1]
        if rng.random() < spoilt:
            return 0
        if rng.random() < spoilt:
            at = rng.randrange(len(given))
            given[at] = self.argument(rng, parameters[at])
        status = self.call(name, *given)
        if rng.random() < spoilt:
            self.call(name, *given)
        return status

    def made(self, rng: random.Random, spoilt: float, name: str, *arguments: Any) -> ctypes.c_void_p:
        out = (ctypes.c_void_p * 1)(0)
        self.step(rng, spoilt, name, *arguments, out)
        return ctypes.c_void_p(out[0])

    def operand(self, rng: random.Random, spoilt: float, model: ctypes.c_void_p, kind: str, *dims: int) -> None:
        made = OperandType(code(kind), len(dims), (ctypes.c_uint32 * 8)(*dims) if dims else None, 0.0, 0)
        self.kept.append(made)
        self.step(rng, spoilt, "Model_addOperand", model, ctypes.byref(made))

    def story(self, rng: random.Random, spoilt: float) -> None:
        """Build and run z = x ? y for two vectors, with an operation of that form or another one."""
        model = self.made(rng, spoilt, "Model_create")
        for kind, dims in (("TENSOR_FLOAT32", (4,)), ("TENSOR_FLOAT32", (4,)), ("INT32", ()), ("TENSOR_FLOAT32", (4,))):
            self.operand(rng, spoilt, model, kind, *dims)
        size, zero = ctypes.c_size_t, (ctypes.c_uint8 * 16)()
        self.kept.append(zero)
        self.step(rng, spoilt, "Model_setOperandValue", model, ctypes.c_int32(2), zero, size(4))
        ins, outs = (ctypes.c_uint32 * 64)(0, 1, 2), (ctypes.c_uint32 * 64)(3)
        operation = ctypes.c_int32(rng.choice((0, 0, 18, 36, 55, rng.randrange(105))))
        three, two, one = (ctypes.c_uint32(value) for value in (3, 2, 1))
        self.step(rng, spoilt, "Model_addOperation", model, operation, three, ins, one, outs)
        self.step(rng, spoilt, "Model_identifyInputsAndOutputs", model, two, ins, one, outs)
        self.step(rng, spoilt, "Model_finish", model)
        devices = (ctypes.c_void_p * 8)(*self.pool["Device"])
        compilation = self.made(rng, spoilt, "Compilation_createForDevices", model, devices, one)
        self.step(rng, spoilt, "Compilation_finish", compilation)
        execution = self.made(rng, spoilt, "Execution_create", compilation)
        for index in range(2):
            value = (execution, ctypes.c_int32(index), None, self.page, size(16))
            self.step(rng, spoilt, "Execution_setInput", *value)
        self.step(rng, spoilt, "Execution_setOutput", execution, ctypes.c_int32(0), None, self.scratch, size(16))
        if rng.random() < 0.5:
            self.step(rng, spoilt, "Execution_compute", execution)
        else:
            self.step(rng, spoilt, "Event_wait", self.made(rng, spoilt, "Execution_startCompute", execution))
        for _ in range(rng.randrange(3)):
            self.any_call(rng, rng.choice(FREE_CHOICE))


FREE_CHOICE = sorted(prototypes())
OF_ONE_HANDLE = [
    name for name in FREE_CHOICE if len(prototypes()[name][1]) == 1 and "**" not in prototypes()[name][1][0]
    and any(re.search(rf"\b{PREFIX}{kind}\b", prototypes()[name][1][0]) for kind in KINDS)
]  # fmt: skip
DEAD = CONSTANTS["ANEURALNETWORKS_DEAD_OBJECT"]


def make() -> World:
    return World()
