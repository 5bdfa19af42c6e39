"""How far the compiler keeps the laws of ``tests.laws`` on random layers and the shipped devices: the worst cases.

Run as ``python -m bench.laws --cases 100``. ``--law`` and ``--device`` choose; ``--seed`` takes others. Exit code 1 if
a law is broken.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from random import Random

from npusim.hw.config import load_config
from npusim.hw.files import config_names
from tests.laws.laws import LAWS, Law


def walk(law: Law, device: str, cases: int, seed: int) -> tuple[int, list[tuple[float, str]]]:
    """(cases that there were, (ratio, text) of the broken ones, the worst first) of a law on a device."""
    config, found, broken = load_config(device), 0, []
    for number in range(cases):
        case = law.case(Random(f"{law.name} {device} {seed} {number}"), config)
        if case is None:
            continue
        found += 1
        ratio, figures = case.verdict()
        if ratio > 1:
            lines = [
                f"    {name}: " + (each.refusal or f"{each.time_ps / 1e6:.1f} us, {each.traffic / 1e6:.3f} MB")
                for name, each in figures.items()
            ]
            broken.append((ratio, "\n".join([case.text, *lines])))
    return found, sorted(broken, reverse=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of laws and devices, and the worst case of each broken pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--law", action="append", choices=LAWS, help="a law; all without it")
    parser.add_argument("--device", action="append", choices=config_names(), help="a device; all without it")
    parser.add_argument("--cases", type=int, default=20, help="cases of each law on each device")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    failed = False
    for name in options.law or LAWS:
        law = LAWS[name]
        print(f"## {name}: {law.statement}", flush=True)
        for device in options.device or config_names():
            found, broken = walk(law, device, options.cases, options.seed)
            worst = f"{broken[0][0]:.2f}" if broken else "-"
            print(f"{device}: {found} cases, {len(broken)} broken, worst {worst} of what is allowed", flush=True)
            if broken:
                print(f"  {broken[0][1]}", flush=True)
                failed = True
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
