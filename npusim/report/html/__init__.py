"""Pages for any browser, each one file that needs no network: a run, a study's front, two runs side by side."""

from npusim.report.html.compare import compare_page
from npusim.report.html.front import front_page
from npusim.report.html.run import run_page

__all__ = ["compare_page", "front_page", "run_page"]
