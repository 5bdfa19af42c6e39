"""HTML representations of objects for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """An HTML table of names and values with a title; all text is escaped."""
    lines = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{html.escape(title)}</caption>{''.join(lines)}</table>"


def preformatted(text: str) -> str:
    """HTML of a text whose columns are aligned by spaces; the text is escaped."""
    return f"<pre>{html.escape(text)}</pre>"
