"""Each public class of npusim has a unique name, so that a name in an error, a page or a search is unambiguous."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "npusim"


def public_classes() -> dict[str, set[str]]:
    """Return modules by the names of their public classes. Instruction records are excluded; they are named like their
    instructions."""
    found = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if not module.startswith("isa/"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].add(module)
    return found


def test_no_public_class_name_is_in_two_modules() -> None:
    found = public_classes()
    assert len(found) > 500
    shared = {name: sorted(modules) for name, modules in found.items() if len(modules) > 1}
    assert shared == {}
