"""What a notebook shows of an object instead of its ``repr``."""

from __future__ import annotations

import html
from collections.abc import Iterable


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """An HTML table of names and values under a title, all of them plain text."""
    lines = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{html.escape(title)}</caption>{''.join(lines)}</table>"
