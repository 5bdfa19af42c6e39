"""Search, FarmHash, Philox and sampling."""

from __future__ import annotations

import numpy as np
import pytest

from npusim import _core

FINGERPRINTS = {
    0: 0x9AE16A3B2F90404F, 1: 0x08EED28183B191A2, 3: 0xFA0C4CF47921C66C, 4: 0x8B91B139C7083734, 7: 0xAD4BEB9C1D416170,
    8: 0x699C67394FF000F8, 12: 0x7AE2BED45F180D47, 16: 0x683AA5B3E2770783, 17: 0x442E01ACF3DB86A2,
    24: 0xDA13761EC3DBE341, 32: 0xAD12DDAC79216D9E, 33: 0x0858750C18FE7730, 48: 0x83B14B86596BDDAD,
    63: 0xCC1EC13283008CDC, 64: 0xF8DC001D33B317C6, 65: 0x7F96A62AEF0CCA9E, 127: 0xBFA69095D8555E67,
    128: 0x44B135DF71E02BDE, 129: 0x4F81C85A4E0CF89A, 200: 0x50D072567E0D7B01, 256: 0x53BBF922D8D6B0BB,
    300: 0xADADAC8B83A2AB7D,
}  # fmt: skip
"""Fingerprints from Google's farmhash of the bytes of ``message``, by their number."""


def message(count: int) -> bytes:
    return bytes((7 * i + 13 * count + 5) % 256 for i in range(count))


@pytest.mark.parametrize("count", FINGERPRINTS)
def test_fingerprints_are_those_of_farmhash(count: int) -> None:
    assert _core.fingerprint64(message(count)) == FINGERPRINTS[count]


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)  # fmt: skip
def test_philox_gives_the_known_answers(counter: list[int], key: tuple[int, int], wanted: list[int]) -> None:
    """The published test vectors for ten rounds of Philox 4x32."""
    out = np.zeros(4, np.uint32)
    _core.philox(np.array(counter, np.uint32), *key, out)
    assert out.tolist() == wanted


def test_lsh_bits_are_the_signs_of_weighted_fingerprints() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.normal(0, 1, (3, 5)).astype(np.float32)
    items = rng.integers(0, 256, (4, 6)).astype(np.uint8)
    weights = rng.normal(0, 1, 4).astype(np.float32)
    bits = np.full((3, 5), 9, np.uint8)
    _core.lsh_bits(seeds, items, weights, bits)
    for i, j in np.ndindex(3, 5):
        prints = [_core.fingerprint64(seeds[i, j].tobytes() + item.tobytes()) for item in items]
        signed = np.array(prints, np.uint64).astype(np.int64).astype(np.float64)
        assert bits[i, j] == (float((weights.astype(np.float64) * signed).sum()) > 0)
    assert 0 < bits.sum() < 15


def test_keys_are_found() -> None:
    rng = np.random.default_rng(1)
    for count in (0, 1, 2, 7, 100):
        keys = np.sort(rng.choice(np.arange(-300, 300), count, replace=False)).astype(np.int32)
        lookups = np.concatenate([keys, rng.integers(-400, 400, 20).astype(np.int32)])
        lookups = np.concatenate([lookups, np.array([-(2**31), 2**31 - 1], np.int32)])
        places, hits = np.full(lookups.size, 7, np.int32), np.full(lookups.size, 7, np.uint8)
        _core.search_keys(lookups, keys, places, hits)
        at = {int(key): place for place, key in enumerate(keys)}
        assert hits.tolist() == [int(key in at) for key in lookups.tolist()]
        assert places.tolist() == [at.get(key, 0) for key in lookups.tolist()]


def draw(logits: object, samples: int, key: tuple[int, int]) -> np.ndarray:
    array = np.array(logits, np.float32)
    out = np.full((array.shape[0], samples), -1, np.int32)
    _core.multinomial(array, *key, out)
    return out


def test_samples_come_as_often_as_their_logits_say() -> None:
    logits = np.array([[0.0, 1.0, 2.0, -1.0], [100.0, 99.0, -300.0, 100.0]])
    wanted = np.exp(logits - logits.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    out = draw(logits, 40_000, (1, 2))
    for row, chances in zip(out, wanted, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / row.size, chances, atol=0.01)


def test_samples_follow_from_the_seeds() -> None:
    logits = [[0.0] * 50] * 2
    one = draw(logits, 20, (1, 2))
    np.testing.assert_array_equal(one, draw(logits, 20, (1, 2)))
    assert (one != draw(logits, 20, (1, 3))).mean() > 0.8
    assert (one != draw(logits, 20, (2, 2))).mean() > 0.8
    assert (one[0] != one[1]).mean() > 0.8, "rows do not repeat each other"
    np.testing.assert_array_equal(draw(logits[:1], 40, (1, 2)).reshape(2, 20), one, err_msg="one stream for all rows")


def test_an_impossible_class_is_never_drawn() -> None:
    out = draw([[-np.inf, 0.0, -np.inf]], 1000, (5, 6))
    assert (out == 1).all()
