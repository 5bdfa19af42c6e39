"""Hand-computed times of the tiny device: one cycle is 1 ns, DRAM transfers 8 bytes per ns after 100 ns.

Every condition is shown to be exact: false one picosecond before, true at the picosecond.
"""

from __future__ import annotations

from npusim.device.bus import BAR_REGISTERS
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, LoadedProgram
from npusim.driver.header import COMPLETION, DOORBELL, ENTRY, ENTRY_MAGIC, INT_MASK, RINGS, SIZE, STATUS, TAIL
from npusim.hw.config import Config
from npusim.isa.base import region
from npusim.isa.dma import Exchange
from npusim.program import FIRST_IO, Program
from npusim.sim.job import MachineJob
from npusim.sim.machine import Machine, Player
from npusim.sim.stepper import Stepper
from tests.support.programs.streams import LINE, ZERO4, Stream, add, copy, exchange, fill, multicast, round_trip
from tests.support.programs.tiny_times import LATENCY, NS, START, TINY, flow, run


def spans(device: NpuDevice) -> list[tuple[str, int, int]]:
    assert device.last_job is not None
    return [(span.unit, span.start_ps, span.end_ps) for span in device.last_job.spans]


def first_dispatch(program: Program) -> int:
    """Return the time to read ring entry, region table and code one after another, each with the DRAM's latency."""
    table = 16 * len(program.region_bytes)
    return 3 * LATENCY + flow(ENTRY.size) + flow(table) + flow(len(program.code))


def test_a_copy_there_and_back() -> None:
    program = round_trip(1000)
    one = START + LATENCY + flow(1024)  # 1000 bytes take 16 bursts of 64
    begin = first_dispatch(program)
    device = run(program)
    assert spans(device) == [
        ("core0.dma0", begin, begin + one),
        ("core0.dma0", begin + one, begin + 2 * one),
    ]
    record = device.last_job
    assert record is not None
    assert record.time_ps == begin + 2 * one + LATENCY + flow(COMPLETION.size)
    assert record.cycles == -(-record.time_ps // NS)


def test_commands_leave_the_sequencer_one_cycle_apart() -> None:
    stream = Stream()
    stream.dma(fill(0, 8, 1))
    stream.vector(add(0x100, 0x100, 0x100, 8))
    program = stream.program()
    starts = {unit: start for unit, start, _ in spans(run(program))}
    begin = first_dispatch(program)
    assert starts == {"core0.dma0": begin, "core0.vector": begin + 1 * NS}


TWO_CHANNELS = TINY.with_(**{"dma.channels": 2})


def two_transfers(first_wanted: int | None) -> Program:
    """Return 1024 bytes on each of two channels; a command waits for one of them, followed by one that waits for
    both."""
    stream = Stream()
    loads = [stream.dma(copy(2048 * number, region(1), 1024), channel=number) for number in range(2)]
    if first_wanted is not None:
        stream.vector(add(0x1800, 0x1800, 0x1800, 8), loads[first_wanted])
    stream.vector(add(0x1800, 0x1800, 0x1800, 8), *loads)
    return stream.program(scratch=1024)


def loads_of(program: Program, config: Config = TWO_CHANNELS) -> list[tuple[str, int, int]]:
    return [span for span in spans(run(program, config)) if ".dma" in span[0]]


def test_the_transfer_that_is_waited_for_first_has_the_dram() -> None:
    program = two_transfers(0)
    begin = first_dispatch(program)
    first = begin + START + LATENCY + 128 * NS
    assert loads_of(program) == [("core0.dma0", begin, first), ("core0.dma1", begin + NS, first + 128 * NS)]
    program = two_transfers(1)
    second = begin + NS + START + LATENCY + 128 * NS
    # Channel 0 has had 8 bytes when the other one's begin to flow.
    assert loads_of(program) == [("core0.dma1", begin + NS, second), ("core0.dma0", begin, second + 127 * NS)]


def test_transfers_that_are_waited_for_at_once_share_the_dram() -> None:
    fair = TWO_CHANNELS.with_(**{"interconnect.arbitration": "fair"})
    alone = 1 * NS  # channel 1 gets its command 1 ns later: 8 bytes flow, 1016 are left
    shared = 254 * NS  # 1016 bytes at half the bandwidth
    rest = 1 * NS  # the other one's last 8 bytes
    for program, config in ((two_transfers(None), TWO_CHANNELS), (two_transfers(None), fair), (two_transfers(1), fair)):
        begin = first_dispatch(program)
        first = begin + START + LATENCY + alone + shared
        assert loads_of(program, config) == [("core0.dma0", begin, first), ("core0.dma1", begin + NS, first + rest)]


def test_channels_share_the_port_of_their_core_and_no_other() -> None:
    config = TWO_CHANNELS.with_(**{"cores": 2, "interconnect.core_bytes_per_cycle": 2})
    stream = Stream()
    loads = [
        stream.dma(copy(0, region(1), 512), channel=channel, core=core) for core, channel in ((0, 0), (1, 0), (1, 1))
    ]
    stream.vector(add(0x1800, 0x1800, 0x1800, 8), *loads)
    program = stream.program(scratch=512)
    found = {unit: (start, end - START - LATENCY) for unit, start, end in loads_of(program, config)}
    begin = found["core0.dma0"][0]
    # The port of core 1 carries 2 bytes a ns: those of one channel for the first ns, then of both.
    assert found["core0.dma0"] == (begin, begin + 256 * NS)
    assert found["core1.dma0"] == (begin + NS, begin + NS + 511 * NS)
    assert found["core1.dma1"] == (begin + 2 * NS, begin + NS + 512 * NS)


def test_a_transfer_to_two_cores_takes_the_time_of_one() -> None:
    config = TINY.with_(**{"cores": 2, "interconnect.multicast": True})
    stream = Stream()
    stream.dma(multicast(0, region(1), 1024, 3))
    program = stream.program(scratch=1024)
    begin = first_dispatch(program)
    device = run(program, config)
    assert spans(device) == [("core0.dma0", begin, begin + START + LATENCY + 128 * NS)]
    assert device.last_job is not None
    assert device.last_job.counters.dram_read_bytes == 1024 + len(program.code)


BOTH = TINY.with_(
    **{"cores": 2, "exchange.bytes_per_cycle": 4, "exchange.latency_cycles": 5, "interconnect.multicast": True}
)
"""Two cores with an exchange network half as wide as the tiny device's channels."""


def handed_over() -> Program:
    """Return y0 = x0: core 0 loads it, its channel passes it to core 1, which stores it."""
    stream = Stream()
    loaded = stream.dma(copy(0, region(FIRST_IO), 256))
    passed = stream.dma(exchange(512, 0, 256, 0, 2), loaded)
    stream.dma(copy(region(FIRST_IO + 1), 512, 256), passed, core=1)
    return stream.program([256], [256])


def test_a_value_passes_from_core_to_core() -> None:
    program = handed_over()
    begin = first_dispatch(program)
    loaded = begin + START + LATENCY + flow(256)
    passed = loaded + START + 5 * NS + 64 * NS  # 256 bytes at 4 bytes a ns
    device = run(program, BOTH)
    assert spans(device) == [
        ("core0.dma0", begin, loaded),
        ("core0.dma0", loaded, passed),
        ("core1.dma0", passed, passed + START + LATENCY + flow(256)),
    ]
    record = device.last_job
    assert record is not None
    assert record.counters.dram_read_bytes == 256 + len(program.code)  # nothing but the load and the code
    assert record.counters.dram_write_bytes == 256


def test_what_passes_to_several_cores_takes_the_time_of_one() -> None:
    stream = Stream()
    stream.dma(exchange(512, 0, 256, 3, 0b0111), core=2)  # any core's channel does it
    [(unit, start, end)] = spans(run(stream.program(), BOTH.with_(cores=4)))
    assert (unit, end - start) == ("core2.dma0", START + 5 * NS + 64 * NS)


def test_pieces_take_whole_beats_of_the_way() -> None:
    strides = (0, 0, 8, 1)
    stream = Stream()
    stream.dma(Exchange(0, LINE, 0, strides, (1, 1, 20, 5), 1, ZERO4, ZERO4, 0, 0, 2))
    [(_, start, end)] = spans(run(stream.program(), BOTH))
    assert end - start == START + 5 * NS + 20 * 2 * NS


def test_two_that_pass_share_the_way() -> None:
    stream = Stream()
    stream.dma(exchange(512, 0, 256, 0, 2))
    stream.dma(exchange(512, 0, 256, 1, 1), core=1)
    device = run(stream.program(), BOTH.with_(**{"interconnect.arbitration": "fair"}))
    alone = 64 * NS
    [(_, first, end), (_, second, last)] = spans(device)
    # The second gets its command 1 ns later: each is alone for one ns.
    assert (end - first, last - second) == (START + 5 * NS + 2 * alone - NS,) * 2
    assert device.last_job is not None
    assert device.last_job.counters.units["core1.dma0"].stalls == {"exchange": alone - NS}


def test_what_passes_between_cores_shares_its_way_with_nothing_else() -> None:
    stream = Stream()
    stream.dma(exchange(512, 0, 1024, 0, 2))
    stream.dma(copy(0, region(1), 1024), core=1)
    alone = [START + 5 * NS + 256 * NS, START + LATENCY + flow(1024)]
    assert [end - start for _, start, end in sorted(spans(run(stream.program(scratch=1024), BOTH)))] == alone


def test_a_narrow_channel_is_what_a_wide_way_waits_for() -> None:
    config = BOTH.with_(**{"exchange.bytes_per_cycle": 64, "dma.bytes_per_cycle": 2})
    stream = Stream()
    stream.dma(exchange(512, 0, 1024, 0, 2))
    [(_, start, end)] = spans(run(stream.program(), config))
    assert end - start == START + 5 * NS + 512 * NS


def test_what_passes_is_there_at_the_picosecond() -> None:
    machine = Machine(BOTH)
    machine.memory.sram[0][:256] = 7
    stream = Stream()
    stream.dma(exchange(512, 0, 256, 0, 2))
    code = stream.code()
    machine.memory.store(0, code)
    ended: list[Player] = []
    machine.start(MachineJob(0, len(code), ((0, 0), (0, 0)), 0), ended.append)
    machine.clock.advance(LATENCY + flow(len(code)) + START + 5 * NS + 64 * NS - 1)
    assert not ended
    assert not machine.memory.sram[1].any()
    machine.clock.advance(1)
    assert ended
    assert (machine.memory.sram[1][512:768] == 7).all()


def test_a_channel_is_not_faster_than_itself() -> None:
    config = TINY.with_(**{"dma.bytes_per_cycle": 2})
    stream = Stream()
    stream.dma(copy(0, region(1), 1024))
    program = stream.program(scratch=1024)
    [(_, start, end)] = spans(run(program, config))
    assert end - start == START + LATENCY + 512 * NS


def test_two_slow_channels_do_not_disturb_each_other() -> None:
    config = TINY.with_(**{"dma.bytes_per_cycle": 4, "dma.channels": 2})
    stream = Stream()
    stream.dma(copy(0, region(1), 1024), channel=0)
    stream.dma(copy(2048, region(1), 1024), channel=1)
    alone = START + LATENCY + 256 * NS
    assert [end - start for _, start, end in spans(run(stream.program(scratch=1024), config))] == [alone, alone]


def test_a_full_queue_holds_the_sequencer() -> None:
    """Nine commands fill the queue of eight (one is taken at once); the tenth blocks the vector command after it."""
    stream = Stream()
    for number in range(10):
        stream.dma(copy(0, 64 * number, 64))  # within SRAM: 8 beats
    stream.vector(add(0x1000, 0x1000, 0x1000, 8))
    program = stream.program()
    device = run(program)
    starts = {unit: start for unit, start, _ in reversed(spans(device))}
    first_end = starts["core0.dma0"] + START + 8 * NS
    assert starts["core0.vector"] == first_end + 1 * NS  # the tenth copy goes at the end of the first one
    assert device.last_job is not None
    stalls = device.last_job.counters.units["sequencer"].stalls
    assert stalls["core0.dma0"] == first_end - starts["core0.dma0"] - 9 * NS


def start_machine(program: Program, config: Config = TINY) -> tuple[Machine, Stepper]:
    """Return a machine with a program and its scratch region in DRAM, at the start of the fetch."""
    machine = Machine(config)
    machine.memory.dram[: len(program.code)] = list(program.code)
    regions = tuple((1 << 16, size) for size in program.region_bytes)
    machine.start(MachineJob(0, len(program.code), regions, 0, arithmetic=False), lambda _: None)
    assert machine.current is not None
    current = machine.step_by_step(machine.current)
    assert isinstance(current, Stepper)
    return machine, current


def test_a_wait_opens_at_the_picosecond() -> None:
    stream = Stream()
    loaded = stream.dma(copy(0, region(1), 1024))
    stream.vector(add(0, 0, 0, 8), loaded)
    program = stream.program(scratch=1024)
    machine, current = start_machine(program)
    engines = {engine.name: engine for engine in current.engines}
    done = LATENCY + flow(len(program.code)) + START + LATENCY + flow(1024)
    machine.clock.advance(done - 1)
    assert engines["core0.dma0"].completed == 0
    assert engines["core0.vector"].blocker is engines["core0.dma0"]
    machine.clock.advance(1)
    assert engines["core0.dma0"].completed == 1
    assert engines["core0.vector"].begin == done


def timing_only_entry(loaded: LoadedProgram) -> bytes:
    """Return a handmade ring entry."""
    code = loaded.program.code
    return ENTRY.pack(ENTRY_MAGIC, 1, loaded.code, len(code), 4, loaded.slot.table, 1, loaded.slot.completion, 0, 0, 0)


def test_the_interrupt_comes_at_the_picosecond() -> None:
    program = round_trip(64)
    device = run(program)
    assert device.last_job is not None
    duration = device.last_job.time_ps

    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(program)
    bus = device.bus
    bus.write_memory(bus.read(BAR_REGISTERS, RINGS[1], 4), timing_only_entry(loaded))
    bus.write(BAR_REGISTERS, RINGS[1] + SIZE, 4, 1)
    bus.write(BAR_REGISTERS, INT_MASK, 4, 3)
    bus.write(BAR_REGISTERS, RINGS[1] + TAIL, 4, 1)
    bus.write(BAR_REGISTERS, RINGS[1] + DOORBELL, 4, 1)
    rung = device.now_ps
    assert bus.wait_irq(duration - 1) == 0
    assert device.now_ps == rung + duration - 1
    assert bus.wait_irq(1) == 1
    assert device.now_ps == rung + duration + TINY.host.irq_ps


def test_register_accesses_take_their_time_and_see_what_happened_meanwhile() -> None:
    device = NpuDevice(TINY)
    before = device.now_ps
    device.bus.read(BAR_REGISTERS, STATUS, 4)
    device.bus.write(BAR_REGISTERS, INT_MASK, 4, 0)
    assert device.now_ps - before == 2 * TINY.host.mmio_ps


def test_a_polling_driver_makes_progress() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(round_trip(64))
    bus = device.bus
    bus.write_memory(bus.read(BAR_REGISTERS, RINGS[1], 4), timing_only_entry(loaded))
    bus.write(BAR_REGISTERS, RINGS[1] + TAIL, 4, 1)
    bus.write(BAR_REGISTERS, RINGS[1] + DOORBELL, 4, 1)
    seen = [bus.read(BAR_REGISTERS, STATUS, 4)]
    while seen[-1] != 1 and len(seen) < 100:
        seen.append(bus.read(BAR_REGISTERS, STATUS, 4))
    assert set(seen[:-1]) == {3}  # ready and busy
    assert seen[-1] == 1


def test_bulk_copies_take_the_links_time() -> None:
    device = NpuDevice(TINY)
    before = device.now_ps
    device.bus.write_memory(4096, bytes(8000))
    assert device.now_ps - before == TINY.host.link_latency_ps + 1000 * NS
