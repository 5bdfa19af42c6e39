"""The cost on the host of a run of a tiny graph through the C library, and of a query: ``python -m bench.onnxifi``.

Measures host time, not simulated time. The graph (Relu of four numbers) is bound once. The table shows the best and the
median batch in real time and CPU time for each way to run it, then the same without the library: through the executor,
and through the driver without threads. Last, the time of onnxGetBackendCompatibility for a model of one convolution.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from hal import abi
from hal.onnxifi import engine
from npusim.compiler.pipeline import compile_graph
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.frontends.onnx import load
from npusim.hw.config import load_config
from npusim.program import Program
from npusim.runtime import Executor, Request

CONFIG = "edge"
INPUT = np.array([1, 2, 3, 4], np.float32)
CLIENT = Path(__file__).with_name("onnxifi_client.c")
WAYS = {"async": "runs handed over, then waited for", "fence": "each with an input event of its own",
        "sync": "each run waited for"}  # fmt: skip
Sample = tuple[float, float]
"""Microseconds per run: real time, CPU time."""


def tiny_model() -> bytes:
    """y = Relu(x) for four numbers."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", value[:1], value[1:])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()


def build_client(folder: Path) -> Path:
    """Build the C client, linked with the installed library."""
    library, target = abi.LIBRARIES[0], folder / "client"
    flags = [*library.cflags.split(), str(CLIENT), "-o", str(target), *library.ldflags.split()]
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", *flags], check=True)
    return target


def measure_library(client: Path, model: Path, way: str, runs: int, batches: int) -> list[Sample]:
    """Run the client in a minimal environment and return its samples."""
    command = [str(client), str(model), way, str(runs), str(batches)]
    environment = {"NPUSIM_ONNXIFI_BACKENDS": CONFIG}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return [(float(real), float(cpu)) for real, cpu in (line.split() for line in done.stdout.splitlines())]


def measure_python(batch: Callable[[int], None], runs: int, batches: int) -> list[Sample]:
    """Time batches in this process."""
    samples = []
    batch(runs)
    for _ in range(batches):
        real, cpu = time.perf_counter(), time.process_time()
        batch(runs)
        samples.append(((time.perf_counter() - real) / runs * 1e6, (time.process_time() - cpu) / runs * 1e6))
    return samples


def measure_executor(program: Program, runs: int, batches: int) -> list[Sample]:
    """Time batches of an executor."""
    with Executor(CONFIG) as executor:
        request = Request(program, {"x": INPUT})

        def batch(count: int) -> None:
            for ticket in [executor.submit(request) for _ in range(count)]:
                ticket.wait()

        return measure_python(batch, runs, batches)


def measure_driver(program: Program, runs: int, batches: int) -> list[Sample]:
    """Time batches of the driver."""
    device = NpuDevice(load_config(CONFIG))
    driver = Driver(device.bus)
    loaded = driver.load(program)

    def batch(count: int) -> None:
        for _ in range(count):
            driver.run(loaded, {"x": INPUT})

    return measure_python(batch, runs, batches)


def convolution() -> bytes:
    """A model of one convolution with equal numbers of input and output channels."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64, 56, 56]) for name in "xy"]
    weights = helper.make_tensor_value_info("w", TensorProto.FLOAT, [64, 64, 3, 3])
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "one", [value[0], weights], value[1:])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()


def measure_compatibility(questions: int, batches: int) -> list[Sample]:
    """Time compatibility queries."""
    model = convolution()

    def batch(count: int) -> None:
        for _ in range(count):
            engine.compatibility(0, model)

    return measure_python(batch, questions, batches)


def line(name: str, samples: list[Sample]) -> str:
    """A line of the table."""
    real, cpu = ([sample[column] for sample in samples] for column in (0, 1))
    values = (min(real), statistics.median(real), min(cpu), statistics.median(cpu))
    return f"{name:<44}" + "".join(f"{value:>10.1f}" for value in values)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=200, help="runs in a batch, at most 256: more do not wait at once")
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    runs, batches = options.runs, options.batches
    print(f"{'us per run, ' + CONFIG:<44}{'best':>10}{'median':>10}{'best CPU':>10}{'med. CPU':>10}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "tiny.onnx")
        model.write_bytes(tiny_model())
        client = build_client(Path(folder))
        for way, what in WAYS.items():
            print(line(f"C library, {way}: {what}", measure_library(client, model, way, runs, batches)))
        program = compile_graph(load(model), load_config(CONFIG))
    print(line("executor: submit all, wait for all", measure_executor(program, runs, batches)))
    print(line("driver and device, no threads", measure_driver(program, runs, batches)))
    print(line("compatibility of one convolution", measure_compatibility(runs, batches)))


if __name__ == "__main__":
    main()
