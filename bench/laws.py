"""How well the compiler keeps its laws on random layers: the worst case of each law on each device.

Run as ``python -m bench.laws --cases 100``. ``--law`` and ``--device`` select; ``--seed`` changes the cases; ``--page``
writes the results as a page of the documentation. Exit code 1 if a law is broken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from npusim.hw.files import config_names
from tests.support.laws.devices import RANDOM, device
from tests.support.laws.laws import LAWS


@dataclass(frozen=True)
class Worst:
    """The results of a law on a device: number of cases, number of violations, and the worst case.

    ``ratio``: the worst figure divided by the allowed one; at most 1 if the law holds. ``text``: the case with its
    figures.
    """

    cases: int
    broken: int
    ratio: float
    text: str

    @property
    def cell(self) -> str:
        """The ratio as a table cell."""
        return f"{self.ratio:.2f}" if self.cases else "-"


def walk(law: str, name: str, cases: int, seed: int) -> Worst:
    """The worst of ``cases`` cases of a law on a device. Cases that the device does not support do not count."""
    found, broken, worst, text = 0, 0, 0.0, ""
    for number in range(cases):
        rng = Random(f"{law} {name} {seed} {number}")
        config = device(name, rng)
        case = LAWS[law].case(rng, config) if LAWS[law].on(config) else None
        if case is None:
            continue
        found += 1
        ratio, figures = case.verdict()
        broken += ratio > 1
        if ratio > worst:
            lines = [
                f"    {subject}: " + (each.refusal or f"{each.time_ps / 1e6:.2f} us, {each.traffic / 1e6:.3f} MB")
                for subject, each in figures.items()
            ]
            worst, text = ratio, "\n".join([case.text, *lines])
    return Worst(found, broken, worst, text)


def _walk(arguments: tuple[str, str, int, int]) -> Worst:
    return walk(*arguments)


def page(results: Mapping[tuple[str, str], Worst], cases: int, seed: int) -> str:
    """The results as Markdown: a table of devices and laws, and the worst case of each law."""
    laws = list(dict.fromkeys(law for law, _ in results))
    lines = [
        "# Laws of the compiler",
        "",
        "The compiler should keep these laws on every device. `python -m bench.laws` measures them on random layers; "
        f"this page is its last run, with {cases} cases of each law on each device (seed {seed}).",
        "",
        "A number is the worst ratio of a measured figure to the figure that the law allows: "
        "a law holds where it is at most 1.",
        "`random` is a new description for every case.",
        "",
        "| Device | " + " | ".join(laws) + " |",
        "|---|" + "---:|" * len(laws),
    ]
    for name in dict.fromkeys(name for _, name in results):
        lines.append(f"| {name} | " + " | ".join(results[law, name].cell for law in laws) + " |")
    for law in laws:
        name, worst = max(((name, each) for (key, name), each in results.items() if key == law), key=_ratio)
        lines += ["", f"## {law}", "", f"{LAWS[law].statement[0].upper()}{LAWS[law].statement[1:]}."]
        if worst.text:
            lines += ["", f"The worst case, {worst.cell} on {name}:", "", "```text", worst.text, "```"]
    return "\n".join(lines) + "\n"


def _ratio(item: tuple[str, Worst]) -> float:
    return item[1].ratio


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the worst case of each law on each device, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*config_names(), RANDOM]
    parser.add_argument("--law", action="append", choices=LAWS, help="a law; all without it")
    parser.add_argument("--device", action="append", choices=names, help="a device; all without it")
    parser.add_argument("--cases", type=int, default=20, help="cases of each law on each device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="write the results as Markdown")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args(arguments)
    keys = list(product(options.law or LAWS, options.device or names))
    results: dict[tuple[str, str], Worst] = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        tasks = [(*key, options.cases, options.seed) for key in keys]
        for (law, name), worst in zip(keys, pool.imap(_walk, tasks), strict=True):
            results[law, name] = worst
            print(f"{law} on {name}: {worst.cases} cases, {worst.broken} broken, worst {worst.cell}", flush=True)
            if worst.broken:
                print(f"  {worst.text}", flush=True)
    if options.page:
        options.page.write_text(page(results, options.cases, options.seed), encoding="utf-8")
    return int(any(worst.broken for worst in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
