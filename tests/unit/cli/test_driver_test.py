"""``npusim driver-test``."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.unit.cli.conftest import Cli


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    files = tmp_path / "r.json", tmp_path / "r.xml"
    good = cli(
        "driver-test", "--connect", "python:npusim.driver:Driver", "--case", "computes", "--case", "aborts",
        "--json", str(files[0]), "--junit", str(files[1]),
    )  # fmt: skip
    assert good.code == 0
    assert good.out.splitlines()[-1] == "python:npusim.driver:Driver: 2 passed, 0 failed, 0 left out"
    assert [case["name"] for case in json.loads(files[0].read_text())["cases"]] == ["computes", "aborts"]
    assert ET.parse(files[1]).getroot().attrib["tests"] == "2"
    bad = cli("driver-test", "--connect", "python:npusim.driver.null:NullDriver", "--case", "computes")
    assert bad.code == 1
    assert "failed    computes: job 0: y0[1] must be 1, got 0" in bad.out
    for connect, message in (
        ("nothing", "--connect nothing: must be python:MODULE:CLASS or exec:COMMAND LINE"),
        ("python:npusim", "--connect python:npusim: must be python:MODULE:CLASS"),
        ("python:npusim.driver:Nobody", "has no attribute 'Nobody'"),
        ("exec:/nowhere/driver", "--connect exec:/nowhere/driver: there is no such program"),
        ("exec:", "must be exec:COMMAND LINE"),
    ):
        outcome = cli("driver-test", "--connect", connect, "--case", "computes")
        assert outcome.code == 2
        assert message in outcome.message


def test_a_driver_of_which_nothing_was_tried_has_not_passed(cli: Cli) -> None:
    done = cli("driver-test", "--connect", "python:npusim.driver:Driver", "--case", "any-times", "--seeds", "0")
    assert done.code == 1
    assert done.out.splitlines() == [
        "left out  any-times: no seeds requested",
        "python:npusim.driver:Driver: 0 passed, 0 failed, 1 left out",
    ]
