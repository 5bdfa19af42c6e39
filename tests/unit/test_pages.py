"""Pages generated from the code are written, or compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.pages import write_or_check


def test_pages_are_written_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    default, page = tmp_path / "default.md", tmp_path / "deep" / "er" / "page.md"

    def command(text: str, *arguments: str) -> int:
        return write_or_check("a.module", "makes a page", default, lambda: text, arguments)

    assert command("text", str(page), "--check") == 1
    assert capsys.readouterr().err == f"{page} is out of date: python -m a.module\n"
    assert not page.exists()
    assert command("text", str(page)) == 0
    assert page.read_text() == "text"
    assert command("text", str(page)) == 0, "the folder may be there"
    assert command("text", str(page), "--check") == 0
    assert capsys.readouterr().err == f"{page} is up to date\n"
    assert command("other", str(page), "--check") == 1
    assert page.read_text() == "text"
    assert command("text") == 0
    assert default.read_text() == "text"
