"""Networks as files of a quantiser, compared with the graphs of which they are made, and with onnxruntime."""

import sys
from random import Random

import numpy as np
import pytest

from npusim.hw.config import load_config
from npusim.runtime import Session
from npusim.validate import end_to_end
from npusim.validate.base import Excluded, read
from npusim.validate.end_to_end import networks
from npusim.validate.networks import NETWORKS
from npusim.validate.networks.files import QdqExport
from npusim.validate.replay import carried_folder
from tests.support.laws.quantised import network
from tests.support.onnx_models.oracle import graph_inputs, runtime_outputs

FILE = carried_folder() / "end_to_end.csv"

# Functions of 8-bit values are tables in the file, which are loaded from flash, one for each of its 14 small layers.
WITH_TABLES = {"rnnoise": 1.08}


@pytest.mark.parametrize("seed", [3, 4, 6])
def test_a_file_computes_what_onnxruntime_does(seed):
    file = QdqExport(network(Random(seed))).model()
    ((name, (_, shape)),) = graph_inputs(file).items()
    x = {name: np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)}
    with Session(load_config("mobile"), cache_dir=False) as session:
        (ours,) = session.run(file, x).outputs.values()
    (wanted,) = runtime_outputs(file, x, optimise=False).values()
    assert len(np.unique(ours)) > 50
    # A function whose value is between two steps may be rounded to either, which later layers multiply.
    assert np.count_nonzero(ours != wanted) <= ours.size / 1000


def times(chip, name, shape):
    """Return time and DRAM traffic of the graph and of its file."""
    found = []
    for source in (NETWORKS[name].make(shape), NETWORKS[name].file(shape)):
        with Session(load_config(chip), cache_dir=False) as session:
            result = session.run(session.compile(source, timing_only=True), timing_only=True)
        counters = result.timeline.counters
        found.append((result.time_ps, counters.dram_read_bytes + counters.dram_write_bytes))
    return found


def check(chip, name, shape):
    (graph_ps, graph_bytes), (file_ps, file_bytes) = times(chip, name, shape)
    assert file_ps <= WITH_TABLES.get(name, 1.031) * graph_ps, (chip, name)
    assert file_bytes <= WITH_TABLES.get(name, 1.02) * graph_bytes, (chip, name)


@pytest.mark.parametrize("name", ["mobilenet_v2", "yolov8n"])
def test_a_file_takes_the_time_of_its_graph(name):
    check("rk3588_core", name, (1, 64, 64, 3))


@pytest.mark.slow
def test_the_file_of_each_row_takes_the_time_of_its_graph():
    rows = set()
    for row in read(FILE):
        chip, name = end_to_end._CHIPS.get(row.text("machine")), row.text("network").lower()
        name = end_to_end._NAMES.get(name, name.replace("-", "_").replace(" ", "_"))
        shape = end_to_end._shape(row.text("input shape"))
        if chip is not None and name in NETWORKS and shape is not None:
            rows.add((chip.config, name, end_to_end._INPUTS.get(name, shape)))
    assert len(rows) > 25
    for row in sorted(rows):
        check(*row)


def test_without_the_onnx_package_rows_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    rows = [row for row in read(FILE) if row.text("machine").startswith("NVDLA")]
    found = list(networks(rows, FILE.parent))
    assert len(found) == 4
    assert all(isinstance(row, Excluded) and "needs the onnx package" in row.reason for row in found)
