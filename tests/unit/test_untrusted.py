"""The reader of untrusted files: what it refuses, the error texts, and that it never waits."""

from __future__ import annotations

import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import ConfigError, InputError, UsageError
from npusim.untrusted import DEEPEST, MOST_DIGITS, MOST_VALUES, TOML_BYTES, FileKind

KIND = FileKind("test", 1000, InputError)
LARGE = FileKind("test", 1 << 24, InputError)
TOML = FileKind("test", TOML_BYTES, ConfigError, ConfigError)


def refused(call, error=InputError):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("read", [KIND.read, KIND.text, KIND.json, KIND.toml])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such file"),
        (os.mkfifo, "cannot be read: is not a regular file"),
        (os.mkdir, "cannot be read: Is a directory"),
        (lambda path: os.symlink("/dev/zero", path), "cannot be read: is not a regular file"),
        (lambda path: os.symlink(path, path), "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_only_a_regular_file_is_read(tmp_path, read, make, said):
    path = tmp_path / "f"
    make(path)
    assert refused(lambda: read(path), UsageError) == f"{path}: {said}"


def test_a_socket_and_a_name_that_no_file_can_have(tmp_path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "s"))
        assert "cannot be read" in refused(lambda: KIND.read(tmp_path / "s"), UsageError)
    assert refused(lambda: KIND.read("a\0b"), UsageError).endswith("cannot be read: is not a path")


def test_links_are_followed_where_the_kind_says_so(tmp_path):
    (tmp_path / "f").write_bytes(b"1")
    (tmp_path / "l").symlink_to(tmp_path / "f")
    assert KIND.read(tmp_path / "l") == b"1"
    strict = FileKind("test", 1000, InputError, links=False)
    assert strict.read(tmp_path / "f") == b"1"
    assert refused(lambda: strict.read(tmp_path / "l"), UsageError).endswith("cannot be read: is a symbolic link")


def test_a_file_may_have_so_many_bytes_and_no_more(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(1000))
    assert KIND.read(path) == bytes(1000)
    path.write_bytes(bytes(1001))
    assert refused(lambda: KIND.read(path)) == f"{path}: must have at most 1000 bytes, got 1001"
    os.truncate(path, 1 << 40)
    assert "got 1099511627776" in refused(lambda: KIND.read(path))
    # As long as it likes, and no size at all.
    assert refused(lambda: KIND.read("/proc/self/smaps")) == "/proc/self/smaps: must have at most 1000 bytes, got more"
    assert KIND.read("/proc/self/comm")


def test_text_is_utf_8_and_a_label_takes_the_place_of_the_path(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"a\xff")
    for read in (KIND.text, KIND.json, KIND.toml):
        assert "label: " in refused(lambda read=read: read(path, "label"))
        assert "must be UTF-8 text, got byte 0xff at offset 1" in refused(lambda read=read: read(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("9" * (MOST_DIGITS + 1), "an integer has too many digits"),
        ("9" * 1_000_000, "an integer has too many digits"),
        ("0." + "9" * MOST_DIGITS, "a number has too many digits"),
        ("1e999", "1e999 is too large a number"),
        ("NaN", "NaN is not a JSON number"),
        ("-Infinity", "-Infinity is not a JSON number"),
        ('{"a": 1, "a": 1}', "an object has a key twice"),
        ('["\\ud800"]', "half of a surrogate pair"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
        ("[" + "0," * MOST_VALUES + "0]", f"has more than {MOST_VALUES} values"),
        ("[1,", "Expecting value"),
        ("", "Expecting value"),
    ],
)
def test_json_that_is_refused(tmp_path, text, said):
    path = tmp_path / "f"
    path.write_text(text)
    message = refused(lambda: LARGE.json(path))
    assert message.startswith(f"{path}: not valid JSON: ")
    assert said in message
    assert len(message) < len(str(path)) + 200


def test_the_last_that_is_allowed(tmp_path):
    path = tmp_path / "f"
    for text in ("[" * DEEPEST + "]" * DEEPEST, "9" * MOST_DIGITS, '"\\ud83d\\ude00"'):
        path.write_text(text)
        assert LARGE.json(path) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deeply"),
        ("a = " + "[" * 5000, "nested too deeply"),
        (".".join("a" * (DEEPEST + 2)) + " = 1", "nested too deeply"),
        ("a = " + "9" * 10_000, "an integer has too many digits"),
        ("a = 0x" + "f" * 10_000, "an integer has too many digits"),
        ("a = 0." + "9" * 100, "a number has too many digits"),
        ("a = [", "Invalid value"),
        ("a = 1 # " + "x" * TOML_BYTES, "must have at most 16384 bytes"),
    ],
)
def test_toml_that_is_refused(tmp_path, text, said):
    path = tmp_path / "f"
    path.write_text(text)
    message = refused(lambda: TOML.toml(path), ConfigError)
    assert message.startswith(f"{path}: ")
    assert said in message


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(st.text(), below, max_size=5),
    max_leaves=30,
)


@given(VALUES)
def test_all_that_json_writes_is_read_again(value):
    assert LARGE.parse_json(json.dumps(value).encode(), "f") == value
    assert LARGE.parse_json(json.dumps(value, ensure_ascii=False).encode(), "f") == value


@given(st.binary(max_size=60) | st.text('[]{}",:0123456789e-\\untrue', max_size=60).map(str.encode))
def test_json_is_read_or_refused(data):
    try:
        LARGE.parse_json(data, "f")
    except InputError as error:
        assert str(error).startswith("f: not valid JSON: ")  # noqa: PT017 - most data are refused, some are not
