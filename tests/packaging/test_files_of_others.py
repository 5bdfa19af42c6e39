"""Every file that npusim reads has a row in docs/security.md and is read by the shared reader."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READER = "npusim/untrusted.py"
READS = {
    "io.open", "io.FileIO", "os.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "tarfile.open",
    "zipfile.ZipFile", "np.load", "np.fromfile", "np.memmap", "np.loadtxt", "np.genfromtxt",
    "np.lib.format.open_memmap", "sqlite3.connect", "onnx.load", "onnx.load_model", "pickle.load", "shelve.open",
    "dbm.open", "runpy.run_path", "open_regular", "open_descriptor", "ctypes.CDLL", "shutil.copy", "shutil.copyfile",
}  # fmt: skip
"""Calls that open a file by name, or read one with another parser."""
ROWS = {
    ("npusim/explore/store.py", "_opened"): "study store",
    ("npusim/explore/store.py", "StudyStore._open"): "study store",
    ("npusim/frontends/onnx/files.py", "Files.read"): "external data of an ONNX model",
    ("hal/nnapi/capi/caching.py", "_opened"): "model and data file of the NNAPI compilation cache",
    ("npusim/cli/tensors.py", "_mapped"): "input array (.npy)",
    ("npusim/trusted_files.py", "user_key"): "key",
}
"""Places that open a file in another way, and the row that describes its checks."""
OWN = {
    ("npusim/trusted_files.py", "open_regular"): "what the reader opens files with",
    ("npusim/trusted_files.py", "open_descriptor"): "likewise",
    ("npusim/trusted_files.py", "_new_draft"): "made here, exclusively",
    ("npusim/trusted_files.py", "_remove_draft"): "to be locked and removed, not read",
    ("npusim/explore/store.py", "_schema"): "a database in memory",
    ("npusim/explore/build.py", "build"): "this program",
    ("npusim/pages.py", "write_or_check"): "a page of this repository, for its developers",
    ("npusim/report/html/page.py", "source"): "part of the package",
    ("npusim/cli/output.py", "abandon"): "/dev/null",
    ("npusim/cli/libs.py", "read"): "part of the package",
    ("npusim/cli/models.py", "save_program"): "written here just before",
    ("npusim/linux/kernel.py", "run"): "a descriptor of a process of its own",
    ("npusim/linux/kernel.py", "_listening"): "a directory of its own",
    ("npusim/linux/kernel.py", "_prepare"): "this program",
    ("hal/onnxifi/__init__.py", "_preload"): "this program",
    ("hal/ort/context.py", "write_context"): "written here just before, in a directory of its own",
    ("npusim/conformance/subject.py", "ProgramSubject.__init__"): "made here, in a directory of its own",
    ("npusim/sim/pages.py", "_touched"): "/proc/self/pagemap",
}
"""Places that only open npusim's own files, and why."""


@functools.cache
def every_call() -> list[tuple[str, str, ast.Call]]:
    """Return file, function and call, for all files."""
    files = sorted(path for package in ("npusim", "hal") for path in (ROOT / package).rglob("*.py"))
    return [
        (str(path.relative_to(ROOT)), function, call)
        for path in files
        for function, call in calls(ast.parse(path.read_text()))
    ]


def calls(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with its function."""
    for node in ast.iter_child_nodes(tree):
        inner = name
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            inner = f"{name}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call):
            yield name, node
        yield from calls(node, inner)


def dotted(node: ast.expr) -> str:
    """A name with its attributes. Other expressions have no name; to unparse them would take seconds."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def reads(call: ast.Call) -> bool:
    """Return whether a call reads a file given by name."""
    name = dotted(call.func)
    last = name.rpartition(".")[2]
    if name in READS or name.replace("numpy", "np") in READS:
        return True
    plain = [each.value for each in call.args if isinstance(each, ast.Constant)]
    if last in ("read_text", "read_bytes"):  # of a path: those of others have an address before all
        return len(plain) == len(call.args)
    if last != "open":
        return False
    mode = next((each.value for each in call.keywords if each.arg == "mode"), None)
    if name == "open":  # the built-in function: its mode is the second argument
        mode = call.args[1] if len(call.args) > 1 else mode
    elif len(plain) < len(call.args):  # of a path, the only arguments are the mode and how text is encoded
        return False
    else:
        mode = call.args[0] if call.args else mode
    text = ast.literal_eval(mode) if isinstance(mode, ast.Constant) else "r"
    return "r" in text or "+" in text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("open(p)", True), ("open(p, 'rb')", True), ("open(p, mode='r+')", True), ("open(p, m)", True),
        ("open(p, 'w')", False), ("p.open()", True), ("p.open('rb')", True), ("p.open(encoding='utf-8')", True),
        ("p.open('w', encoding='utf-8')", False), ("KIND.open(path)", False), ("p.read_text()", True),
        ("p.read_text('utf-8')", True), ("p.read_bytes()", True), ("m.read_bytes(address, 4)", False),
        ("np.load(p)", True), ("sqlite3.connect(p)", True), ("os.open(p, 0)", True), ("tomllib.loads(t)", False),
    ],
)  # fmt: skip
def test_what_reads_a_file_is_recognised(text: str, wanted: bool) -> None:
    ((_, call),) = calls(ast.parse(text))
    assert reads(call) == wanted


def test_every_file_is_read_by_the_one_reader() -> None:
    found = {(path, function) for path, function, call in every_call() if path != READER and reads(call)}
    assert sorted(found) == sorted({**ROWS, **OWN}), "read with a FileKind, or say whose it is"


def test_every_kind_of_file_has_a_row_and_every_row_is_one() -> None:
    kinds = {
        ast.literal_eval(call.args[0])
        for _, _, call in every_call()
        if isinstance(call.func, ast.Name) and call.func.id == "FileKind"
    }
    assert kinds | set(ROWS.values()) == set(rows("Files"))
    assert all(cell for row in rows("Files").values() for cell in row)


def rows(section: str) -> dict[str, list[str]]:
    """Return the rows of a section's table by their first cell."""
    page = (ROOT / "docs/security.md").read_text()
    part = page.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    table = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    return {first.replace("`", ""): rest for first, *rest in table[2:]}
