"""Weight streams: exact round trips, a size close to the entropy, and errors for invalid streams."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _core
from tests.support.fuzz import weight_streams
from tests.support.oracle import weight_stream

Bytes = npt.NDArray[np.uint8]


def expanded(stream: Bytes, nbytes: int, bits: int) -> tuple[Bytes, str, int]:
    """Expand a stream between guard bytes that must not change."""
    out = np.full(nbytes + 2, 0xA5, np.uint8)
    wrong, there = _core.expand(_core.Strided(out, 1), _core.Strided(stream, 0), nbytes, stream.size, bits)
    assert out[0] == out[-1] == 0xA5
    return out[1:-1], wrong, there


def back(data: Bytes, bits: int) -> int:
    """Return the size of the stream for some data, which must expand to the data again."""
    stream = _core.compress(data, bits)
    assert stream.size == _core.compressed_size(data, bits)
    out, wrong, there = expanded(stream, data.size, bits)
    assert (wrong, there) == ("", data.size)
    assert (out == data).all()
    return stream.size


def near(low: int, spread: float, count: int, seed: int = 0) -> Bytes:
    made = np.random.default_rng(seed).normal(0, spread, count).round()
    return (made + low).astype(np.int64).astype(np.uint8)


def entropy(data: Bytes) -> float:
    """Return the bytes needed according to the frequencies of single bytes."""
    part = np.bincount(data) / data.size
    part = part[part > 0]
    return float(-(part * np.log2(part)).sum() * data.size / 8)


@given(st.binary(min_size=1, max_size=1500), st.sampled_from([2, 4, 8]))
def test_any_bytes_come_back(data: bytes, bits: int) -> None:
    size = back(np.frombuffer(data, np.uint8), bits)
    blocks = -(-len(data) * (8 // bits) // 512)
    assert size <= len(data) + -(-2 * blocks // 8)  # only a flag per plain block is added


@given(
    st.integers(0, 255), st.floats(0, 80), st.integers(1, 1100), st.floats(0, 1), st.integers(0, 99),
    st.sampled_from([2, 4, 8]),
)  # fmt: skip
def test_bytes_as_weights_have_them_come_back(
    low: int, spread: float, count: int, zeros: float, seed: int, bits: int
) -> None:
    data = near(low, spread, count, seed)
    data[np.random.default_rng(seed).random(count) < zeros] = low
    back(data, bits)


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (near(0, 5, 1 << 16), 1.05),
        (near(128, 15, 1 << 16), 1.03),  # no sign: the middle is in the middle
        (near(0, 25, 1 << 16), 1.04),
        (near(0, 20, 1 << 16) * (np.random.default_rng(1).random(1 << 16) < 0.5), 1.04),
        (near(0, 20, 1 << 16) * (np.random.default_rng(1).random(1 << 16) < 0.1), 1.08),
        (near(0, 30, 16)[np.random.default_rng(1).integers(0, 16, 1 << 16)], 1.10),
    ],
    ids=["narrow", "unsigned", "wide", "half pruned", "pruned", "palette"],
)
def test_a_stream_takes_little_more_than_the_entropy(data: Bytes, most: float) -> None:
    assert entropy(data) <= back(data, 8) <= most * entropy(data)


def test_what_is_the_same_takes_a_few_bits_a_block() -> None:
    for value in (0, 1, 77, 255):
        assert back(np.full(1 << 16, value, np.uint8), 8) <= (1 << 16) // 512 * 20 // 8


def bits_of(text: str) -> Bytes:
    """Return a stream from its bits, first one first."""
    bits = [int(bit) for bit in text if bit in "01"]
    return np.packbits(bits, bitorder="little")


def low_first(value: int, bits: int) -> str:
    return "".join(str(value >> at & 1) for at in range(bits))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("00" + low_first(200, 8) + low_first(3, 8), [200, 3]),
        # about 10, k 1: 0, -1, 1, 2 are the numbers 0, 1, 2, 4
        ("10" + low_first(10, 8) + "0" + "100" + "00" + "01" + "100" + "1100", [10, 9, 11, 12]),
        # about 255, with the long way to say 40
        ("10" + low_first(255, 8) + "0" + "000" + 12 * "1" + low_first(40, 8), [19]),
        # two entries, in one bit each; then with zeros counted by r 1
        ("01" + low_first(1, 5) + low_first(7, 8) + low_first(9, 8) + "0" + "111" + "0110", [7, 9, 9, 7]),
        ("01" + low_first(1, 5) + low_first(7, 8) + low_first(9, 8) + "1" + "100" + "000" + "101" + "0" + "01",
         [7, 7, 7, 9, 7]),
        # one entry, in no bits
        ("01" + low_first(0, 5) + low_first(7, 8) + "0" + "111", [7, 7, 7]),
    ],
)  # fmt: skip
def test_what_each_code_means(text: str, wanted: list[int]) -> None:
    out, wrong, _ = expanded(bits_of(text), len(wanted), 8)
    assert (out.tolist(), wrong) == (wanted, "")


PALETTE = "01" + low_first(1, 5) + low_first(7, 8) + low_first(9, 8)


@pytest.mark.parametrize(
    ("stream", "nbytes", "said"),
    [
        (bits_of("00" + low_first(200, 8)), 2, "it ends too early"),
        (bits_of("00" + low_first(200, 8) + 16 * "0"), 1, "its last 2 bytes are left over"),
        (bits_of("11" + 30 * "0"), 1, "it has a number that is no weight"),  # no palette was there before
        (bits_of(PALETTE + "0" + "000" + "110" + 8 * "0"), 1, "it has a number that is no weight"),
        (bits_of("10" + 8 * "0" + "1" + "000" + "111" + "0" + 8 * "1"), 1, "it has a number that is no weight"),
        (bits_of(PALETTE + "1" + "000" + "000" + "110" + 8 * "0"), 1, "it counts more zeros than there is room for"),
        (np.zeros(1, np.uint8), 1, "it ends too early"),
    ],
)
def test_what_is_no_stream_is_refused(stream: Bytes, nbytes: int, said: str) -> None:
    _, wrong, there = expanded(stream, nbytes, 8)
    assert (wrong, there) == (said, 0 if "left" not in said else nbytes)


@given(st.binary(max_size=200), st.integers(0, 3000), st.sampled_from([2, 4, 8]))
@settings(max_examples=300)
def test_any_bytes_mean_what_they_are_documented_to(stream: bytes, nbytes: int, bits: int) -> None:
    out, wrong, there = expanded(np.frombuffer(stream, np.uint8).copy(), nbytes, bits)
    assert (out[:there].tobytes(), wrong) == weight_stream.read(stream, nbytes, bits)
    if not wrong:  # then it stands for these bytes, in perhaps more bytes than it takes
        assert _core.compressed_size(out.copy(), bits) <= nbytes + -(-2 * -(-nbytes * (8 // bits) // 512) // 8)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_stream_that_is_cut_anywhere_is_too_short(bits: int) -> None:
    data = np.frombuffer(weight_streams.weights(random.Random(bits), 1500), np.uint8)
    stream = _core.compress(data, bits)
    for size in range(stream.size):
        out, wrong, there = expanded(stream[:size].copy(), data.size, bits)
        assert wrong == "it ends too early"
        assert (out[:there] == data[:there]).all()
        assert (out[there:] == 0xA5).all()


def test_changed_streams_mean_what_they_are_documented_to() -> None:
    """Some of the cases of ``make fuzz``, and a check that they reach deep enough."""
    world = weight_streams.make()
    cases = 200
    for number in range(cases):
        assert world.case(random.Random(number)) == []
    assert len(world.tally) == 6
    assert min(world.tally.values()) >= cases / 50


def test_what_kernels_refuse() -> None:
    data = np.zeros(8, np.uint8)
    for bits in (0, 3, 16):
        with pytest.raises(ValueError, match=f"symbols have 2, 4 or 8 bits, got {bits}"):
            _core.compress(data, bits)
    with pytest.raises(IndexError, match="out: bytes"):
        _core.expand(_core.Strided(data, 1), _core.Strided(data, 0), 8, 8, 8)
    with pytest.raises(IndexError, match="stream: bytes"):
        _core.expand(_core.Strided(data, 0), _core.Strided(data, 1), 8, 8, 8)


@pytest.mark.parametrize("at", [0, 1, 2**62, -1])
@pytest.mark.parametrize("huge", weight_streams.HUGE)
def test_sizes_that_no_memory_has_are_refused(at: int, huge: int) -> None:
    data = np.zeros(8, np.uint8)
    for nbytes, size, what in ((huge, 1, "out"), (1, huge, "stream")):
        places = {"out": 0, "stream": 0, what: at}
        with pytest.raises(IndexError, match=rf"{what}: bytes \[{at}, {at + huge}\) are outside its memory of 8"):
            _core.expand(*(_core.Strided(data, place) for place in places.values()), nbytes, size, 8)
        sizes = {"out": 1, "stream": 1, what: -huge}
        with pytest.raises(ValueError, match=f"{what}: dimensions must be >= 0, got -"):
            _core.expand(_core.Strided(data, 0), _core.Strided(data, 0), sizes["out"], sizes["stream"], 8)
