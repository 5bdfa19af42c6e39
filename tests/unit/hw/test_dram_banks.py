"""The bank model compared with hand-computed timings, and laws of any controller."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.hw.dram import _dram
from npusim.hw.dram._memory import COPY, READS, WRITES, DramMemory
from npusim.hw.dram_parts import PARTS

DDR4 = PARTS["DDR4_3200AA"]
WINDOW = DramMemory(DDR4, mapping="rorachbabgco", bank_queue=0, refresh=False)
ROW, BANK, GROUP = 8192 * 16, 8192 * 4, 8192  # bytes from one to the next, in the mapping of WINDOW


def serve(memory, *addresses, outstanding=64, write=()):
    requests = np.array([address * 2 + (place in write) for place, address in enumerate(addresses)], np.int64)
    return memory.serve(requests, outstanding)


def test_one_read_of_a_closed_bank():
    result = serve(WINDOW, 0)
    assert result.cycles == DDR4.rcd_rd + DDR4.cl + DDR4.burst_clocks == 22 + 22 + 4
    assert (result.reads, result.hits, result.misses, result.conflicts) == (1, 0, 1, 0)
    assert result.latency == result.cycles


def test_a_bank_queue_costs_a_clock():
    assert serve(replace(WINDOW, bank_queue=8), 0).cycles == 22 + 22 + 4 + 1


def test_hits_in_one_bank_group_follow_at_the_long_distance():
    assert serve(WINDOW, 0, 64, 128).cycles == 22 + 2 * DDR4.ccd_l + 22 + 4


def test_two_bank_groups_fill_the_bus():
    # Both rows open after tRRD_S = 4; from then on the groups alternate at tCCD_S = 4, the length of a burst.
    addresses = [group * GROUP + column * 64 for column in range(8) for group in range(2)]
    result = serve(WINDOW, *addresses)
    assert result.cycles == 22 + 15 * 4 + 22 + 4
    assert (result.hits, result.misses) == (14, 2)


def test_a_conflict_waits_for_the_row_to_close():
    # Activate at 0, tRAS = 52 until the row may close, tRP + tRCD + CL + burst for the second row.
    assert serve(WINDOW, 0, ROW).cycles == 52 + 22 + 22 + 22 + 4
    assert serve(WINDOW, 0, ROW).conflicts == 1


def test_activations_of_one_bank_are_a_row_cycle_apart():
    result = serve(WINDOW, *[row * ROW for row in range(5)])
    assert result.cycles == 4 * DDR4.rc + 22 + 22 + 4


def test_no_more_than_four_activations_in_a_window():
    # Five bank groups' worth: at 0, 4, 8, 12, then tFAW = 34 after the first.
    slow = replace(WINDOW, part=replace(DDR4, faw=100))
    banks = [group * GROUP for group in range(4)] + [BANK]
    assert serve(slow, *banks).cycles == 100 + 22 + 22 + 4
    assert serve(replace(slow, part=replace(DDR4, faw=1)), *banks).cycles < 100


def test_writes_wait_for_the_bus_to_turn_and_reads_for_the_write():
    part = DDR4
    turn = part.cl + part.burst_clocks + 2 - part.cwl
    assert serve(WINDOW, 0, 64, write={1}).cycles == 22 + turn + part.cwl + part.burst_clocks
    # A write alone: row, write latency, data.
    assert serve(WINDOW, 0, write={0}).cycles == part.rcd_wr + part.cwl + part.burst_clocks


def test_a_read_after_a_write_of_the_same_group_waits_longest():
    # Window 1 + 1: the write is issued before the read is chosen, because the write queue is full.
    memory = replace(WINDOW, write_queue=1)
    part = DDR4
    assert memory.parameters()["write_high"] == 1
    same = serve(memory, 0, 64, write={0}).cycles
    other = serve(memory, 0, GROUP, write={0}).cycles
    assert same == 22 + part.cwl + part.burst_clocks + part.wtr_l + part.cl + part.burst_clocks
    assert other == same - part.wtr_l + part.wtr_s


def test_ranks_share_the_bus_and_pseudo_channels_do_not():
    two = replace(WINDOW, ranks=2, mapping="rochbabgcora")
    alternate = [column * 64 for column in range(16)]
    assert serve(two, *alternate).cycles == 22 + 1 + 15 * (4 + 1) + 22 + 4 - 1  # the second activation is a clock later
    wide = DramMemory(PARTS["HBM2_2000Mbps"], mapping="rochbabgcora", bank_queue=0, refresh=False)
    narrow = serve(wide, *[column * 64 for column in range(32)])  # one row of one pseudo channel
    assert narrow.cycles == 14 + 31 * 4 + 14 + 2
    both = serve(wide, *[column * 32 for column in range(64)])
    assert both.cycles == narrow.cycles + 2  # the second activation waits until the first has left the command bus


def test_one_read_at_a_time_is_its_latency():
    memory = replace(WINDOW, turn=100)
    result = serve(memory, *[column * 64 for column in range(10)], outstanding=1)
    assert result.cycles == 22 + 10 * (22 + 4) + 9 * 100


def test_refresh_takes_its_share():
    memory = replace(WINDOW, refresh=True, mapping="rocorachbabg")
    requests = np.arange(20_000, dtype=np.int64) * 128
    with_it, without = memory.serve(requests, 64), replace(memory, refresh=False).serve(requests, 64)
    assert with_it.refreshes == with_it.cycles // DDR4.refi
    lost = with_it.cycles - without.cycles
    assert lost == pytest.approx(with_it.refreshes * (DDR4.rfc + DDR4.rp + DDR4.rcd_rd), rel=0.1)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_the_share_of_refresh_in_a_transfer_is_that_of_its_events(name):
    memory = DramMemory(PARTS[name], ranks=1 if PARTS[name].pseudo > 1 else 2, shared=True)
    count = 12 * memory.part.refi // memory.part.burst_clocks
    events = memory.serve(np.arange(count, dtype=np.int64) * (2 * memory.part.burst_bytes), 1 << 20)
    assert memory.transfer(1, count, count, READS, 1 << 20).cycles == pytest.approx(events.cycles, rel=0.02)


BY_BANK = sorted(name for name, part in PARTS.items() if part.rfc_set)


@pytest.mark.parametrize("bank_queue", [0, 8])
@pytest.mark.parametrize("name", BY_BANK)
def test_a_bank_waits_for_its_own_refreshes_alone(name, bank_queue):
    """A row that is always hit: its bank is closed and refreshed once in as many refreshes as there are sets."""
    part = PARTS[name]
    memory = DramMemory(part, mapping="rorabgbacoch", bank_queue=bank_queue, by_bank=True)
    count, columns = 40 * part.refi // part.ccd_l, part.row_bytes // part.burst_bytes
    requests = np.arange(count, dtype=np.int64) % columns * 2 * part.burst_bytes
    with_it, without = memory.serve(requests, 64), replace(memory, refresh=False).serve(requests, 64)
    assert with_it.cycles // (part.refi // 8) - with_it.refreshes in (0, 1)  # the last is due after the last command
    own = with_it.misses - 1
    assert own - with_it.refreshes // part.refresh_sets in (0, 1)
    lost = with_it.cycles - without.cycles
    assert lost == pytest.approx(own * (part.rfc_set + part.rp + part.rcd_rd), rel=0.15)


@pytest.mark.parametrize("name", BY_BANK)
def test_banks_in_turn_lose_no_more_than_all_at_once(name):
    memory = DramMemory(PARTS[name], shared=True)
    by_bank = replace(memory, by_bank=True)
    assert memory.sustained < by_bank.sustained < replace(memory, refresh=False).sustained
    count = 12 * memory.part.refi // memory.part.burst_clocks
    requests = np.arange(count, dtype=np.int64) * (2 * memory.part.burst_bytes)
    events = by_bank.serve(requests, 1 << 20)
    assert replace(by_bank, refresh=False).serve(requests, 1 << 20).cycles < events.cycles
    assert events.cycles < memory.serve(requests, 1 << 20).cycles
    assert by_bank.transfer(1, count, count, READS, 1 << 20).cycles == pytest.approx(events.cycles, rel=0.02)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_every_part_reaches_what_refresh_leaves(name):
    memory = DramMemory(PARTS[name])
    result = memory.transfer(1, 1 << 16, 1 << 16, READS, 1 << 20)
    assert 0.93 * memory.sustained <= memory.bandwidth_of(result) <= memory.sustained


MEMORIES = st.builds(
    DramMemory,
    part=st.sampled_from([PARTS[name] for name in ("DDR4_3200AA", "LPDDR5_6400", "HBM2_2000Mbps", "HBM2_8Gb_x128")]),
    channels=st.sampled_from([1, 2, 4]),
    mapping=st.sampled_from(["rocorababgch", "rochrababgco", "rorabgbachco", "rochracobabg"]),
    bank_queue=st.sampled_from([0, 2, 8]),
    read_queue=st.sampled_from([4, 32]),
    write_queue=st.sampled_from([4, 32]),
    turn=st.sampled_from([0, 40]),
)
TRANSFERS = st.tuples(
    st.integers(1, 600), st.integers(1, 40), st.integers(0, 200), st.sampled_from([READS, WRITES, COPY])
)


@given(MEMORIES, TRANSFERS, st.sampled_from([1, 7, 64, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_the_shortcut_changes_no_number(memory, transfer, outstanding):
    runs, run, gap, mode = transfer
    quick = memory.transfer(runs, run, run + gap, mode, outstanding)
    slow = memory.transfer(runs, run, run + gap, mode, outstanding, fast=False)
    assert slow.skipped == 0
    assert replace(quick, skipped=0) == slow


@pytest.mark.parametrize("mode", [READS, WRITES])
@pytest.mark.parametrize("bank_queue", [0, 8])
def test_the_shortcut_is_taken_by_streams(mode, bank_queue):
    memory = DramMemory(DDR4, bank_queue=bank_queue)
    quick = memory.transfer(1, 100_000, 100_000, mode, 64)
    slow = memory.transfer(1, 100_000, 100_000, mode, 64, fast=False)
    assert quick.skipped > 40_000
    assert replace(quick, skipped=0) == slow


@given(MEMORIES, st.lists(st.integers(0, 1 << 22), min_size=1, max_size=300), st.integers(1, 64), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_burst_is_served_once_and_none_before_its_time(memory, places, outstanding, refresh):
    memory = replace(memory, refresh=refresh)
    requests = np.array(places, np.int64) * 2 * memory.part.burst_bytes // 2 * 2 + np.array(places, np.int64) % 2
    result = memory.serve(requests, outstanding)
    assert result.reads + result.writes == len(places) == result.hits + result.misses + result.conflicts
    assert result.writes == sum(place % 2 for place in places)
    units = memory.channels * memory.part.pseudo
    assert result.cycles * units >= len(places) * memory.part.burst_clocks
    assert result.latency >= result.reads * (memory.part.cl + memory.part.burst_clocks)
    assert result == memory.serve(requests, outstanding)


@given(MEMORIES, st.integers(1, 400), st.integers(1, 64))
@settings(max_examples=30, deadline=None)
def test_a_longer_stream_never_ends_sooner(memory, bursts, outstanding):
    first = memory.transfer(1, bursts, bursts, READS, outstanding)
    assert memory.transfer(1, bursts + 1, bursts + 1, READS, outstanding).cycles >= first.cycles


def test_descriptions_that_cannot_be():
    good = WINDOW.parameters()
    empty = np.zeros(0, np.int64)

    for name, value, message in (
        ("cl", -1, "cl: must be >= 0, got -1"),
        ("channels", 0, "channels: must be >= 1, got 0"),
        ("write_high", 33, "write_high: must be <= write_queue = 32, got 33"),
        ("ch_bits", 1, "ch_bits: must be log2 of channels"),
        ("cl", 1 << 24, "cl [+] burst [+] turn: must be < 16777216"),
    ):
        with pytest.raises(ValueError, match=message):
            _dram.serve(good | {name: value}, empty, 6, 1, 0, empty, 0)
    with pytest.raises(ValueError, match="a memory has no cas, crp"):
        _dram.serve(good | {"crp": 1, "cas": 1}, empty, 6, 1, 0, empty, 0)
    for name in good:
        with pytest.raises(ValueError, match=f"'{name}'"):
            _dram.serve({key: value for key, value in good.items() if key != name}, empty, 6, 1, 0, empty, 0)
    with pytest.raises(ValueError, match="outstanding: must be >= 1, got 0"):
        _dram.serve(good, empty, 6, 0, 0, empty, 0)
    with pytest.raises(ValueError, match="addresses must be >= 0, got -3 at position 1"):
        _dram.serve(good, np.array([0, -6], np.int64), 6, 1, 0, empty, 0)
    with pytest.raises(ValueError, match="base, other, stride: must be >= 0, got 0, 0, -1"):
        _dram.serve_runs(good, 0, 0, 2, 1, -1, 0, 1, True)
    with pytest.raises(ValueError, match="runs, run, mode"):
        _dram.serve_runs(good, 0, 0, 1, 0, 1, 0, 1, True)


def test_nothing_to_do_takes_no_time():
    assert WINDOW.serve(np.zeros(0, np.int64), 1).cycles == 0
    assert WINDOW.transfer(0, 1, 1, READS, 1).cycles == 0
