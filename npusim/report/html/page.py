"""A self-contained HTML file with style, scripts and data. It fetches nothing and escapes all names.

Names come from untrusted files. They enter a page as text only: escaped in markup, and as JSON without ``<`` in data;
the scripts create text nodes from them. In addition, the page has a content security policy with a hash for each of its
scripts and styles, so that a browser neither runs nor loads injected content.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from npusim.report.format import printable

_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="npusim">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="top">
<h1>{title}</h1>
<div class="tools"><button type="button" id="theme" aria-live="polite">Colours: as the system</button></div>
</header>
<noscript><p class="note">Scripts inside this page draw its pictures; this browser does not run them.</p></noscript>
<main id="main">
{body}
</main>
<div id="tip" class="tip" role="status" hidden></div>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def text(value: object) -> str:
    """Any value as text between tags or in an attribute; unprintable characters are escaped."""
    return html.escape(printable(str(value), lines=False), quote=True)


def label(value: object) -> str:
    """A name as data for the scripts, with unprintable characters escaped."""
    return printable(str(value), lines=False)


_LONG = re.compile(r"\S{12,}")
_BEFORE_PART = re.compile(r"(?<=[./_+:=(-])(?=[A-Za-z])")


def words(value: object) -> str:
    """A value as text between tags; long names break before a part, not within a word, and arrows do not break."""
    shown = text(value).replace(" -&gt; ", " \u2192 ")
    return _LONG.sub(lambda found: _BEFORE_PART.sub("<wbr>", found[0]), shown)


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as a definition list."""
    inner = "".join(f"<div><dt>{words(name)}</dt><dd>{words(value)}</dd></div>" for name, value in rows)
    return f'<dl class="facts">{inner}</dl>'


Tile = tuple[str, str, str]
"""A headline figure: its label, the figure as text, and one line of detail."""
NOT_KNOWN = "not known"


def tiles(rows: Iterable[Tile]) -> str:
    """The headline figures of a page, as a section without a heading."""
    inner = "".join(
        f'<div><dt>{words(name)}</dt><dd class="figure">{words(figure)}</dd><dd>{words(detail)}</dd></div>'
        for name, figure, detail in rows
    )
    return f'<section id="headline" aria-label="Headline figures"><dl class="tiles">{inner}</dl></section>'


def section(name: str, title: str, body: str = "", note: str = "") -> str:
    """A section of a page. Scripts find it as ``#name``."""
    said = f'<p class="note">{text(note)}</p>' if note else ""
    head = f'<h2 id="{name}-title">{text(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{said}{body}</section>'


def page(title: str, body: str, data: object, scripts: Sequence[str]) -> str:
    """The text of the file, in ASCII. ``scripts``: names of the ``.js`` files in this package, in order."""
    style, script = source("page.css"), _script(tuple(scripts))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    )
    filled = _PAGE.format(policy=policy, title=text(title), style=style, body=body, data=in_script(data), script=script)
    return filled.encode("ascii", "xmlcharrefreplace").decode("ascii")


def in_script(data: Any) -> str:
    """Data as JSON that is safe inside a script element. Raises ValueError for values that JSON cannot represent."""
    plain = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return plain.translate(_IN_SCRIPT)


@cache
def source(name: str) -> str:
    """A style or script of this package; ASCII, so that the hash is that of the bytes in the file."""
    return files(__package__).joinpath(name).read_text("ascii")


@cache
def _script(names: tuple[str, ...]) -> str:
    parts = "".join(source(f"{name}.js") for name in names)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _hash(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
