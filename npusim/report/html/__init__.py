"""Self-contained HTML pages: a run, a study, the comparison of two runs."""

from npusim.report.html.compare import compare_page
from npusim.report.html.front import front_page
from npusim.report.html.run import run_page

__all__ = ["compare_page", "front_page", "run_page"]
