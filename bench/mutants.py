"""Mutation testing: small faults are inserted into the code one at a time, to see which of them the unit tests detect.

    python -m bench.mutants --seed 1 --count 20 --files 'npusim/compiler/*'

Draws ``count`` of all places where production code can be changed into other valid code: comparisons, arithmetic,
constants, conditions, bounds, omitted statements. Each mutant is placed in a copy of the tree, where the tests of its
file are run (``tests_of``). A mutant is killed if these fail or do not end. Text for users (docstrings, messages,
logs), annotations, decorators and sizes of caches are not mutated. A seed draws the same mutants from the same tree on
every machine.

Exit status: 0 if at least nine of ten mutants of each draw were killed, otherwise 1.
"""

import argparse
import ast
import compileall
import difflib
import fnmatch
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "npusim/validate": "tests/validation",
    "hal/abi": "tests/abi",
    "npusim/torch": "tests/torch",
}  # packages whose tests are not in tests/unit
MEMORY = 256 << 30
"""Limit of the address space in bytes, because a mutant may allocate any amount of memory. Simulated DRAM takes
gibibytes of addresses, but little memory."""
_RUN = f"""
import resource, sys, pytest
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", *sys.argv[1:]]))
"""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SPOKEN = {"debug", "info", "warning", "warn", "exception", "log", "echo", "secho", "print"}
UNSEEN = frozenset(
    [
        "__repr__",
        "__str__",
        "__all__",
        "__slots__",
        "TYPE_CHECKING",
        "annotation",
        "returns",
        "decorator_list",
        "help",
        "strict",
    ]
)


class Mutant(NamedTuple):
    """``file`` with the bytes ``start`` to ``end`` replaced by ``text``."""

    file: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The mutated file."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """The lines that differ, with - and +."""
        before, after = source.decode().splitlines(), self.apply(source).decode().splitlines()
        return "\n".join(
            f"    {line}"
            for line in difflib.unified_diff(before, after, n=0, lineterm="")
            if line[:2] not in ("--", "++", "@@")
        )


def mutations(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:  # noqa: C901, PLR0912
    """Pairs of ``node``, or a part of it, and a possible replacement."""
    match node:
        case ast.Compare(ops=[op]):
            yield node, ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
            if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                yield node, ast.UnaryOp(ast.Not(), node)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not typing_union(node):
            yield node, ast.BinOp(node.left, ARITHMETIC[type(op)](), node.right)
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield node, ast.AugAssign(node.target, ARITHMETIC[type(op)](), node.value)
            yield node, ast.Pass()
        case ast.BoolOp(op=op, values=[first, *rest]):
            yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
            yield node, ast.BoolOp(op, rest) if rest[1:] else rest[0]
            yield node, ast.BoolOp(op, [first, *rest[:-1]]) if rest[1:] else first
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node, node.operand
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=float() as number):
            yield node, ast.Constant(2 * number or 1.0)  # a change by one of a million would not be detected
        case ast.Constant(value=int() as number):
            yield node, ast.Constant(number + 1)
            if number:  # -1 for 0 is the same element of a list of one, and equal in most comparisons
                yield node, ast.Constant(number - 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield node, ast.Call(ast.Name(CALLS[name]), node.args, node.keywords)
        case ast.Call(func=ast.Name("range"), args=[*_, _]):
            stop = node.args[min(1, len(node.args) - 1)]
            yield stop, ast.BinOp(stop, ast.Add(), ast.Constant(1))
            yield stop, ast.BinOp(stop, ast.Sub(), ast.Constant(1))
        case ast.Slice():
            for bound in (node.lower, node.upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield bound, ast.BinOp(bound, ast.Add(), ast.Constant(1))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if isinstance(test, ast.Name | ast.Call):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[test]):
            yield test, ast.Constant(True)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, ast.Constant(None)
        case ast.Break() | ast.Continue():
            yield node, ast.Pass()
        case ast.Raise() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, ast.Pass()


def typing_union(node: ast.BinOp) -> bool:
    """Whether ``node`` is a union of types, such as ``int | None``."""
    last = ast.unparse(node.right).rpartition(".")[2]
    return isinstance(node.op, ast.BitOr) and (
        last in ("None", "int", "str", "bytes", "float", "bool", "tuple") or (not last.isupper() and last[0].isupper())
    )


def seen(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and its descendants that tests can observe: no text for users, no annotations."""
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Call(func=ast.Name("lru_cache") | ast.Attribute(attr="lru_cache")):
            return  # the size of a cache does not affect results
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if name in SPOKEN:
            return
        case (
            ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) | ast.If(test=ast.Name(id=name))
            | ast.keyword(arg=name)
        ) if name in UNSEEN:  # fmt: skip
            return
    yield node
    if not isinstance(node, ast.Raise):
        for name, field in ast.iter_fields(node):
            for child in (field if isinstance(field, list) else [field]) if name not in UNSEEN else ():
                if isinstance(child, ast.AST):
                    yield from seen(child)


def mutants_of(file: str) -> list[Mutant]:
    """All mutants of ``file``, in order of position."""
    source = (ROOT / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = set()
    for node in seen(ast.parse(source)):
        for old, new in mutations(node):
            assert isinstance(old, ast.expr | ast.stmt)
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            text = ast.unparse(ast.fix_missing_locations(new))
            whole = isinstance(new, ast.stmt | ast.Constant | ast.Name | ast.Call)
            start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            found.add(Mutant(file, old.lineno, start, end, text if whole else f"({text})"))
    return sorted(found)


def tests_of(file: str) -> str:
    """The folder, or pattern of files, with the nearest tests of a production file."""
    package, _, module = file.removesuffix(".py").rpartition("/")
    if package in ELSEWHERE:
        return ELSEWHERE[package]
    base = package.partition("/")[2]
    while base:
        if (ROOT / "tests/unit" / base).is_dir():
            return f"tests/unit/{base}"
        base = base.rpartition("/")[0]
    if list((ROOT / "tests/unit").glob(f"test_{module.lstrip('_')}*.py")):
        return f"tests/unit/test_{module.lstrip('_')}*.py"
    return "tests/unit"


class Copy:
    """A copy of the tree in ``folder`` for running tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._limits: dict[str, float] = {}
        ignored = shutil.ignore_patterns(
            ".git", "__pycache__", ".hypothesis", "build", ".*_cache", "*.egg-info", ".venv"
        )
        shutil.copytree(ROOT, folder, ignore=ignored, dirs_exist_ok=True)
        for package in ("npusim", "hal", "tests"):
            compileall.compile_dir(folder / package, quiet=2)

    def passes(self, tests: str, limit: float | None, mutated: str = "") -> bool:
        """Whether ``tests`` pass within ``limit`` seconds. Those that name the module of the ``mutated`` file run
        first."""
        chosen = [str(path.relative_to(self.folder)) for path in self._in_order(tests, mutated)]
        # No bytecode is written: that of a mutant could have the time and size of the original.
        env = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command, nowhere = [sys.executable, "-c", _RUN, *chosen], subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, cwd=self.folder, env=env, start_new_session=True
        )
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def _in_order(self, tests: str, mutated: str) -> list[Path]:
        places = self.folder.glob(tests)
        files = sorted(file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place]))
        package, _, module = mutated.removesuffix(".py").removesuffix("/__init__").replace("/", ".").rpartition(".")
        named = re.compile(rf"{package}(\.| import (.*, )?){module}\b")
        return sorted(files, key=lambda file: not named.search(file.read_text(encoding="utf-8")))

    def limit(self, tests: str) -> float:
        """Time limit in seconds for ``tests`` with a mutant: five times the time without one."""
        if tests not in self._limits:
            began = time.monotonic()
            if not self.passes(tests, None):
                raise SystemExit(f"{tests} fails without any mutant")
            self._limits[tests] = 30 + 5 * (time.monotonic() - began)
        return self._limits[tests]

    def survives(self, mutant: Mutant) -> bool:
        """Whether the tests of its file pass with ``mutant``."""
        tests, path = tests_of(mutant.file), self.folder / mutant.file
        limit = self.limit(tests)
        source, times = path.read_bytes(), path.stat()
        try:
            path.write_bytes(mutant.apply(source))
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 10**10))
            return self.passes(tests, limit, mutant.file)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one draw for each")
    parser.add_argument("--count", type=int, default=20, help="mutants of a draw")
    parser.add_argument("--files", action="append", help="a pattern of paths, such as npusim/isa/*; may be repeated")
    parser.add_argument("--list", action="store_true", help="only list the drawn mutants")
    args = parser.parse_args()
    files = sorted(str(path.relative_to(ROOT)) for top in ("npusim", "hal") for path in (ROOT / top).rglob("*.py"))
    wanted = [file for file in files if not args.files or any(fnmatch.fnmatch(file, pattern) for pattern in args.files)]
    every = [mutant for file in wanted for mutant in mutants_of(file)]
    enough = True
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = None if args.list else Copy(Path(folder))
        for seed in args.seed:
            drawn = random.Random(seed).sample(every, min(args.count, len(every)))
            survivors = 0
            for mutant in drawn:
                diff = mutant.diff(((tree.folder if tree else ROOT) / mutant.file).read_bytes())
                alive = tree is not None and tree.survives(mutant)
                survivors += alive
                state = "" if tree is None else "SURVIVED " if alive else "killed "
                print(f"{state}{mutant.file}:{mutant.line}\n{diff}", flush=True)
            if tree is not None:
                print(f"seed {seed}: {len(drawn) - survivors} of {len(drawn)} killed", flush=True)
                enough &= survivors * 10 <= len(drawn)
    print(f"drawn from {len(every)} mutants of {len(wanted)} files")
    sys.exit(not enough)


if __name__ == "__main__":
    main()
