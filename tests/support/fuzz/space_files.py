"""Invalid space files: keys, values and formulas of a valid one are changed, exchanged and nested.

Files that are accepted are searched with few designs evaluated by formula, so that everything requested is computed.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from npusim.explore.evaluate import EvaluationTask
from npusim.explore.figures import SIMULATED, ModelFigures, StudyRow
from npusim.explore.reading import read_space
from npusim.explore.report import text, to_json_dict
from npusim.explore.study import Study
from tests.support.fuzz.watched import watched

SEEDS: tuple[dict[str, Any], ...] = (
    {
        "name": "two", "base": ["edge", "mobile"], "objectives": ["latency", "latency('demo') * energy", "area"],
        "constraints": ["area <= 2.5 mm2 or latency < 1 s", "latency('demo') <= 20 ms and power < 3 W",
                        "total < 1 MiB"],
        "set": {"technology": {"node": "22 nm"}, "area": {"phy": "0.5 mm2"}},
        "vary": {
            "matrix": {"rows": {"from": 8, "to": 64, "times": 2},
                       "dataflow": ["weight_stationary", "output_stationary"]},
            "dram": {"bandwidth": {"from": "4 GB/s", "to": "17 GB/s", "step": "4 GB/s"}, "efficiency": [1, "1/2"]},
            "width": ["1 KiB", "2 KiB"], "scalar": [False, {}],
        },
        "derive": {"matrix": {"cols": "rows"}, "total": "2 * width + 16 KiB",
                   "sram": {"bytes": "max(256 KiB, 4 * sram.banks * width)"}},
        "search": {"method": "auto", "budget": 3, "seed": 7, "screen": 9, "margin": "1/4"},
        "model": [{"name": "demo", "file": "m.onnx", "weight": 3},
                  {"name": "mob", "network": "mobilenet_v2", "shape": [1, 32, 32, 3], "variant": [{"name": "small"}]}],
    },
    {
        "base": "tiny", "objectives": ["latency / z ** 2", "ceil(cycles / 3)"], "constraints": ["z > 1", "rows == z"],
        "vary": {"matrix": {"rows": [4, 8]}, "z": {"from": 1, "to": 9, "step": 4}},
        "derive": {"z0": "z ** 8", "z1": "z0 / 3 + 1e-3", "matrix": {"cols": "floor(z1) + 1 - min(z1, 0)"}},
        "model": [{"file": "m.onnx", "input_shapes": {"x": [1, 4]}, "bind": {"n": [1, 2.5, True]}}],
    },
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 8, 64, 4095, 4096, 4097, 2**20, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 10**59, 0.0, 0.5,
    1.19, 1e-9, 1e-300, 5e-324, 1e22, 1e300, 1.7e308, float("inf"), float("nan"), -0.0, dt.date(1979, 5, 27),
)  # fmt: skip
TEXTS = (
    "", "1", "1/2", "1/0", "0/1", "1e999999999", "-1e-999999999", "9" * 59, "9" * 70, "9" * 4400, "1." + "0" * 70 + "1",
    "1_1" * 40, "8 GB/s", "99999999999999999999 TB", "0.000000000000001 ps", "1 KiB", "2.5 mm2", "22 nm", "x" * 300,
    "../../etc/passwd", "/dev/zero", "/dev/stdin", "fifo", "m.onnx", "edge", "tiny", "\x1b[2J", "a\nb", "\u202e",
    "\ue000", "\U0001f600" * 20, "nan", "inf", "-inf", "true", "None", "latency", "rows", "matrix.rows", "z",
    "__import__('os')",
)  # fmt: skip
ATOMS = (
    "rows", "matrix.rows", "sram.bytes", "dram.bandwidth", "clock", "z", "z0", "width", "total", "latency",
    "latency('demo')", "energy", "power", "area", "cycles", "dram_bytes", "dram.efficiency", "matrix.dataflow",
    "'weight_stationary'", "True", "1", "0", "2", "8", "0.1", "1e300", "1e-300", "9" * 60, "9" * 320, "1e308",
    "3 GB/s", "1 KiB", "2.5 mm2", "1 ps",
    "7 s", "1 / 3", "'demo'", "0x10", "1_000", "0.0",
)  # fmt: skip
OWN = ("z", "z0", "z1", "z2", "width", "total", "k1", "k2")
WRONG = (
    "(", ")", "lambda: 1", "[1, 2]", "{}", "x if y else z", "f'{z}'", "z := 1", "*z", "z[0]", "z.real", "1j", "...",
    "#", "\\", "'", '"', "z;", "not z", "z in z", "z is z", "~z", "z @ z", "z // z", "z % z", "z << 99", "await z",
    "yield",
    "\0", "é", "ﬁ", "١", "z" * 1100, "(" * 60, "-" * 400,
)  # fmt: skip


PLAIN = (
    "matrix.rows", "cycles", "latency / 1 s", "area / 1 mm2", "energy / 3.7 mJ", "dram_bytes / 1 KiB", "1", "0", "2",
    "8",
    "0.1", "1e300", "1e-300", "9" * 60, "power / 1 W", "dram.bandwidth / clock / 1 B", "1.19",
)  # fmt: skip
"""Plain numbers that are compatible with each other."""


def expression(rng: random.Random, depth: int, atoms: Sequence[str]) -> str:
    """Return a formula, usually a valid one."""
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice(atoms)
    kind = rng.randrange(8)
    left, right = expression(rng, depth - 1, atoms), expression(rng, depth - 1, atoms)
    if kind < 3:
        return f"({left} {rng.choice('+-*/')} {right})"
    if kind == 3:
        return f"({left})**{rng.choice((0, 1, 2, 3, 8, 8, 8, 9) if atoms is ATOMS else (0, 1, 2, 3, 8))}"
    if kind == 4:
        return f"{rng.choice(('min', 'max', 'ceil', 'pow') if atoms is ATOMS else ('min', 'max'))}({left}, {right})"
    if kind == 5:
        return f"{rng.choice(('ceil', 'floor', 'max', 'min'))}({left})"
    if kind == 6:
        return f"-{left}"
    return rng.choice(WRONG) if atoms is ATOMS and rng.random() < 0.2 else left


def formula(rng: random.Random, compared: float | None = None) -> str:
    atoms = ATOMS if rng.random() < 0.2 else PLAIN
    made = expression(rng, rng.choice((1, 2, 3, 3, 4, 6, 9)), atoms)
    if rng.random() < (0.4 if compared is None else compared):
        signs = rng.choice(("<", "<=", ">", ">=", "==", "< 1 <"))
        made = f"{made} {signs} {expression(rng, rng.randrange(4), atoms)}"
        if rng.random() < 0.3:
            made = f"{made} {rng.choice(('and', 'or'))} {expression(rng, 1, atoms)} > {expression(rng, 1, atoms)}"
    if rng.random() < 0.05:
        return f"({made})**8" * rng.choice((1, 3))
    return made


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (table or list, key or index) inside a value."""
    inside = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [place for key, item in inside for place in ((value, key), *places(item))]


def odd(rng: random.Random) -> Any:
    chance = rng.random()
    if chance < 0.35:
        return rng.choice(NUMBERS)
    if chance < 0.6:
        return rng.choice(TEXTS)
    if chance < 0.8:
        return formula(rng)
    if chance < 0.9:
        names = ("from", "to", rng.choice(("step", "times")), *(("bogus",) if rng.random() < 0.1 else ()))
        return {name: rng.choice((*NUMBERS, *TEXTS)) for name in names}
    return rng.choice(([], {}, [[]], [odd(rng) for _ in range(rng.randrange(1, 4))], True, [1, 1], {"a": {"b": 1}}))


def edit(space: dict[str, Any], rng: random.Random) -> None:
    """Change one thing."""
    found = places(space)
    holder, key = rng.choice(found)
    kind = rng.randrange(12)
    if kind < 2:
        holder[key] = odd(rng)
    elif kind < 6:
        part, compared = rng.choice((("objectives", 0.05), ("constraints", 0.95)))
        space[part] = [formula(rng, compared) for _ in range(rng.choice((1, 1, 3)))]
        if part == "objectives" and rng.random() < 0.8:
            space[part] = [f"cycles + {each}" for each in space[part]]
    elif kind == 6:
        derive = space.setdefault("derive", {})
        if isinstance(derive, dict):
            derive.update(
                {
                    rng.choice((*OWN, "matrix.cols", "vector.lanes")): formula(rng, 0.05)
                    for _ in range(rng.choice((1, 1, 3, 20)))
                }
            )
    elif kind == 7:
        vary = space.setdefault("vary", {})
        if isinstance(vary, dict):
            vary[rng.choice(("z", "width", "matrix.rows", "a b", "é", "z9", ""))] = odd(rng)
    elif kind == 8 and isinstance(holder, dict):
        holder[rng.choice((*TEXTS[:4], "rows", "bogus", "name", "file", "shape", "x" * 400))] = holder.pop(key)
    elif kind == 9 and isinstance(holder, dict):
        del holder[key]
    else:
        other, name = rng.choice(found)
        holder[key] = copy.deepcopy(other[name])


def use(space: dict[str, Any]) -> None:
    """Use each of the space's own variables in a constraint, because an unused variable is rejected."""
    constraints = space.get("constraints")
    if isinstance(constraints, list):
        tables = [table for part in ("vary", "derive") if isinstance(table := space.get(part), dict)]
        own = {name for table in tables for name in table if name in OWN}
        constraints += [f"{name} == {name}" for name in sorted(own)]


def toml(space: dict[str, Any]) -> str:
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in space.items())


def _key(name: Any) -> str:
    return json.dumps(str(name))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return {"inf": "inf", "nan": "nan", "-inf": "-inf"}.get(str(value), repr(value))
    return value.isoformat() if isinstance(value, dt.date) else json.dumps(value)


PIECES = (b"[", b"{", b"\xff", b"\0", b"=", b"[" * 3000, b"a." * 2000, b'"""', b"0x" + b"f" * 400)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the text of a file with bytes changed, removed or repeated."""
    begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    kind = rng.randrange(4)
    if kind == 0:
        return data[:begin]
    if kind == 1:
        return data[:begin] + data[begin:end] * rng.choice((0, 2, 50)) + data[end:]
    return (
        data[:begin]
        + rng.choice((b"[", b"{", b"\xff", b"\0", b"=", b"[" * 3000, b"a." * 2000, b'"""', b"0x" + b"f" * 400))
        + data[begin:]
    )


def broken(rng: random.Random) -> bytes:
    space = copy.deepcopy(rng.choice(SEEDS))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        edit(space, rng)
        if not space:
            break
    if rng.random() < 0.9:
        use(space)
    data = toml(space).encode("utf-8", "replace")
    return damaged(data, rng) if rng.random() < 0.1 else data


class Formula:
    """Evaluates a design without simulation."""

    def __init__(self, models: list[str]) -> None:
        self._models = models

    def __call__(self, design: EvaluationTask, /) -> StudyRow:
        count = design.number % 1000 + 1
        figures = tuple(
            ModelFigures(
                name, 10**6 * count, 10**3 * count, 4 * count, *((None, None) if count % 3 else (7 * count, 3))
            )
            for name in self._models
        )
        return StudyRow(
            design.number, design.base, design.settings, design.config.fingerprint(), SIMULATED, "", count, figures
        )


class World:
    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self._path = Path(self._folder.name) / "space.toml"
        node = helper.make_node("Relu", ["x"], ["y"])
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
        onnx.save(helper.make_model(helper.make_graph([node], "m", [x], [y])), self._path.with_name("m.onnx"))
        os.mkfifo(self._path.with_name("fifo"))

    def case(self, rng: random.Random) -> list[str]:
        self._path.write_bytes(broken(rng))
        return watched(self._search, self.tally)

    def _search(self) -> str:
        space = read_space(self._path)
        search = dataclasses.replace(
            space.search, budget=min(space.search.budget, 3), screen=min(space.search.screen, 9),
            method=space.search.method if space.search.method != "optuna" else "halving",
        )  # fmt: skip
        space = dataclasses.replace(space, search=search)
        for each in space.workloads[:3]:
            each.load(space.bases[0])
        with Study(space, evaluate=Formula([each.name for each in space.workloads])) as study:
            study.run(workers=0)
            text(study, 20)
            json.dumps(to_json_dict(study), allow_nan=False)
            return "was searched" if study.rows else "had no design"


def make() -> World:
    return World()
