"""The driver's header agrees with the declarations of the device."""

from __future__ import annotations

from npusim.device import npu, registers, ring
from npusim.device.firmware import FirmwareState
from npusim.driver import header
from npusim.timeline import FaultCode


def test_register_offsets() -> None:
    named = {name: value for name, value in vars(header).items() if name in registers.BY_NAME}
    assert len(named) >= 19
    assert named == {name: registers.BY_NAME[name].offset for name in named}
    for base, name in zip(header.RINGS, registers.RINGS, strict=True):
        for part in ("BASE_LO", "BASE_HI", "SIZE", "HEAD", "TAIL", "DOORBELL"):
            assert base + getattr(header, part) == registers.BY_NAME[f"{name}_{part}"].offset


def test_register_bits() -> None:
    def bit(register: str, field: str) -> int:
        return next(entry.mask for entry in registers.BY_NAME[register].fields if entry.name == field)

    assert bit("CONTROL", "RESET") == header.CONTROL_RESET
    assert bit("STATUS", "READY") == header.STATUS_READY
    assert bit("STATUS", "FAULT") == header.STATUS_FAULT
    assert bit("INT_STATUS", "DONE") == header.INT_DONE
    assert bit("INT_STATUS", "FAULT") == header.INT_FAULT
    assert bit("CONTROL", "CONTINUE") == header.CONTROL_CONTINUE
    assert bit("PREEMPT", "ENABLE") == header.PREEMPT_ENABLE
    assert bit("ABORT", "GO") == header.ABORT_GO
    assert bit("STATUS", "FIRMWARE") == header.STATUS_FIRMWARE
    assert bit("FW_BOOT", "GO") == header.FW_BOOT_GO
    assert tuple(state.name for state in FirmwareState) == header.FW_STATES
    assert (FirmwareState.BOOTING, FirmwareState.RUNNING) == (header.FW_BOOTING, header.FW_RUNNING)
    for name in registers.RINGS:
        assert bit(f"{name}_DOORBELL", "RING") == header.DOORBELL_RING
    assert registers.BY_NAME["ID"].reset == header.DEVICE_ID
    assert npu.INTERFACE_VERSION == header.INTERFACE_VERSION
    assert registers.ALL_ONES == header.GONE


def test_layouts_in_memory() -> None:
    assert header.ENTRY.format == ring.ENTRY.format
    assert header.ENTRY.size == 64
    assert len(ring.RingEntry._fields) == len(header.ENTRY.unpack(bytes(64)))
    assert header.ENTRY_MAGIC == ring.ENTRY_MAGIC
    assert header.REGION_ROW.format == ring.REGION_ROW.format
    assert header.COMPLETION.format == ring.COMPLETION.format
    assert len(ring.Completion._fields) == len(header.COMPLETION.unpack(bytes(header.COMPLETION.size)))
    assert int(ring.JobFlag.TIMING_ONLY) == header.FLAG_TIMING_ONLY
    assert int(ring.JobFlag.CANCELLED) == header.FLAG_CANCELLED
    entry = ring.RingEntry(*header.ENTRY.unpack(bytes(4) + b"\1" + bytes(59)))
    assert header.FLAGS.unpack_from(header.ENTRY.pack(*entry), header.FLAGS_OFFSET) == (entry.flags,) == (1,)
    assert tuple(ring.JobStatus) == (header.JOB_PENDING, header.JOB_DONE, header.JOB_FAULT, header.JOB_ABORTED)


def test_fault_codes() -> None:
    assert tuple(code.name for code in FaultCode) == header.FAULT_NAMES
    assert tuple(FaultCode) == tuple(range(len(FaultCode)))
    assert set(header.FAULT_MEANINGS) == set(header.FAULT_NAMES)
