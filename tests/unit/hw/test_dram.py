"""DRAM kind jedec: its keys, the cost of transfers by access pattern, and the parts."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import ConfigError
from npusim.explore import make_space
from npusim.explore.workloads import Workload
from npusim.hw.capability import capabilities
from npusim.hw.config import load_config
from npusim.hw.cost import cost
from npusim.hw.dram.jedec import EXACT, JedecDram
from npusim.hw.dram_parts import PARTS
from npusim.hw.keys import unused
from npusim.hw.kinds import dram_kinds
from npusim.hw.memory import dram_model
from npusim.work import DmaWork

FIXED = load_config("edge")
KEYS = {
    "dram.kind": "jedec",
    "dram.part": "LPDDR4_4266",
    "dram.channels": 2,
    "dram.efficiency": 1,
    "dram.latency": "40 ns",
}
EDGE = FIXED.with_(**KEYS)


def read(size, runs=1, stride=0):
    return DmaWork(size, runs, size // runs, size, 0, stride)


def write(size, runs=1, stride=0):
    return DmaWork(size, runs, size // runs, 0, size, stride)


def test_the_kinds_are_the_public_modules():
    assert dram_kinds() == ("fixed", "jedec")


@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
def test_a_part_is_plausible(part):
    assert part.source
    for power in (part.bits, part.burst_length, part.groups, part.banks, part.rows, part.row_bytes, part.pseudo):
        assert power > 0
        assert power & (power - 1) == 0
    assert part.ras <= part.rc <= part.ras + part.rp + 1  # each rounded up by itself
    assert part.rrd_s <= part.rrd_l
    assert part.faw >= part.rrd_s
    assert part.ccd_s <= part.ccd_l
    assert part.wtr_s <= part.wtr_l
    assert part.rfc + part.rp + part.rcd_rd < part.refi
    assert 7 <= part.cl * part.tck_ps / 1000 <= 25  # ns: hardly changed in thirty years
    peak = part.pseudo * part.rate * 10**6 * part.bits // 8
    assert part.bandwidth == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dram.part": "none"}, 'dram.part: must be given with kind = "jedec": one of DDR4_8Gb_x8_3200, '),
        ({"dram.part": "DDR9"}, "dram.part: must be one of none, DDR4_8Gb_x8_3200, "),
        ({"dram.kind": "fixed"}, "dram.part: must be none with kind = \"fixed\", got 'LPDDR4_4266'"),
        ({"dram.mapping": "rocoraba"}, "dram.mapping: must name each of ro, ra, bg, ba, ch, co once, got 'rocoraba'"),
        ({"dram.mapping": "corobabgrach"}, "dram.mapping: must begin with ro, the highest bits, got 'corobabgrach'"),
        ({"dram.channels": 3}, 'dram.channels: must be a power of two with kind = "jedec", got 3'),
        (
            {"dram.efficiency": "1/2"},
            'dram.efficiency: must be 1 with kind = "jedec", which models the loss, got 1/2',
        ),
        (
            {"dram.bandwidth": "20 GB/s"},
            "dram.bandwidth: must be the bandwidth of 2 x LPDDR4_4266 = 17057569.296 kB/s within",
        ),
        ({"dram.bytes": "8 GiB"}, "dram.bytes: must be <= the capacity of the parts = 4 GiB, got 8 GiB"),
        ({"dram.ranks": 3}, "dram.ranks: must be a power of two, got 3"),
        ({"dram.read_queue": 0}, "dram.read_queue: must be >= 1, got 0"),
        (
            {"dram.part": "HBM2_2000Mbps", "dram.channels": 1, "dram.bandwidth": "32 GB/s", "dram.ranks": 2},
            "dram.ranks: must be 1: a channel of HBM2_2000Mbps is 2 pseudo channels, got 2",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        FIXED.with_(**{**KEYS, **changes})


OTHERS = {
    "part": '"LPDDR4_4266"',
    "ranks": "2",
    "mapping": '"rorabacobgch"',
    "read_queue": "31",
    "write_queue": "31",
    "bank_queue": "0",
    "refresh": "false",
    "bank_refresh": "true",
}
"""Keys that only the kind jedec uses, with a value other than the default."""


def description(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_the_keys_of_another_kind_follow_from_the_section():
    assert {entry.name for _, entry, _ in unused(FIXED.dram)} == set(OTHERS)
    assert unused(EDGE.dram) == ()


@pytest.mark.parametrize(("key", "value"), OTHERS.items())
@pytest.mark.parametrize("kind", ["", 'kind = "fixed"\n'])
def test_a_file_that_sets_a_key_of_another_kind_is_refused(tmp_path, key, value, kind):
    base = description(tmp_path, "base.toml", f'inherit = "edge"\n[dram]\n{kind}')
    for path in (
        description(tmp_path, "own.toml", f'inherit = "edge"\n[dram]\n{kind}{key} = {value}\n'),
        description(tmp_path, "heir.toml", f'inherit = "{base}"\n[dram]\n{key} = {value}\n'),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        (problem,) = caught.value.problems
        assert problem.startswith(f"{path}: dram.{key}: must be ")
        assert 'with kind = "fixed", got ' in problem
    # What a third file inherits is still wrong in the second.
    third = description(tmp_path, "third.toml", f'inherit = "{tmp_path / "heir.toml"}"\n')
    with pytest.raises(ConfigError, match=rf"heir\.toml: dram\.{key}: must be "):
        load_config(third)
    default = next(d for field, entry, d in unused(FIXED.dram) if entry.name == key)
    text = next(entry for _, entry, _ in unused(FIXED.dram) if entry.name == key).kind.text(default)
    plain = load_config(description(tmp_path, "plain.toml", f'inherit = "edge"\n[dram]\n{key} = {text}\n'))
    assert plain.fingerprint() == FIXED.fingerprint()


def test_a_file_may_choose_another_kind_than_the_one_it_inherits(tmp_path):
    rows = "\n".join(f"{key} = {value}" for key, value in OTHERS.items() if key != "bank_refresh")
    keys = "kind = 'jedec'\nchannels = 2\nefficiency = 1\n"
    parent = description(tmp_path, "parent.toml", f'inherit = "edge"\n[dram]\n{keys}{rows}\n')
    jedec = load_config(parent)
    heir = load_config(
        description(tmp_path, "heir.toml", f'inherit = "{parent}"\n[dram]\nkind = "fixed"\npart = "none"\n')
    )
    back = load_config(
        description(
            tmp_path,
            "back.toml",
            f'inherit = "{tmp_path / "heir.toml"}"\n[dram]\nkind = "jedec"\npart = "LPDDR4_4266"\n',
        )
    )
    assert (heir.dram.ranks, back) == (2, dataclasses.replace(jedec, name="back"))
    shown = heir.to_toml()
    assert not any(re.search(rf"^{key} = ", shown, re.MULTILINE) for key in OTHERS)
    same = load_config(description(tmp_path, "shown.toml", shown))
    assert same.fingerprint() == heir.fingerprint() == heir.with_(**{"dram.ranks": 1}).fingerprint()
    assert cost(same, read(1 << 20)) == cost(heir, read(1 << 20))
    assert load_config(description(tmp_path, "jedec.toml", jedec.to_toml())) == jedec


def test_a_space_that_varies_the_kind_has_both(tmp_path):
    space = make_space(
        {
            "base": "edge",
            "set": {"dram.ranks": 2, "dram.efficiency": 1},
            "vary": {"dram.kind": ["fixed", "jedec"], "dram.part": ["none", "LPDDR4_4266"]},
        },
        given=[Workload("none")],
    )
    assert (space.config(0).dram.kind, space.config(3).dram.kind, space.config(3).dram.ranks) == ("fixed", "jedec", 2)
    written = load_config(description(tmp_path, "design.toml", space.config(0).to_toml()))
    assert written.fingerprint() == space.config(0).fingerprint()


def test_a_stream_reaches_the_bandwidth_and_nothing_passes_it():
    peaks = capabilities(EDGE)
    assert peaks.dram_bandwidth < peaks.dram_peak
    for size in (1 << 14, 1 << 20, 1 << 30):
        assert size * 10**12 <= peaks.dram_bandwidth * cost(EDGE, read(size)).ps
    assert cost(EDGE, read(1 << 24)).ps * peaks.dram_bandwidth < 1.02 * (1 << 24) * 10**12


def test_the_first_datum_takes_the_latencies():
    part, model = PARTS["LPDDR4_4266"], dram_model(EDGE)
    assert model.latency_ps == 40_000 + (part.rcd_rd + part.cl) * part.tck_ps
    one = cost(EDGE, read(64)).ps
    bursts = 2  # of 32 bytes, one in each channel
    outside = (16 + 2 + 8) * 1000  # set-up, SRAM and interconnect
    assert outside + model.latency_ps + part.burst_clocks * part.tck_ps <= one
    assert one <= outside + model.latency_ps + (bursts * part.burst_clocks + 2) * part.tck_ps * 1.2


def test_rows_of_one_bank_are_a_row_cycle_apart():
    part, model = PARTS["LPDDR4_4266"], JedecDram(EDGE)
    same_bank = part.row_bytes * part.banks * part.groups * 2  # bytes of one row of every bank of both channels
    found = cost(EDGE, read(64 * 512, 512, same_bank)).ps
    share = part.refi / (part.refi - model.memory.refresh_clocks)
    assert found == pytest.approx(511 * part.rc * part.tck_ps * share, rel=0.01)
    assert found > 10 * cost(EDGE, read(64 * 512)).ps


def test_waiting_is_not_charged_to_others():
    # With one burst on the way at a time a channel waits, and the DRAM is hardly busy.
    slow = EDGE.with_(**{"dma.max_outstanding": 1})
    work = read(1 << 16)
    model, quick = dram_model(slow), dram_model(EDGE)
    assert model.transfer_bytes(work) == quick.transfer_bytes(work)
    assert quick.waiting_ps(work, quick.bandwidth) < model.waiting_ps(work, model.bandwidth)
    assert cost(slow, work).ps > 8 * cost(EDGE, work).ps


def test_a_transfer_within_sram_is_nothing_to_the_dram():
    work = DmaWork(4096, 4, 1024, 0, 0)
    assert dram_model(EDGE).transfer_bytes(work) == dram_model(EDGE).waiting_ps(work, 1) == 0
    assert cost(EDGE, work) == cost(FIXED, work)


def test_short_runs_fill_whole_bursts():
    model = dram_model(EDGE)
    assert model.transfer_bytes(read(1024, 1024, 64)) == model.transfer_bytes(read(64 * 1024, 1024, 64))


@pytest.mark.parametrize("make", [read, write])
def test_a_long_pattern_goes_on_as_it_began(make):
    runs = EXACT // 8
    short, long = (cost(EDGE, make(1024 * n, n, 3072)).ps for n in (runs, 16 * runs))
    assert long == pytest.approx(16 * short, rel=0.03)


def test_copies_pay_for_turning_the_bus():
    both = cost(EDGE, DmaWork(1 << 20, 1, 1 << 20, 1 << 20, 1 << 20)).ps
    apart = cost(EDGE, read(1 << 20)).ps + cost(EDGE, write(1 << 20)).ps
    assert apart < 1.05 * both


@pytest.mark.parametrize(
    ("change", "slower"),
    [
        ({"dram.latency": "400 ns"}, True),
        ({"dram.refresh": False}, False),
        ({"dram.mapping": "rorababgchco"}, True),
        ({"dma.max_outstanding": 8}, True),
        ({"interconnect.latency_cycles": 100}, True),
    ],
)
def test_every_key_moves_a_number_in_its_direction(change, slower):
    works = [read(1 << 18), read(1 << 18, 1 << 10, 4096), write(1 << 16)]
    before, after = (sum(cost(config, work).ps for work in works) for config in (EDGE, EDGE.with_(**change)))
    assert after > before if slower else after < before


def test_banks_that_are_refreshed_in_turn_leave_more_of_a_stream():
    lpddr5 = EDGE.with_(
        **{"dram.part": "LPDDR5_6400", "dram.channels": 2, "dram.bandwidth": "25.6 GB/s", "dram.bytes": "2 GiB"}
    )
    by_bank = lpddr5.with_(**{"dram.bank_refresh": True})
    assert cost(lpddr5.with_(**{"dram.refresh": False}), read(1 << 20)).ps < cost(by_bank, read(1 << 20)).ps
    assert cost(by_bank, read(1 << 20)).ps < cost(lpddr5, read(1 << 20)).ps
    assert dram_model(by_bank).bandwidth > dram_model(lpddr5).bandwidth
    with pytest.raises(ConfigError, match=r"dram.bank_refresh: must be false for DDR4_3200AA.*known: LPDDR5_6400"):
        EDGE.with_(
            **{"dram.part": "DDR4_3200AA", "dram.bandwidth": "25.6 GB/s", "dram.channels": 1, "dram.bank_refresh": True}
        )


def test_queues_and_ranks_matter_where_banks_are_scarce():
    hard = read(1 << 18, 1 << 12, 1 << 14)
    base = cost(EDGE, hard).ps
    for change in ({"dram.ranks": 2}, {"dram.bank_queue": 0}):
        assert cost(EDGE.with_(**change), hard).ps != base
    window = EDGE.with_(**{"dram.bank_queue": 0})
    scattered = read(1 << 18, 1 << 12, 96)
    assert cost(window.with_(**{"dram.read_queue": 1}), scattered).ps > cost(window, scattered).ps
    both = DmaWork(1 << 16, 1, 1 << 16, 1 << 16, 1 << 16)
    assert cost(EDGE.with_(**{"dram.write_queue": 2}), both).ps > cost(EDGE, both).ps


@given(st.integers(1, 200), st.integers(1, 4096), st.integers(0, 1 << 16), st.sampled_from([read, write]))
@settings(max_examples=60, deadline=None)
def test_laws_of_any_transfer(runs, run_bytes, gap, make):
    work = make(runs * run_bytes, runs, run_bytes + gap)
    found = cost(EDGE, work)
    peaks = capabilities(EDGE)
    assert found.ps * peaks.dram_bandwidth >= work.bytes * 10**12
    more = cost(EDGE, dataclasses.replace(work, bytes=2 * work.bytes, reads=2 * work.reads, writes=2 * work.writes,
                                          runs=2 * runs))  # fmt: skip
    assert found.ps < more.ps <= 2.1 * found.ps
    assert cost(EDGE, work) == found
