"""Hooks of the documentation's site (mkdocs.yml): decisions in the navigation, and links to files outside docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def on_config(config: Any) -> Any:
    """Add every decision to the navigation, in the order of their numbers."""
    decisions = sorted(str(path.relative_to(DOCS)) for path in (DOCS / "adr").glob("*.md"))
    config["nav"].append({"Decisions": decisions})
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace a link to a folder, or to a file outside docs/, by its text: the site has neither."""
    here = (DOCS / page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        target = (here / link["target"]).resolve()
        outside = target.is_dir() or (target.exists() and not target.is_relative_to(DOCS))
        return link["text"] if outside else link[0]

    return re.sub(r"(?<!!)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<target>[^)#]+)(#[^)]*)?\)", replaced, markdown)
