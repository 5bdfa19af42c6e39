"""Makes the pictures of the README: ``python -m tests.packaging.pictures``. Needs Chromium.

Look at them before they are committed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from npusim import demo
from npusim.explore import Study, make_space
from npusim.explore.page import page as study_page
from npusim.report.html import run_page
from npusim.runtime import Session
from tests.support.browser import chromium
from tests.support.documents import ROOT

PICTURES = ROOT / "docs/pictures"
SPACE = {
    "base": "edge",
    "objectives": ["latency", "area"],
    "constraints": ["area <= 8 mm2"],
    "vary": {
        "matrix.rows": [8, 16, 32, 64],
        "sram.bytes": ["128 KiB", "256 KiB", "512 KiB", "1 MiB"],
        "dram.bandwidth": ["4 GB/s", "8 GB/s", "16 GB/s"],
    },
    "derive": {"matrix.cols": "rows", "matrix.accumulator_bytes": "rows * 4 KiB"},
    "model": [{"network": "squeezenet", "shape": [1, 64, 64, 3]}],
}


def main() -> None:
    """Write a page of a run and one of a study, and photograph the top of each."""
    result = Session("edge", cache_dir=False).run(demo.network(), timing_only=True)
    study = Study(make_space(SPACE))
    study.run(workers=2)
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as browser:
        for name, text, height in (("run", run_page(result), 900), ("front", study_page(study), 900)):
            browser.open(text)
            browser.driver.set_window_size(1200, height)
            browser.driver.save_screenshot(str(PICTURES / f"{name}.png"))


if __name__ == "__main__":
    main()
