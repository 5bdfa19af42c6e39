"""Rows of whole chips are replayed, or refused with a reason."""

from dataclasses import replace
from statistics import fmean
from unittest import mock

import pytest

from npusim.hw.config import load_config
from npusim.validate import end_to_end, layers_and_tokens
from npusim.validate.base import DataPoint, Excluded, chosen_keys, read
from npusim.validate.end_to_end import networks
from npusim.validate.networks.language import DECODERS, decoder
from npusim.validate.replay import carried_folder

FILE = carried_folder() / "end_to_end.csv"


def test_rows_are_replayed_or_refused_with_a_reason():
    wanted = ("NVDLA 512", "STM32", "Google TPU v1", "Arm Ethos")
    records = [record for record in read(FILE) if record.text("machine").startswith(wanted)]
    found = list(networks(records, FILE.parent))
    assert len(found) == len(records)
    points = {row.label.partition(": ")[2]: row for row in found if isinstance(row, DataPoint)}
    assert all(row.reason for row in found if isinstance(row, Excluded))
    assert {"ResNet-50", "MobileNetV2 1.0"} <= set(points)
    assert points["ResNet-50"].measured == pytest.approx(1e6 / 93)  # frames a second as microseconds
    assert points["MobileNetV2 1.0"].measured == pytest.approx(7346172 / 500)  # cycles of 500 MHz
    for row in points.values():
        assert abs(row.predicted / row.measured - 1) < 0.2


def test_every_machine_of_the_rows_is_known():
    """A typo in a name would leave rows out with a plausible reason."""
    machines = {record.text("machine") for record in read(FILE)}
    assert machines <= end_to_end._CHIPS.keys() | end_to_end._NOT_PUBLISHED.keys()
    assert len(machines & end_to_end._CHIPS.keys()) >= 8


def errors(chip):
    """Return the relative error of every replayed row of a chip by network."""
    records = [record for record in read(FILE) if record.text("machine").startswith(chip)]
    rows = [row for row in networks(records, FILE.parent) if isinstance(row, DataPoint)]
    return {row.label.partition(": ")[2].partition(" (")[0]: row.predicted / row.measured - 1 for row in rows}


def mean(found, names):
    return fmean(abs(found[name]) for name in names)


@pytest.mark.slow
def test_the_edge_tpu_with_networks_that_fit_and_with_those_that_do_not():
    found = errors("Google Edge TPU")
    fit = ["MobileNet v1", "MobileNet v1 SSD", "Inception v1"]
    assert mean(found, fit) < 0.15
    assert mean(found, set(found) - set(fit)) < 0.15
    # Our plans leave less undone than those of the chip's compiler: DenseNet's, of which the graph is a guess, most.
    assert max(abs(error) for name, error in found.items() if name != "DenseNet") < 0.2
    assert -0.3 < found["DenseNet"] < 0


@pytest.mark.slow
def test_small_networks_on_the_ethos_u55_and_detectors_on_the_rk3588():
    small = errors("Arm Ethos")
    assert len(small) == 5
    # Each of its small layers loads a table, because functions of 8-bit values always are tables here.
    assert 0 < small.pop("RNNoise") < 0.16
    assert max(map(abs, small.values())) < 0.1
    detectors = errors("Rockchip RK3588")
    assert len(detectors) == 12
    assert mean(detectors, detectors) < 0.07
    assert max(map(abs, detectors.values())) < 0.2


def later(label):
    """Return the relative errors of rows of layers and language models whose label contains a text."""
    records = read(FILE.with_name("end_to_end_2.csv"))
    found = list(layers_and_tokens.rows([r for r in records if label(r)], FILE.parent))
    assert all(isinstance(row, DataPoint) for row in found)
    return [row.predicted / row.measured - 1 for row in found]


def test_convolutions_on_the_k210():
    found = later(lambda record: record.text("chip").startswith("Kendryte"))
    assert len(found) == 5
    assert fmean(map(abs, found)) < 0.12


def test_tokens_of_a_language_model_on_the_rk3588():
    found = later(lambda record: record.text("network") == "Qwen2-0.5B" and record.text("metric") == "decode")
    assert len(found) == 1
    assert abs(found[0]) < 0.15


@pytest.mark.slow
def test_equal_layers_of_a_decoder_take_equal_times():
    sizes = replace(DECODERS["qwen2-0.5b"], layers=6)
    with mock.patch.dict(DECODERS, short=sizes):
        shown = layers_and_tokens._tokens(load_config("rk3588"), "short", 1, 40)
    whole = layers_and_tokens._milliseconds(load_config("rk3588"), decoder(sizes, 1, 40))
    assert shown == pytest.approx(whole, rel=0.002)


def test_chosen_keys_are_counted(tmp_path):
    base, heir = tmp_path / "base.toml", tmp_path / "heir.toml"
    base.write_text(
        'inherit = "scalesim"\ncores = 2  # chosen\n[sram]  # chosen\nbanks = 8\nlatency_cycles = 2  # a source\n'
    )
    heir.write_text('inherit = "base.toml"\ncores = 1  # a source\n')
    assert chosen_keys("scalesim") == 0  # its values are those of the tool
    assert chosen_keys(str(base)) == 2  # cores, sram.banks
    assert chosen_keys(str(heir)) == 1  # the heir has a source for its cores
    assert chosen_keys("k210") > 0


def test_boxes_are_decoded_by_the_host_of_the_edge_tpu_alone():
    [row] = [
        row
        for row in networks([r for r in read(FILE) if r.text("network") == "MobileNet v1 SSD"], FILE.parent)
        if isinstance(row, DataPoint)
    ]
    assert "5.2 ms that decoding boxes takes on its host" in row.label
