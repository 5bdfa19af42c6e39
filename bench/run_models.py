"""Speed and memory on ResNet-50, as ratios within one run, on one thread of one CPU.

Every measurement runs in a separate process that is bound to one CPU. onnxruntime and npusim alternate in the same
process, so that a busy machine slows both. Exit code 1 if a limit is missed. Needs the ``test`` extra.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPUSIM_THREADS"), "1")


@dataclass(frozen=True)
class Row:
    """One figure. ``limit``: its maximum; None: no limit."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the figure is within its limit."""
        return self.limit is None or self.value <= self.limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, optionally write JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.run_models", description=__doc__)
    parser.add_argument("--config", default="edge", help="the device (default: edge)")
    parser.add_argument("--model", type=Path, help="a float32 model; default: ResNet-50 with random weights")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, the fastest counts (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(CHILDREN[options.child](options)))
        return 0
    with tempfile.TemporaryDirectory(prefix="npusim-bench-") as directory:
        options.directory = Path(directory)
        options.model = options.model or _resnet50(options.directory)
        rows = measure(options)
    print(table(rows))
    if options.json:
        report = {"machine": machine(), "config": options.config, "figures": [{**asdict(r), "ok": r.ok} for r in rows]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(not all(row.ok for row in rows))


def measure(options: argparse.Namespace) -> list[Row]:
    """All figures, each from fresh processes."""
    cold = min((_timing_in(f"cache{index}", options, False) for index in range(options.rounds)), key=_seconds)
    warm = min((_timing_in("cache0", options, True) for _ in range(options.rounds)), key=_seconds)
    speed = _child("speed", options)
    memory = _child("memory", options)
    weights = memory["weights"] / MIB
    return [
        Row("timing only, from the ONNX file", cold["seconds"], "s", 3.0),
        Row("timing only, from the cache", warm["seconds"], "s", 0.5),
        Row(
            "the same as a command, from the cache",
            min(_command(options, _run_arguments(options)) for _ in range(options.rounds)),
            "s",
        ),
        Row("onnxruntime, float32, one thread", speed["onnxruntime"], "s"),
        Row("with arithmetic, program loaded", speed["npusim"], "s"),
        Row("with arithmetic / onnxruntime", speed["npusim"] / speed["onnxruntime"], "x", 8.0),
        Row("largest error / largest output", speed["error"], "", 1e-3),
        Row("compile and run, peak memory", memory["peak"] / MIB, "MiB", 2 * weights + 300),
        Row("weights", weights, "MiB"),
        Row("npusim --help", min(_command(options, ["--help"]) for _ in range(3)), "s", 0.3),
        Row("instructions", cold["instructions"], ""),
        Row("simulated time", cold["time_ps"] / 1e9, "ms"),
    ]


def table(rows: Sequence[Row]) -> str:
    """The figures with their limits as an aligned table."""
    lines = []
    for row in rows:
        limit = "" if row.limit is None else f"limit {row.limit:.4g} {row.unit}".rstrip()
        verdict = "" if row.limit is None else "ok" if row.ok else "MISSED"
        lines.append(f"{row.name:40} {row.value:12.4g} {row.unit:4} {limit:18} {verdict}".rstrip())
    return "\n".join(lines)


def machine() -> dict[str, str | int]:
    """The machine on which the figures were taken."""
    import onnxruntime

    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count() or 0,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _resnet50(directory: Path) -> Path:
    import onnx

    from tests.support.onnx_models import light

    path = directory / "resnet50.onnx"
    onnx.save(light.randomised("resnet50", 1), path)
    return path


def _child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one measurement in a fresh process and return its result."""
    command = [sys.executable, "-m", "bench.run_models", "--child", name, "--config", options.config]
    command += ["--model", str(options.model), "--cache", str(options.cache), "--rounds", str(options.rounds)]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"measurement {name!r} ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _timing_in(cache: str, options: argparse.Namespace, from_cache: bool) -> dict[str, Any]:
    """A timing-only run with its own cache directory. ``from_cache``: whether the program must be in the cache."""
    options.cache = options.directory / cache
    found = _child("timing", options)
    if found["from_cache"] != from_cache:
        raise SystemExit(f"a timing-only run must {'' if from_cache else 'not '}find its program in {options.cache}")
    return found


def _seconds(found: dict[str, Any]) -> float:
    return float(found["seconds"])


def _command(options: argparse.Namespace, arguments: Sequence[str]) -> float:
    """Seconds of a command, including the start of Python."""
    command = [sys.executable, "-m", "npusim", *arguments]
    start = time.perf_counter()
    subprocess.run(
        command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.DEVNULL, check=True, cwd=options.directory
    )
    return time.perf_counter() - start


def _run_arguments(options: argparse.Namespace) -> list[str]:
    cache = ["--cache-dir", str(options.cache)]
    return ["run", str(options.model.resolve()), "--config", options.config, "--timing-only", *cache]


def _timing(options: argparse.Namespace) -> dict[str, Any]:
    """Compile (or find in the cache) and run without arithmetic, once, in a fresh process."""
    import npusim

    start = time.perf_counter()
    session = npusim.Session(npusim.load_config(options.config), cache_dir=options.cache)
    result = session.run(session.compile(options.model), timing_only=True)
    seconds = time.perf_counter() - start
    counters = result.counters
    return {
        "seconds": seconds,
        "from_cache": result.compile_from_cache,
        "instructions": counters.instructions,
        "time_ps": result.time_ps,
    }


def _speed(options: argparse.Namespace) -> dict[str, Any]:
    """onnxruntime and npusim alternately, both warm, on the same inputs. Outputs are compared."""
    import onnx

    import npusim
    from tests.support.onnx_models import oracle

    inputs = oracle.random_inputs(onnx.load(options.model), 1)
    judge = oracle.runtime_session(str(options.model))
    session = npusim.Session(npusim.load_config(options.config), cache_dir=options.cache)
    program = session.compile(options.model)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(options.rounds + 1):
        expected = _timed(theirs, lambda: judge.run(None, inputs))
        result = _timed(ours, lambda: session.run(program, inputs))
    names = [output.name for output in judge.get_outputs()]
    errors = [oracle.relative_error(result.outputs[name], array) for name, array in zip(names, expected, strict=True)]
    return {"onnxruntime": min(theirs[1:]), "npusim": min(ours[1:]), "error": max(errors)}


def _timed(times: list[float], work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = work()
    times.append(time.perf_counter() - start)
    return result


def _memory(options: argparse.Namespace) -> dict[str, Any]:
    """Peak resident bytes of a process that compiles from the file and runs with arithmetic, once."""
    import npusim

    session = npusim.Session(npusim.load_config(options.config), cache_dir=False)
    program = session.compile(options.model)
    rng = np.random.default_rng(1)
    session.run(program, {b.name: rng.standard_normal(b.shape, np.float32) for b in program.inputs})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak": peak, "weights": options.model.stat().st_size}


CHILDREN: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "timing": _timing,
    "speed": _speed,
    "memory": _memory,
}

if __name__ == "__main__":
    sys.exit(main())
