"""Shared memory: what may be mapped, what protection allows, and that nothing leaks when all views are gone."""

from __future__ import annotations

import copy
import fcntl
import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.nnapi import memory
from hal.nnapi.aidl import memory as aidl_memory
from hal.nnapi.errors import StatusError
from hal.nnapi.memory import Memory
from hal.nnapi.memory.mapping import Mapping
from hal.nnapi.memory.pools import Kept, PoolMappings
from hal.nnapi.types import ErrorStatus
from npusim.errors import FileCutError
from tests.support.waits_and_leaks import descriptors, until

READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
PAGE = mmap.ALLOCATIONGRANULARITY


def _mappings(needle: str) -> int:
    return sum(needle in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = descriptors()
    yield
    until(lambda: descriptors() <= before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(256)) * (3 * PAGE // 256))
    return path


def _open(path: Path, size: int, prot: int, offset: int = 0, flags: int = os.O_RDWR) -> Memory:
    descriptor = os.open(path, flags)
    try:
        return memory.from_fd(size, prot, descriptor, offset)
    finally:
        os.close(descriptor)


def _refused(status: ErrorStatus, words: str, act: Callable[[], object]) -> None:
    with pytest.raises(StatusError, match=words) as caught:
        act()
    assert caught.value.status is status


@pytest.mark.parametrize("allocate", [memory.allocate_ashmem, memory.allocate_blob])
def test_anonymous_memory_is_shared_by_all_who_map_it(allocate: Callable[[int], Memory]) -> None:
    pool = allocate(12)
    with pool.map() as bytes_:
        assert bytes(bytes_) == bytes(12)
        bytes_[2:5] = b"abc"
        bytes_[5:9] = np.frombuffer(np.float32(1.5).tobytes(), np.uint8)
        bytes_[0] = 7
    received = pool.dup()
    pool.close()
    assert bytes(received.map()[:5]) == b"\x07\0abc"
    assert received.map()[5:9].view(np.float32)[0] == 1.5
    assert received.size == 12
    assert received.valid
    assert not pool.valid


def test_a_view_outlives_its_memory_and_is_gone_with_the_last_part() -> None:
    before = descriptors()
    pool = memory.allocate_ashmem(PAGE)
    part = np.asarray(pool.map()[8:16])
    pool.close()
    part[:] = 3
    assert descriptors() <= before + 1  # the mapping's own
    assert part.sum() == 24
    del part
    assert descriptors() <= before


def test_results_of_arithmetic_keep_no_mapping_alive() -> None:
    before = _mappings("memfd:ashmem")
    pool = memory.allocate_ashmem(4)
    results = [pool.map() + 1, pool.map().copy(), pool.map().astype(np.float32), pool.map().sum()]
    pool.close()
    assert _mappings("memfd:ashmem") <= before  # those of other tests may go at any time
    assert [int(np.sum(result)) for result in results] == [4, 0, 0, 0]


def test_it_is_mapped_once_while_in_use(file: Path) -> None:
    pool = _open(file, 100, READ | WRITE, 10)
    first, second = pool.map(), pool.map(writable=False)
    assert first.file is second.file
    assert _mappings(file.name) == 1
    first[3] = 99
    assert second[3] == 99
    del first, second
    gc.collect()
    assert _mappings(file.name) == 0
    pool.close()


@pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, PAGE + 100])
def test_the_offset_need_not_be_a_whole_page(file: Path, offset: int) -> None:
    with _open(file, PAGE + 3, READ, offset) as pool:
        assert bytes(pool.map()) == file.read_bytes()[offset : offset + PAGE + 3]
        assert pool.offset == offset


def test_a_read_only_file_stays_read_only(file: Path) -> None:
    pool = _open(file, 16, READ, flags=os.O_RDONLY)
    view = pool.map()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        view[:2] = b"ab"
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    assert memoryview(view).readonly
    _refused(ErrorStatus.INVALID_ARGUMENT, "read-only", lambda: pool.map(writable=True))
    pool.close()


def test_protection_is_that_of_the_memory_not_of_the_descriptor(file: Path) -> None:
    with _open(file, 16, READ) as pool:
        assert not pool.map().flags.writeable
    with _open(file, 16, WRITE) as pool:
        assert pool.map(writable=True).flags.writeable
        _refused(ErrorStatus.INVALID_ARGUMENT, "write-only", lambda: pool.map(writable=False))


@pytest.mark.parametrize("seal", [0, fcntl.F_SEAL_WRITE, 0x10])
def test_anonymous_memory_that_cannot_be_written(seal: int) -> None:
    descriptor = os.memfd_create("weights", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"abcd")
    if seal:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seal)
    reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    with Memory("ashmem", [descriptor if seal else reading], 4) as pool:
        view = pool.map()
        assert (bytes(view), view.flags.writeable) == (b"abcd", False)
        _refused(ErrorStatus.INVALID_ARGUMENT, "read-only", lambda: pool.map(writable=True))
    os.close(descriptor)
    os.close(reading)


def test_a_driver_may_ask_for_a_view_that_it_cannot_write(file: Path) -> None:
    with _open(file, 16, READ | WRITE) as pool, pytest.raises(ValueError, match="read-only"):
        pool.map(writable=False)[:] = 0


@pytest.mark.parametrize(
    ("size", "prot", "offset", "flags", "words"),
    [
        (3 * PAGE + 1, READ, 0, os.O_RDWR, f"does not lie within its file of {3 * PAGE} bytes"),
        (PAGE, READ, 2 * PAGE + 1, os.O_RDWR, "does not lie"),
        (1, READ, 3 * PAGE, os.O_RDWR, "does not lie"),
        (0, READ, 0, os.O_RDWR, "must be positive, got 0"),
        (-5, READ, 0, os.O_RDWR, "must be positive, got -5"),
        (8, READ, -1, os.O_RDWR, "must not be negative"),
        (8, READ, 1 << 63, os.O_RDWR, r"below 2\*\*63"),
        (8, 0, 0, os.O_RDWR, "must be PROT_READ, PROT_WRITE or both, got 0"),
        (8, 8, 0, os.O_RDWR, "or both, got 8"),
        (8, READ | WRITE, 0, os.O_RDONLY, "the descriptor is read-only"),
        (8, READ, 0, os.O_WRONLY, "the descriptor is write-only"),
    ],
)  # fmt: skip
def test_what_the_file_cannot_give_is_refused(
    file: Path, size: int, prot: int, offset: int, flags: int, words: str
) -> None:
    _refused(ErrorStatus.INVALID_ARGUMENT, words, lambda: _open(file, size, prot, offset, flags))


def test_descriptors_that_are_no_files() -> None:
    reading, writing = os.pipe()
    _refused(ErrorStatus.INVALID_ARGUMENT, "must be that of a regular file", lambda: memory.from_fd(8, READ, reading))
    os.close(reading)
    os.close(writing)
    _refused(ErrorStatus.INVALID_ARGUMENT, "one open descriptor", lambda: memory.from_fd(8, READ, reading))


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("allocate", [memory.allocate_ashmem, memory.allocate_blob])
def test_nothing_is_no_memory(allocate: Callable[[int], Memory], size: int) -> None:
    _refused(ErrorStatus.INVALID_ARGUMENT, "must be positive", lambda: allocate(size))


def test_null_handles() -> None:
    assert not Memory("ashmem", None, 4).valid
    assert Memory("ashmem", None, 4).handle == []


def test_names() -> None:
    _refused(
        ErrorStatus.GENERAL_FAILURE, "must be one of ashmem, mmap_fd, .*, got 'dmabuf'", Memory("dmabuf", [0], 4).map
    )
    picture = memory.hardware_buffer(640, 480)
    assert picture.valid
    assert picture.size == 0
    _refused(ErrorStatus.GENERAL_FAILURE, "not a BLOB cannot be mapped", picture.map)
    _refused(ErrorStatus.INVALID_ARGUMENT, "allocate_blob", lambda: memory.hardware_buffer(8, 1, 1, memory.FORMAT_BLOB))


_ANYTHING = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3), st.just([]))


@given(
    name=st.sampled_from(["ashmem", "mmap_fd", "hardware_buffer_blob", "hardware_buffer", "", None]),
    handle=st.lists(st.one_of(st.integers(-3, -1), st.integers(1 << 20), st.floats(), st.none()), max_size=2),
    size=_ANYTHING,
    ints=st.lists(_ANYTHING, max_size=4),
    good=st.booleans(),
)
def test_a_hostile_memory_is_refused_and_nothing_else(
    name: str, handle: list[int], size: int, ints: list[int], good: bool
) -> None:
    with memory.allocate_ashmem(64) as real:
        pool = Memory(name, real.handle if good else handle, size, ints)
        try:
            mapped = pool.map()
        except StatusError:
            pass
        else:
            assert good
            assert mapped.size == size
        assert pool.valid in {True, False}
        assert pool.identity is None or good
        pool.close()


def test_a_file_that_is_cut_behind_our_back_ends_no_process(file: Path) -> None:
    pool = _open(file, 2 * PAGE, READ | WRITE, PAGE)
    view = pool.map()[5:]
    view.check()
    os.truncate(file, 2 * PAGE)
    with pytest.raises(FileCutError, match=f"{2 * PAGE} bytes now, {3 * PAGE} are needed"):
        view.check()
    view.confirm()  # the missing pages were not accessed
    _refused(ErrorStatus.INVALID_ARGUMENT, "does not lie", pool.map)
    pool.close()
    with pytest.raises(FileCutError, match="was cut"):
        view.check()


def test_what_is_cut_reads_as_zeros_and_says_so(file: Path) -> None:
    with _open(file, 2 * PAGE, READ | WRITE, PAGE) as pool:
        view, other = pool.map(), pool.map().part(8, 8)
        os.truncate(file, 0)
        assert not view.cut
        assert view[PAGE] == 0
        assert view.cut
        for use in (view.check, view.confirm, other.confirm, lambda: view.store(np.ones(4, np.uint8))):
            with pytest.raises(FileCutError, match="was cut"):
                use()
        os.truncate(file, 3 * PAGE)
        with pytest.raises(FileCutError, match="was cut"):  # that file is mapped no more
            view.check()
        again = pool.map()
        again.store(np.full(4, 7, np.uint8))
        assert file.read_bytes()[PAGE : PAGE + 5] == bytes([7, 7, 7, 7, 0])


def test_what_is_written_into_a_cut_file_is_an_error(file: Path) -> None:
    with _open(file, 2 * PAGE, READ | WRITE, PAGE) as pool:
        view = pool.map()
        check = Mapping.check
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Mapping, "check", lambda self: (check(self), os.truncate(file, PAGE)))
            with pytest.raises(FileCutError, match="was cut while it was used"):
                view.store(np.ones(2 * PAGE, np.uint8))


def test_sealed_memory_is_not_watched() -> None:
    with memory.allocate_ashmem(8) as ours:
        view = ours.map()
        assert view[2:].sealed
        assert view.part(2, 4).file is view.file
        assert not view.cut


def test_our_anonymous_memory_cannot_be_cut() -> None:
    with memory.allocate_ashmem(64) as pool, pytest.raises(PermissionError):
        os.ftruncate(pool.handle[0], 1)


def test_copies_are_the_same_memory() -> None:
    with memory.allocate_ashmem(4) as pool:
        assert copy.copy(pool).identity == pool.identity
        twin = copy.deepcopy({"pools": [pool]})["pools"][0]
        assert twin.handle != pool.handle
        assert twin.identity == pool.identity
        twin.map()[:] = b"same"
        assert bytes(pool.map()) == b"same"
        with memory.allocate_ashmem(4) as other:
            assert other.identity != pool.identity
        twin.close()


def test_many_threads_map_and_close() -> None:
    pool = memory.allocate_ashmem(PAGE)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(100):
                assert pool.map()[0] == 0
        except StatusError:
            pass  # closed by then
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    pool.close()
    for thread in threads:
        thread.join()
    assert failures == []


def test_pools_are_mapped_once_where_they_are_kept() -> None:
    pool, other = memory.allocate_ashmem(4), memory.allocate_ashmem(4)
    kept: dict[int, Kept] = {}
    first = PoolMappings(kept, (7, None))
    assert first.get(0, pool).file is first.get(0, pool).file
    assert first.get(1, other).file is first.get(1, other).file
    assert first.fresh == 2
    second = PoolMappings(kept, (None, 7))
    assert second.get(1, pool.dup()).file is first.get(0, pool).file  # the same memory for any descriptor
    assert second.fresh == 0
    assert second.get(0, other) is not None
    assert second.fresh == 1
    wrong = PoolMappings(kept, (7,))
    assert wrong.get(0, other).file is other.map().file  # a key that is used for something else is never believed
    assert wrong.fresh == 1
    kept.clear()
    assert PoolMappings(kept, (7,)).fresh == 0
    del first, second, wrong
    pool.close()
    other.close()


def test_a_kept_mapping_is_checked_at_each_use(file: Path) -> None:
    kept: dict[int, Kept] = {}
    with _open(file, PAGE, READ, PAGE) as pool:
        PoolMappings(kept, (1,)).get(0, pool)
        os.truncate(file, PAGE)
        with pytest.raises(FileCutError, match="was cut"):
            PoolMappings(kept, (1,)).get(0, pool)
        assert kept[1][1][0] == 0  # from now on it is not the file that is mapped
        os.truncate(file, 3 * PAGE)
        PoolMappings(kept, (1,)).get(0, pool).check()
    kept.clear()


def test_memory_of_the_aidl_interface(file: Path) -> None:
    pools = [
        memory.allocate_ashmem(8),
        _open(file, 8, READ, (1 << 8) + 1),
        memory.allocate_blob(8),
        memory.hardware_buffer(64, 32, 2, usage=(5 << 32) + 1),
    ]
    pools[0].map()[:] = b"12345678"
    for pool in pools:
        twin = aidl_memory.to_memory(aidl_memory.from_memory(pool))
        assert (twin.name, twin.size, twin.ints, twin.valid) == (pool.name, pool.size, pool.ints, True)
        if pool.name in memory.MAPPABLE:
            assert bytes(twin.map()) == bytes(pool.map())
        twin.close()
        pool.close()


@pytest.mark.parametrize(
    "union",
    [
        None,
        aidl_memory.AidlMemory(),
        aidl_memory.AidlMemory(aidl_memory.Ashmem(0, 4), aidl_memory.MappableFile(4, 1, 0, 0)),
        aidl_memory.AidlMemory(mappableFile=aidl_memory.MappableFile(4, 1, 0, -4)),
    ],
)
def test_a_union_has_one_member(union: aidl_memory.AidlMemory) -> None:
    _refused(ErrorStatus.INVALID_ARGUMENT, "must be", lambda: aidl_memory.to_memory(union))


def test_only_what_both_interfaces_have_is_converted() -> None:
    _refused(ErrorStatus.INVALID_ARGUMENT, "no counterpart", lambda: aidl_memory.from_memory(Memory("x", (), 1)))


def test_formats_of_hardware_buffers_are_those_of_android() -> None:
    """``android/hardware_buffer.h``: clients pass the numbers."""
    assert {"BLOB": memory.FORMAT_BLOB, "R8G8B8A8_UNORM": memory.FORMAT_R8G8B8A8_UNORM} == {
        "BLOB": 0x21, "R8G8B8A8_UNORM": 1
    }  # fmt: skip
