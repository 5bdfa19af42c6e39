"""The frame of a page: names cannot break out of it, and the browser permissions are minimal."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import pytest

from npusim.report.html import page
from tests.support.pages import HOSTILE


class Elements(HTMLParser):
    """The elements of a page, and the texts of some."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inside[self._open[-1]] = self.inside.get(self._open[-1], "") + data

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass


def made(name: str) -> str:
    body = page.tiles([(name, name, name)]) + page.section("part", name, page.facts([(name, name)]), note=name)
    return page.page(name, body, {"name": page.label(name), name: [1]}, ["base"])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_adds_no_element(name: str) -> None:
    plain, hostile = Elements(made("plain")), Elements(made(name))
    # A <wbr> is where a long name may break.
    assert [tag for tag, _ in hostile.tags if tag != "wbr"] == [tag for tag, _ in plain.tags]
    assert hostile.inside["title"] == page.label(name)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_comes_back_from_the_data(name: str) -> None:
    inner = made(name).partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(inner)["name"] == page.label(name)
    assert not set(inner) & set("<>&")


def test_only_long_names_break_and_only_before_a_part() -> None:
    assert page.words("sram.bytes") == "sram.bytes"
    assert page.words("features.denseblock4.conv2 1.25 ms") == "features.<wbr>denseblock4.<wbr>conv2 1.25 ms"


def test_a_page_is_ascii() -> None:
    assert made("schichten \u00fc \u4e2d").isascii()
    assert "schichten \u00fc \u4e2d" in html.unescape(made("schichten \u00fc \u4e2d"))


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    text = made("plain")
    policy = next(
        attributes["content"] for tag, attributes in Elements(text).tags if tag == "meta" and "http-equiv" in attributes
    )
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    style = text.partition("<style>")[2].partition("</style>")[0]
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    for name, content in (("style-src", style), ("script-src", script)):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
    assert rules["default-src"] == "'none'"


def test_scripts_and_style_name_no_address() -> None:
    names = (
        "base",
        "axes",
        "table",
        "layers",
        "roofline",
        "lanes",
        "bars",
        "run",
        "study",
        "scatter",
        "parallel",
        "effects",
        "design",
        "front",
    )
    allowed = {"http://www.w3.org/2000/svg"}  # an XML namespace; it is never fetched
    for content in (page.source("page.css"), *(page.source(f"{name}.js") for name in names)):
        assert set(re.findall(r"https?://[^\s\"']+", content)) <= allowed
        assert "innerHTML" not in content
        assert "eval(" not in content


def test_data_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        page.in_script(float("nan"))
