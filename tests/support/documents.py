"""The fenced blocks of a documentation page, and the environment to run them in."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from npusim import demo
from npusim.cli.tensors import write_arrays

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<reason>[^\n]+?)|printed by: (?P<command>[^\n]+?)) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
RUN = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": ["python", "-c"]}


class Block(NamedTuple):
    """A fenced block of a page. ``reason``: why it is not run. ``command``: prints exactly this block."""

    language: str
    code: str
    reason: str | None
    command: str | None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(m["language"], m["code"], m["reason"], m["command"]) for m in BLOCK.finditer(page.read_text("utf-8"))]


def run(found: Iterable[Block], folder: Path, scripts: Path, **variables: str) -> dict[Block, str]:
    """Run blocks in a folder that contains ``model.onnx`` and ``image.npy`` of the demo, with ``scripts`` first on the
    path.

    Returns the output of the command of each block that is printed by one.
    """
    (folder / "model.onnx").write_bytes(demo.as_onnx())
    write_arrays(folder, demo.inputs())
    environment = {
        **{name: value for name, value in os.environ.items() if name != "COLUMNS"},
        "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]]),
        "NPUSIM_CACHE_DIR": str(folder / "cache"),
        **variables,
    }
    printed: dict[Block, str] = {}
    for block in found:
        words = [*RUN["sh"], block.command] if block.command else [*RUN[block.language], block.code]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        if block.command:
            printed[block] = done.stdout
    return printed


def to_run(page: Path) -> list[Block]:
    """Return the blocks of a page that run, and those that a command prints."""
    return [block for block in blocks(page) if (block.language in RUN and block.reason is None) or block.command]


def rewritten(page: Path, printed: Mapping[Block, str]) -> str:
    """Return the text of a page with the printed blocks as their commands print them now."""
    outputs = {(block.command, block.code): output for block, output in printed.items()}

    def replaced(match: re.Match[str]) -> str:
        output = outputs.get((match["command"], match["code"]))
        return match[0] if output is None else match[0].replace(match["code"], output)

    return BLOCK.sub(replaced, page.read_text("utf-8"))
