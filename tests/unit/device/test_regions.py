"""The rules of docs/device.md for the regions of a job: where they may be, who fills them, and which need no
content."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.demo import network
from npusim.device.ring import REGION_ROW, JobStatus
from npusim.program import CONSTANTS, SCRATCH, Program
from tests.support.bare_device import TINY, BareDevice
from tests.support.programs.streams import round_trip

GARBAGE = 0xEE
SMALL = TINY.with_(**{"sram.bytes": 32 << 10})
"""With so little SRAM, values of the demo are in DRAM, so each of its regions has bytes."""


@pytest.fixture(scope="module")
def program() -> Program:
    program = npusim.Session(SMALL, cache_dir=False).compile(network())
    assert all(program.region_bytes)
    return program


def place(bare: BareDevice, program: Program, misalignment: int, spare: int) -> list[int]:
    """Return addresses for the regions, with constants in place and garbage elsewhere."""
    addresses = []
    for region, size in enumerate(program.region_bytes):
        address = bare.store(bytes([GARBAGE]) * (size + misalignment + spare)) + misalignment
        if region == CONSTANTS:
            bare.bus.write_memory(address, program.constants.joined().tobytes())
        addresses.append(address)
    return addresses


@pytest.mark.parametrize(("misalignment", "spare"), [(0, 0), (1, 0), (7, 4096)])
def test_regions_lie_anywhere_and_only_constants_and_inputs_have_to_be_filled(
    program: Program, misalignment: int, spare: int
) -> None:
    bare = BareDevice(SMALL)
    image = np.random.default_rng(1).standard_normal(program.inputs[0].shape, np.float32)
    wanted = npusim.Session(SMALL, cache_dir=False).run(program, {program.inputs[0].name: image})
    addresses = place(bare, program, misalignment, spare)
    sizes = [size + spare for size in program.region_bytes]
    bare.bus.write_memory(addresses[program.inputs[0].region], image.tobytes())
    table = bare.store(b"".join(REGION_ROW.pack(*row) for row in zip(addresses, sizes, strict=True)))
    entry = bare.submit("MEDIUM", program, region_table=table)
    bare.wait()
    done, output = bare.completion(entry), program.outputs[0]
    assert (done.status, done.cycles) == (JobStatus.DONE, wanted.cycles)
    raw = bare.bus.read_memory(addresses[output.region], output.nbytes)
    np.testing.assert_array_equal(
        np.frombuffer(raw, output.dtype.storage).reshape(output.shape), wanted.outputs[output.name]
    )
    for address, size in zip(addresses, program.region_bytes, strict=True):  # memory after a region is unused
        assert bare.bus.read_memory(address + size, spare) == bytes([GARBAGE]) * spare
    constants = bare.bus.read_memory(addresses[CONSTANTS], program.constants.nbytes)
    assert constants == program.constants.joined().tobytes()
    assert bare.bus.read_memory(addresses[program.inputs[0].region], image.nbytes) == image.tobytes()


def test_a_region_that_is_smaller_than_the_program_says_is_a_fault(program: Program) -> None:
    bare = BareDevice(SMALL)
    addresses = place(bare, program, 0, 0)
    sizes = [size - (region == SCRATCH) * size for region, size in enumerate(program.region_bytes)]
    table = bare.store(b"".join(REGION_ROW.pack(*row) for row in zip(addresses, sizes, strict=True)))
    entry = bare.submit("MEDIUM", program, region_table=table)
    bare.wait()
    assert bare.completion(entry).status == JobStatus.FAULT
    assert "r1+0x0: the memory has 0" in bare.text(entry)


@pytest.mark.parametrize(
    ("address", "status"), [(TINY.dram.bytes, JobStatus.DONE), (TINY.dram.bytes + 1, JobStatus.FAULT)]
)
def test_a_region_of_no_bytes_lies_in_dram_too(address: int, status: JobStatus) -> None:
    bare, program = BareDevice(), round_trip(64)
    rows = [(address, 0), (0, 0), (bare.take(64), 64), (bare.take(64), 64)]
    entry = bare.submit("LOW", program, region_table=bare.store(b"".join(REGION_ROW.pack(*row) for row in rows)))
    bare.wait()
    assert bare.completion(entry).status == status


def test_regions_may_share_bytes() -> None:
    bare, program = BareDevice(), round_trip(64)
    shared = bare.store(bytes(range(64)))
    rows = [(0, 0), (0, 0), (shared, 64), (shared + 32, 64)]
    entry = bare.submit("LOW", program, region_table=bare.store(b"".join(REGION_ROW.pack(*row) for row in rows)))
    bare.wait()
    assert bare.completion(entry).status == JobStatus.DONE
    assert bare.bus.read_memory(shared + 32, 64) == bytes(range(64))
