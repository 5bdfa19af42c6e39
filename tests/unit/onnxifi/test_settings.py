"""Which devices are backends: environment, file, default; and the errors for invalid ones."""

from __future__ import annotations

import os

import pytest

from hal.onnxifi import engine
from hal.onnxifi.settings import DEFAULT_BACKENDS, read_settings, settings_file
from hal.onnxifi.status import OnnxifiError, Status
from npusim.errors import ConfigError
from tests.support.planted_files import promptly


def names():
    return [config.name for config in read_settings().backends]


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The user's settings file, which does not exist yet; the environment names no devices."""
    monkeypatch.delenv("NPUSIM_ONNXIFI_BACKENDS")
    (tmp_path / "npusim").mkdir()
    return tmp_path / "npusim" / "onnxifi.toml"


def test_the_default_is_two_devices(file):
    assert names() == list(DEFAULT_BACKENDS)
    assert len(DEFAULT_BACKENDS) >= 2
    assert settings_file() == file


def test_the_file_names_devices_and_paths_beside_it(file, tmp_path):
    (file.parent / "mine.toml").write_text('inherit = "tiny"\n')
    file.write_text('backends = ["mobile", "mine.toml"]\nlenient = true\n')
    assert names() == ["mobile", "mine"]
    assert read_settings().lenient


def test_the_environment_goes_before_the_file(file, monkeypatch):
    file.write_text('backends = ["mobile"]\nlenient = true\n')
    monkeypatch.setenv("NPUSIM_ONNXIFI_BACKENDS", " edge , edge,tiny")
    monkeypatch.setenv("NPUSIM_ONNXIFI_LENIENT", "0")
    assert names() == ["edge", "edge", "tiny"]
    assert not read_settings().lenient


def test_another_file_can_be_named(file, tmp_path, monkeypatch):
    other = tmp_path / "other.toml"
    other.write_text('backends = ["tiny"]')
    monkeypatch.setenv("NPUSIM_ONNXIFI_CONFIG", str(other))
    assert names() == ["tiny"]
    other.unlink()
    with pytest.raises(ConfigError, match=r"NPUSIM_ONNXIFI_CONFIG: no such file"):
        read_settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backends = 3", r"onnxifi\.toml: backends: must be a list, got 3"),
        ("backends = [1]", "backends: must be names or paths"),
        ('backends = ["nobody"]', "no such config"),
        ("lenient = 1", "lenient: must be a bool, got 1"),
        ("speed = 9", "speed: unknown key; known are backends, lenient"),
        ("= 9", "not valid TOML"),
        ("lenient = " + "9" * 5000, "not valid TOML: an integer has too many digits"),
        ("lenient = 0x" + "f" * 5000, "not valid TOML: an integer has too many digits"),
        ("backends" + ".a" * 1500 + " = 1", "nested too deeply"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(file, text, message):
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings()


def test_a_pipe_is_no_file_of_settings(file):
    os.mkfifo(file)
    with promptly(), pytest.raises(ConfigError, match=r"onnxifi\.toml: cannot be read: is not a regular file$"):
        read_settings()


@pytest.mark.parametrize("text", ["tiny,,edge", "nobody", "/nowhere/x.toml"])
def test_a_wrong_list_of_devices_is_an_internal_error_to_clients(monkeypatch, caplog, text):
    monkeypatch.setenv("NPUSIM_ONNXIFI_BACKENDS", text)
    with pytest.raises(OnnxifiError) as caught:
        engine.device_count()
    assert caught.value.status is Status.INTERNAL_ERROR
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # a program in C shows it without asking
    assert "Traceback" not in caplog.text


def test_a_switch_is_0_or_1(monkeypatch):
    monkeypatch.setenv("NPUSIM_ONNXIFI_LENIENT", "yes")
    with pytest.raises(ConfigError, match="NPUSIM_ONNXIFI_LENIENT: must be 0 or 1, got 'yes'"):
        read_settings()
