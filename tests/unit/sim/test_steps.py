"""Steps: the simulator charges what the cost model says, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.hw.config import list_configs, load_config
from npusim.hw.cost import cost
from npusim.isa.base import Unit, Wait, region
from npusim.sim.fabric import Fabric
from npusim.sim.job import MachineJob
from npusim.sim.machine import Machine, Player
from npusim.sim.steps import HALT, CommandCost, InvalidProgramError, StepDecoder, UnitLayout
from npusim.work import DmaWork
from tests.support.programs.streams import Stream, add, copy, fill

CONFIGS = {name: load_config(name) for name in list_configs()}
DECODERS = {name: StepDecoder(config, UnitLayout(config), Fabric(config)) for name, config in CONFIGS.items()}
TINY = CONFIGS["tiny"]


@st.composite
def transfers(draw: st.DrawFn) -> DmaWork:
    runs, run_bytes = draw(st.integers(1, 300)), draw(st.integers(1, 5000))
    size = runs * run_bytes
    reads, writes = draw(st.sampled_from([(size, 0), (0, size), (size, size), (0, 0)]))
    return DmaWork(size, runs, run_bytes, reads, writes)


@given(st.sampled_from(sorted(CONFIGS)), transfers())
@settings(max_examples=200)
def test_a_transfer_alone_takes_what_the_cost_model_says(name: str, work: DmaWork) -> None:
    charge = DECODERS[name]._charge(work)
    assert charge.alone_ps == cost(CONFIGS[name], work).ps
    assert (charge.bus_bytes > 0) == bool(work.reads or work.writes)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("size", [1, 63, 4096, 100_000])
def test_the_machine_takes_that_long_for_it(name: str, size: int) -> None:
    config = CONFIGS[name]
    stream = Stream()
    stream.dma(copy(0, region(1), size))
    code = stream.code()
    machine = Machine(config)
    machine.memory.dram[: len(code)] = list(code)
    ended: list[Player] = []
    machine.start(MachineJob(0, len(code), ((1 << 16, 0), (1 << 16, size)), 0, arithmetic=False), ended.append)
    machine.clock.run_until(lambda: bool(ended), 10**12)
    [span] = ended[0].timeline(machine.clock.now, config.clock_hz).spans
    assert span.end_ps - span.start_ps == cost(config, stream.commands[0].instruction.work()).ps


def test_steps_carry_the_offsets_of_their_commands() -> None:
    stream = Stream()
    stream.dma(fill(0, 8, 1), op=3)
    stream.vector(add(0, 0, 0, 8), Wait(0, Unit.DMA, 1), Wait(0, Unit.DMA, 0), op=4)
    steps = DECODERS["tiny"].steps(stream.code(), (0, 0)).all
    first, second = stream.commands
    assert [(step.begin, step.end) for step in steps] == [
        (0, first.size),
        (first.size, first.size + second.size),
        (first.size + second.size, len(stream.code())),
    ]
    layout = UnitLayout(TINY)
    assert layout.names == ("core0.matrix", "core0.vector", "core0.scalar", "core0.dma0")
    assert [step.op for step in steps] == [3, 4, 0]
    assert steps[1].waits == ((layout.index[0, Unit.DMA], 1),)  # a wait for nothing is no wait
    assert steps[2].engine == HALT


def test_without_its_prologue_a_stream_waits_and_is_fetched_as_if_that_were_done() -> None:
    stream = Stream()
    loads = [stream.dma(copy(8 * number, region(0, 8 * number), 8), op=9) for number in range(2)]
    stream.keep(16)
    stream.dma(fill(64, 8, 1), op=3)
    stream.vector(add(72, 0, 64, 8), loads[1], op=4)
    stream.vector(add(72, 0, 64, 8), Wait(0, Unit.DMA, 3), op=5)
    found = DECODERS["tiny"].steps(stream.code(), (16, 0))
    assert (found.prologue, found.sram_bytes) == (2, 16)
    mark, first, second, *_ = stream.commands
    assert [step.begin for step in found.all[:2]] == [mark.size, mark.size + first.size]
    body = found.body()
    assert [step.op for step in body] == [3, 4, 5, 0]
    channel = UnitLayout(TINY).index[0, Unit.DMA]
    assert [step.waits for step in body] == [(), (), ((channel, 1),), ()]
    assert [step.begin for step in body] == [step.begin for step in found.all[2:]]  # where they stand, for messages
    assert body[0].end == mark.size + stream.commands[3].size
    assert body[-1].end == len(stream.code()) - first.size - second.size


def test_units_are_in_a_fixed_order() -> None:
    config = TINY.with_(**{"cores": 2, "scalar": None, "dma.channels": 2})
    assert UnitLayout(config).names == (
        "core0.matrix", "core0.vector", "core0.dma0", "core0.dma1",
        "core1.matrix", "core1.vector", "core1.dma0", "core1.dma1",
    )  # fmt: skip


def test_a_refused_program_says_where() -> None:
    stream = Stream()
    stream.dma(fill(0, 8, 1))
    stream.dma(fill(1 << 20, 8, 1))
    with pytest.raises(InvalidProgramError) as caught:
        DECODERS["tiny"].steps(stream.code(), (0, 0))
    assert caught.value.offset == stream.commands[0].size
    assert caught.value.explanation.startswith("command 1 (dma.fill): writes bytes")


@pytest.mark.parametrize(
    ("taken", "bound"), [(90, "compute"), (100, "compute"), (101, "compute"), (199, "compute"), (200, "memory")]
)
def test_a_unit_is_bound_by_a_memory_where_others_cost_it_most(taken: int, bound: str) -> None:
    assert CommandCost(100, 100, share=1, bound="compute").bound_in(taken) == bound


@pytest.mark.parametrize(
    ("taken", "bound"), [(59, "memory"), (80, "memory"), (81, "latency"), (119, "latency"), (120, "memory")]
)
def test_a_transfer_is_bound_by_what_it_spends_most_time_on(taken: int, bound: str) -> None:
    """60 of latency and 40 of bytes: bytes delayed by others take longer, latency behind an older transfer less."""
    assert CommandCost(60, 100, bus_bytes=8, rate=1, bound="latency").bound_in(taken) == bound
