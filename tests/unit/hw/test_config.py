"""Device descriptions: what is accepted, what is refused, and the error texts."""

import copy
import json
import os
import pickle
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import ConfigError
from npusim.hw.build import walk
from npusim.hw.config import Config, list_configs, load_config
from npusim.hw.keys import MOVED, RENAMED, unused

LEAST = """
clock = "1 GHz"
[matrix]
rows = 4
cols = 4
dataflow = "weight_stationary"
throughput = { int8 = 1 }
[sram]
bytes = "64 KiB"
[dram]
bytes = "1 GiB"
bandwidth = "8 GB/s"
"""


def write(tmp_path, text, name="my.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(source):
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


SHIPPED = (
    "cpu_reference", "edge", "edge_tpu", "ethos_u55_128", "ethos_u65_256", "gemmini", "gemmini_mesh16", "intel_npu27",
    "intel_npu40", "k210", "mobile", "nvdla_1024", "nvdla_128", "nvdla_2048", "nvdla_256", "nvdla_32", "nvdla_512",
    "nvdla_64", "nvdla_small", "rk3566", "rk3588", "rk3588_core", "scalesim", "server", "tiny", "tpuv1", "tpuv4",
    "tpuv6e", "tpuv7",
)  # fmt: skip


def test_the_shipped_devices_are_those_that_the_manual_names():
    assert list_configs() == SHIPPED


@pytest.mark.parametrize("name", list_configs())
def test_every_shipped_device_loads(name):
    config = load_config(name)
    assert config.name == name
    assert config.description
    assert config.origin == f"configs/{name}.toml"
    assert config.dram.bytes >= {"k210": 2**23, "tiny": 2**30}.get(name, 2**31)


def test_figures_of_the_shipped_devices():
    def shape(name):
        config = load_config(name)
        return config.matrix.rows, config.matrix.cols, config.cores, config.clock_hz, config.sram.bytes

    assert shape("tiny") == (8, 8, 1, 10**9, 128 * 2**10)
    assert shape("edge") == (32, 32, 1, 10**9, 2**20)
    assert shape("mobile") == (64, 64, 1, 10**9, 4 * 2**20)
    assert shape("gemmini") == (16, 16, 1, 10**9, 256 * 2**10)
    assert shape("tpuv1") == (256, 256, 1, 700 * 10**6, 24 * 2**20)
    assert shape("server") == (128, 128, 4, 10**9, 16 * 2**20)
    assert load_config("gemmini").matrix.accumulator_bytes == 64 * 2**10
    assert load_config("tpuv1").matrix.accumulator_bytes == 4 * 2**20
    assert load_config("tpuv1").dram.bandwidth == 34 * 10**9
    assert not load_config("tpuv1").matrix.rate("float32")


def test_every_type_runs_on_tiny():
    matrix = load_config("tiny").matrix
    for dtype in ("int8", "uint8", "bool", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"):
        assert matrix.rate(dtype) == 1
    assert matrix.rate("int64") == 0


def test_a_file_of_the_required_keys_gets_defaults(tmp_path):
    config = load_config(write(tmp_path, LEAST))
    assert config.name == "my"
    assert (config.vector, config.scalar, config.energy) == (None, None, None)
    assert (config.cores, config.queue_depth, config.dma.channels, config.dram.kind) == (1, 16, 2, "fixed")
    assert config.dram.latency_ps == 100_000
    assert config.matrix.throughput == {"int8": Fraction(1)}
    assert config.matrix_hz == config.vector_hz == 10**9


def test_a_unit_may_have_a_clock_of_its_own(tmp_path):
    text = LEAST.replace("rows = 4", 'rows = 4\nclock = "1.5 GHz"') + '[vector]\nlanes = 8\nclock = "500 MHz"\n'
    config = load_config(write(tmp_path, text))
    assert (config.clock_hz, config.matrix_hz, config.vector_hz) == (10**9, 1_500_000_000, 500_000_000)


def test_a_config_passes_through():
    config = load_config("tiny")
    assert load_config(config) is config


ONE_CHANGE = [
    ("rows = 4", "rows = 0", "matrix.rows: must be >= 1, got 0"),
    ("rows = 4", "rows = 5000", "matrix.rows: must be <= 4096, got 5000"),
    ("rows = 4", 'rows = "4"', "matrix.rows: must be a whole number, got '4' (a string)"),
    ("rows = 4", "rows = true", "matrix.rows: must be a whole number, got True (a flag)"),
    ("rows = 4", "rows = 4.0", "matrix.rows: must be a whole number, got 4.0 (a number)"),
    (
        "rows = 4",
        "row = 4\nrows = 4",
        "matrix.row: unknown key (did you mean 'rows'?); allowed: rows, cols, dataflow, model, throughput, "
        "preload_hidden, weight_buffers, fill_drain, setup_cycles, accumulator_bytes, output_elements_per_cycle, "
        "clock, sums_shift_out, arrays, port_bytes_per_cycle, weight_bits, weight_scales, mesh, direct, "
        "grid",
    ),
    ("rows = 4", "", "matrix.rows: missing; must be given: PEs in a column of the array (whole number, 1 to 4096)"),
    (
        '"weight_stationary"',
        '"row_stationary"',
        "matrix.dataflow: must be one of weight_stationary, output_stationary, input_stationary, got 'row_stationary'",
    ),
    (
        "int8 = 1",
        "int8 = 1, int4 = 2",
        "matrix.throughput.int4: unknown key (did you mean 'int8'?); allowed: int8, int16, int32, float16, bfloat16, "
        "float32",
    ),
    ("int8 = 1", 'int8 = "1/0"', "matrix.throughput.int8: must be a number or a fraction such as \"1/2\", got '1/0'"),
    ("int8 = 1", "int8 = -1", "matrix.throughput.int8: must be >= 0, got -1"),
    ("int8 = 1", "int8 = 65", "matrix.throughput.int8: must be <= 64, got 65"),
    ("int8 = 1", "int8 = nan", 'matrix.throughput.int8: must be a number or a fraction such as "1/2", got nan'),
    ("int8 = 1", "int8 = 1e-7", "matrix.throughput.int8: must have a denominator <= 1048576, got 1e-07"),
    ("int8 = 1", "int8 = 0", "matrix.throughput: must be above 0 for at least one type"),
    (
        "{ int8 = 1 }",
        "1",
        "matrix.throughput: must be a table of int8, int16, int32, float16, bfloat16, float32, got 1",
    ),
    (
        '"1 GHz"',
        '"1 Gigahertz"',
        "clock: must be a frequency such as '1 GHz' (units: Hz, kHz, MHz, GHz), got '1 Gigahertz'",
    ),
    ('"1 GHz"', "1000000000", 'clock: must be a frequency with its unit, such as "1 GHz", got 1000000000'),
    ('"1 GHz"', '"0.1 Hz"', "clock: must be a whole number of Hz, got '0.1 Hz'"),
    ('"1 GHz"', '"1 Hz"', "clock: must be >= 1 kHz, got 1 Hz"),
    ('"1 GHz"', '"1000 GHz"', "clock: must be <= 100 GHz, got 1000 GHz"),
    (
        '"8 GB/s"',
        '"8 GB"',
        "dram.bandwidth: must be a bandwidth such as '25.6 GB/s' (units: B/s, kB/s, KiB/s, MB/s, MiB/s, GB/s, GiB/s, "
        "TB/s, TiB/s), got '8 GB'",
    ),
    ('"64 KiB"', "512", "sram.bytes: must be >= 4 KiB, got 512 B"),
    ('"64 KiB"', '"65 kB"', "sram.bytes: must be a multiple of banks * bytes_per_cycle = 256 B, got 65000 B"),
    ('"1 GiB"', '"1 MiB"\nefficiency = 0', "dram.efficiency: must be > 0, got 0"),
    ('"1 GiB"', '"1 GiB"\nkind = "ddr9"', "dram.kind: must be one of fixed, jedec, got 'ddr9'"),
    ("[dram]", "[dma]\nburst_bytes = 48\n[dram]", "dma.burst_bytes: must be a power of two, got 48 B"),
    ("[dram]", "[vector]\nlanes = 4\nlane_bytes = 3\n[dram]", "vector.lane_bytes: must be a power of two, got 3"),
    ("[dram]", "[vector]\nlanes = 4\npacked = 1\n[dram]", "vector.packed: must be true or false, got 1"),
    (
        "[dram]",
        "[vector]\nlanes = 4\ncost = { exp = 3 }\n[dram]",
        "vector.cost.exp: unknown key; allowed: simple, divide, sqrt, transcendental, convert, reduce",
    ),
    (
        "rows = 4",
        "rows = 4\nweight_buffers = 1",
        "matrix.weight_buffers: must be >= 2 with preload_hidden = true, got 1",
    ),
    (
        "rows = 4",
        "rows = 4\naccumulator_bytes = 8",
        "matrix.accumulator_bytes: must be 0 B or >= cols * 4 B = 16 B, got 8 B",
    ),
    ('clock = "1 GHz"', 'clock = "1 GHz"\nname = "a\\nb"', "name: must be one line of text, got 'a\\nb'"),
]


@pytest.mark.parametrize(("old", "new", "problem"), ONE_CHANGE)
def test_a_wrong_value_is_named_with_what_was_allowed(tmp_path, old, new, problem):
    assert old in LEAST
    path = write(tmp_path, LEAST.replace(old, new, 1))
    assert problems(path) == [f"{path}: {problem}"]


def test_every_problem_is_reported_not_only_the_first(tmp_path):
    text = LEAST.replace("rows = 4", "rows = 0").replace("cols = 4", "cool = 4").replace('"8 GB/s"', '"fast"')
    path = write(tmp_path, text + "speed = 3\n[turbo]\n")
    assert [line.removeprefix(f"{path}: ").partition(":")[0] for line in problems(path)] == [
        "turbo",
        "matrix.cool",
        "matrix.rows",
        "matrix.cols",
        "dram.speed",
        "dram.bandwidth",
    ]


def test_a_required_part_cannot_be_switched_off_and_an_optional_one_can(tmp_path):
    head = LEAST.partition("[matrix]")[0]
    path = write(
        tmp_path, head + "matrix = false\nsram = false\n[scalar]\n[dram]\nbytes = '1 GiB'\nbandwidth = '1 GB/s'"
    )
    assert problems(path) == [f"{path}: sram: must be a table, got False; only an optional part can be switched off"]
    path = write(tmp_path, path.read_text().replace("sram = false", "sram = { bytes = 4096 }"))
    assert load_config(path).matrix is None


def test_a_part_must_be_a_table(tmp_path):
    path = write(tmp_path, LEAST.replace('clock = "1 GHz"', 'clock = "1 GHz"\ndma = 4'))
    assert problems(path) == [f"{path}: dma: must be a table, got 4"]


def test_combinations_that_contradict_each_other_are_all_named(tmp_path):
    text = LEAST.replace('"64 KiB"', '"4 KiB"').replace('"1 GiB"', '"1 MiB"').replace("[sram]", "[sram]\nbanks = 64")
    path = write(tmp_path, text.replace("[dram]", "[dma]\nburst_bytes = 8192\n[dram]"))
    assert problems(path) == [f"{path}: sram.bytes: must hold one burst of dma.burst_bytes = 8192 B, got 4096 B"]
    path = write(tmp_path, LEAST.replace('"64 KiB"', '"4 MiB"').replace('"1 GiB"', '"1 MiB"'))
    assert problems(path) == [f"{path}: dram.bytes: must be >= the SRAM of all cores = 4 MiB, got 1 MiB"]


def test_a_device_needs_a_unit(tmp_path):
    path = write(tmp_path, 'clock = "1 GHz"\nsram = { bytes = 4096 }\ndram = { bytes = "1 GiB", bandwidth = "1 GB/s" }')
    assert problems(path) == [
        f"{path}: matrix: must be present, or vector, or scalar: a device needs a unit that computes"
    ]


def test_prices_may_be_given_for_some_actions_alone(tmp_path):
    energy = '[energy]\nmac = { int8 = "1 pJ" }\ndram_byte = "1 pJ"\n'
    energy += '[technology]\nnode = "22 nm"\n[area]\npe = "0.001 mm2"\n'
    config = load_config(write(tmp_path, LEAST + energy))
    assert (config.energy.mac["int8"], config.energy.dram_byte_fj, config.energy.sram_byte_fj) == (1000, 1000, None)
    assert (config.technology.node_nm, config.area.pe_um2, config.area.lane_um2) == (22, 1000, None)


def test_toml_that_cannot_be_read_names_the_line(tmp_path):
    path = write(tmp_path, 'clock = "1 GHz"\nrows = = 3\n')
    (line,) = problems(path)
    assert line.startswith(f"{path}: not valid TOML: ")
    assert "line 2" in line


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b'name = "\xff"')
    assert problems(path) == [f"{path}: not valid TOML: must be UTF-8 text, got byte 0xff at offset 8"]


def test_a_folder_is_no_description(tmp_path):
    assert problems(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]


KNOWN = f"known names: {', '.join(SHIPPED)}; anything else is a path to a TOML file"


def test_a_name_that_is_not_there_lists_those_that_are(tmp_path):
    assert problems("egde") == [f"egde: no such config (did you mean 'edge'?); {KNOWN}"]
    assert problems("quantum") == [f"quantum: no such config; {KNOWN}"]
    assert problems(f"{tmp_path}/no.toml") == [f"{tmp_path}/no.toml: no such file; {KNOWN}"]


def test_inheritance_changes_what_is_said_and_keeps_the_rest(tmp_path):
    path = write(
        tmp_path, 'inherit = "edge"\nscalar = false\n[dram]\nbandwidth = "8 GB/s"\n[matrix.throughput]\nint8 = 2\n'
    )
    config, edge = load_config(path), load_config("edge")
    assert config.name == "my"
    assert config.dram.bandwidth == 8 * 10**9
    assert config.matrix.throughput == {**edge.matrix.throughput, "int8": Fraction(2)}
    assert config.scalar is None
    same = config.with_(
        **{"dram.bandwidth": edge.dram.bandwidth, "matrix.throughput.int8": 1, "scalar": edge_scalar(edge)}
    )
    assert same.fingerprint() == edge.fingerprint()
    origins = {key: origin for key, _, origin, _ in config.resolved()}
    assert origins["dram.bandwidth"] == str(path)
    assert origins["dram.latency"] == "configs/edge.toml"
    assert origins["vector.clock"] == "default"


def edge_scalar(edge):
    return edge.to_table()["scalar"]


def test_inheritance_follows_paths_beside_the_file(tmp_path):
    (tmp_path / "below").mkdir()
    write(tmp_path, LEAST, "base.toml")
    path = write(tmp_path / "below", 'inherit = "../base.toml"\ncores = 2\n')
    assert load_config(path).cores == 2


def test_an_inherited_mistake_is_reported_where_it_was_made(tmp_path):
    base = write(tmp_path, LEAST.replace("rows = 4", "rows = 0"), "base.toml")
    path = write(tmp_path, 'inherit = "base.toml"\ncores = 0\n')
    assert problems(path) == [f"{path}: cores: must be >= 1, got 0", f"{base}: matrix.rows: must be >= 1, got 0"]


def test_inheritance_must_end(tmp_path):
    path = write(tmp_path, 'inherit = "other.toml"\n')
    other = write(tmp_path, 'inherit = "my.toml"\n', "other.toml")
    assert problems(path) == [f"{path}: inherit: must not form a cycle, got {path} -> {other} -> {path}"]
    path = write(tmp_path, 'inherit = "nothing"\n')
    assert problems(path) == [f"{path}: inherit: no such config 'nothing'; {KNOWN}"]
    path = write(tmp_path, "inherit = 3\n")
    assert problems(path) == [f"{path}: inherit: must be a config's name or a path, got 3"]


def test_inheritance_is_no_endless_way(tmp_path):
    for number in range(3000):
        write(tmp_path, f'inherit = "{number + 1}.toml"\n', f"{number}.toml")
    path = write(tmp_path, 'inherit = "tiny"\n', "3000.toml")
    assert load_config(path).cores == 1
    assert load_config(tmp_path / "2970.toml").cores == 1
    (problem,) = problems(tmp_path / "0.toml")
    assert problem == f"{tmp_path}/32.toml: inherit: must end within 32 files"


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "large"])
def test_a_description_is_a_file_of_moderate_size(tmp_path, kind):
    path = tmp_path / "base.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    said = {
        "large": "must have at most 16384 bytes, got 1099511627776",
        "directory": "cannot be read: Is a directory",
    }.get(kind, "cannot be read: is not a regular file")
    assert problems(path) == [f"{path}: {said}"]
    assert problems(write(tmp_path, 'inherit = "base.toml"\n')) == [f"{path}: {said}"]


MANY = 1500
TOO_DEEP = "not valid TOML: nested too deeply; must be at most 32 tables or lists deep"
TOO_LONG = "not valid TOML: an integer has too many digits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "[" * MANY + "]" * MANY, TOO_DEEP),
        ("x = " + "{a = " * MANY + "1" + "}" * MANY, TOO_DEEP),
        ("[" + ".".join("a" * MANY) + "]", TOO_DEEP),
        (".".join("a" * MANY) + " = 1", TOO_DEEP),
        ("queue_depth = " + "[" * 100 + "]" * 100, TOO_DEEP),
        (
            "queue_depth = " + "[" * 30 + "]" * 30,
            "queue_depth: must be a whole number, got [[[[[[[...]]]]]]] (a list)",
        ),
        ("queue_depth = " + "9" * 5000, TOO_LONG),
        ("queue_depth = 0x" + "f" * 5000, TOO_LONG),
        ("inherit = [{a = 0x" + "f" * 5000 + "}]", TOO_LONG),
        ("queue_depth = 0x" + "f" * 40, "queue_depth: must be <= 4096, got an integer of 160 bits"),
        ("sram.bytes = 0x" + "f" * 40, "sram.bytes: must be <= 16 GiB, got an integer of 160 bits B"),
        (
            "dram.efficiency = 0x" + "f" * 40,
            "dram.efficiency: must be <= 1, got an integer of 160 bits",
        ),
        ("dram.efficiency = 0." + "1" * 5000, "not valid TOML: a number has too many digits"),
        ("dram = [0x" + "f" * 40 + "]", "dram: must be a table, got [an integer of 160 bits]"),
        ("cores = '" + "x" * 9000 + "'", f"cores: must be a whole number, got '{'x' * 47}...{'x' * 48}' (a string)"),
    ],
)
def test_no_value_is_too_much_for_a_message(tmp_path, text, message):
    path = write(tmp_path, text if text.startswith("inherit") else f'inherit = "tiny"\n{text}\n')
    assert problems(path) == [f"{path}: {message}"]


def test_an_override_may_be_any_integer():
    with pytest.raises(ConfigError, match=r"queue_depth: must be <= 4096, got an integer of 16610 bits$"):
        load_config("tiny").with_(queue_depth=10**5000)


@pytest.mark.parametrize("name", ["k" * 5000, "a/" + "k" * 5000, "a\0b/c", "a\0b"])
def test_a_name_that_no_file_can_have(name, tmp_path):
    assert "; known names: " in problems(name)[0]
    path = write(tmp_path, f"inherit = {json.dumps(name)}\n")
    assert problems(path)[0].startswith(f"{path}: inherit: no such config ")


def test_overrides_are_checked_again():
    tiny = load_config("tiny")
    assert tiny.with_(**{"dram.bandwidth": "4 GB/s"}).dram.bandwidth == 4 * 10**9
    assert tiny.with_(**{"dram.bandwidth": 4 * 10**9}).dram.bandwidth == 4 * 10**9
    assert tiny.with_(**{"dram.latency_ps": 7, "clock_hz": 2_000_000}).dram.latency_ps == 7
    assert tiny.with_(matrix=None).matrix is None
    assert tiny.with_(**{"matrix.clock": "2 GHz"}).with_(**{"matrix.clock": None}) == tiny
    assert tiny.with_(cores=2).cores == 2
    assert tiny.cores == 1
    with pytest.raises(ConfigError) as caught:
        tiny.with_(**{"matrix.rows": 0, "dram.bandwith": 1, "turbo.speed": 1, "dram.bytes.x": 1})
    assert caught.value.problems == (
        "configs/tiny.toml: turbo: unknown key; allowed: name, description, clock, cores, queue_depth, matrix, vector, "
        "scalar, sram, dma, dram, constants, l2, interconnect, exchange, compiler, host, pci, firmware, technology, "
        "energy, area",
        "configs/tiny.toml: dram.bytes: unknown key (did you mean 'bytes'?); allowed: bytes, bandwidth, kind, latency, "
        "channels, efficiency, part, ranks, mapping, read_queue, write_queue, bank_queue, refresh, bank_refresh",
        "configs/tiny.toml (override): matrix.rows: must be >= 1, got 0",
        "configs/tiny.toml (override): dram.bandwith: unknown key (did you mean 'bandwidth'?); allowed: bytes, "
        "bandwidth, kind, latency, channels, efficiency, part, ranks, mapping, read_queue, write_queue, bank_queue, "
        "refresh, bank_refresh",
    )


@pytest.mark.parametrize("old", RENAMED)
def test_the_former_name_of_a_key_gives_its_new_name(old, tmp_path):
    (path,) = [path for path, entry, _ in walk(load_config("edge")) if entry.name == RENAMED[old]]
    section = path.rpartition(".")[0]
    with pytest.raises(ConfigError, match=rf"{section}\.{old}: renamed to '{RENAMED[old]}'$"):
        load_config("edge").with_(**{f"{section}.{old}": True})
    with pytest.raises(ConfigError, match=rf"{section}\.{old}: renamed to '{RENAMED[old]}'$"):
        load_config(write(tmp_path, f'inherit = "edge"\n[{section}]\n{old} = true\n'))


@pytest.mark.parametrize("old", MOVED)
def test_the_former_place_of_a_key_gives_its_new_place(old, tmp_path):
    assert MOVED[old] in [path for path, _, _ in walk(load_config("edge"))]
    with pytest.raises(ConfigError, match=rf"{old}: moved to '{MOVED[old]}'$"):
        load_config("edge").with_(**{old: 1})
    section, _, key = old.rpartition(".")
    text = f"[{section}]\n{key} = 1\n" if section else f"{key} = 1\n"
    with pytest.raises(ConfigError, match=rf"{old}: moved to '{MOVED[old]}'$"):
        load_config(write(tmp_path, f'inherit = "edge"\n{text}'))


@pytest.mark.parametrize("name", list_configs())
def test_the_printed_config_is_the_same_device(name, tmp_path):
    config = load_config(name)
    printed = load_config(write(tmp_path, config.to_toml()))
    assert printed == config
    assert printed.fingerprint() == config.fingerprint()
    for copied in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), config.with_()):
        assert copied == config
        assert hash(copied) == hash(config)


def test_the_fingerprint_is_of_the_numbers_only(tmp_path):
    tiny = load_config("tiny")
    assert tiny.with_(name="other", description="x").fingerprint() == tiny.fingerprint()
    one = load_config(write(tmp_path, LEAST)).fingerprint()
    assert load_config(write(tmp_path, LEAST + "latency = '100 ns' # as by default\n", "two.toml")).fingerprint() == one
    assert load_config(write(tmp_path, LEAST + "latency = '101 ns'\n", "two.toml")).fingerprint() != one


def every_number():
    return [key for key, text, _, _ in load_config("edge").resolved() if text.isdigit() and int(text) > 1]


@given(st.sampled_from(every_number()), st.integers(1, 3))
def test_every_number_changes_the_fingerprint(key, more):
    edge = load_config("edge")
    place = edge.to_table()
    *above, last = key.split(".")
    for name in above:
        place = place[name]
    try:
        changed = edge.with_(**{key: place[last] + more})
    except ConfigError:
        changed = edge.with_(**{key: place[last] * 2})
    no_effect = key in {f"dram.{entry.name}" for _, entry, _ in unused(edge.dram)}
    assert (changed.fingerprint() == edge.fingerprint()) == no_effect
    assert changed != edge


def test_origins_name_the_file_or_the_default():
    rows = {key: (text, origin) for key, text, origin, _ in load_config("tiny").with_(**{"dma.channels": 3}).resolved()}
    assert rows["dma.channels"] == ("3", "override")
    assert rows["dram.latency"] == ('"100 ns"', "configs/tiny.toml")
    assert rows["matrix.clock"] == ("(the device's clock)", "default")
    assert len(rows) == sum(1 for _ in load_config("tiny").resolved())


def test_loading_is_light():
    code = "import sys; from npusim.hw.config import load_config; load_config('edge'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "onnx", "simpy", "difflib", "json", "hashlib"} & set(loaded)


def test_a_config_is_frozen():
    with pytest.raises(AttributeError):
        load_config("tiny").cores = 2
    with pytest.raises(TypeError):
        load_config("tiny").matrix.throughput["int8"] = 3
    assert isinstance(load_config("tiny"), Config)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_words(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert all(line.startswith(f"{path}: ") for line in caught.value.problems)


def every_key():
    return [key for key, _, _, _ in load_config("edge").resolved()]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([*every_key(), "matrix", "dram", "matrix.throughput.int8", "x", "a.b"]), ANYTHING)
def test_any_value_is_taken_or_refused_in_words(key, value):
    edge = load_config("edge")
    refused = []
    try:
        edge = edge.with_(**{key: value})
    except ConfigError as error:
        refused += error.problems
    assert all("\n" not in line and line.startswith("configs/edge.toml") for line in refused)
    assert len(edge.fingerprint()) == 64


def test_toml_that_is_nested_too_deeply(tmp_path):
    path = write(tmp_path, "x = " + "[" * 5000)
    (line,) = problems(path)
    assert line.startswith(f"{path}: not valid TOML: ")


def test_origins_of_a_table_name_everyone_who_says_a_part(tmp_path):
    path = write(tmp_path, 'inherit = "edge"\n[matrix.throughput]\nint8 = 2\n')
    origins = {key: origin for key, _, origin, _ in load_config(path).resolved()}
    assert origins["matrix.throughput"] == f"{path}, configs/edge.toml"


def test_a_name_is_not_inherited(tmp_path):
    base = write(tmp_path, 'name = "first"\n' + LEAST, "base.toml")
    assert load_config(base).name == "first"
    assert load_config(write(tmp_path, 'inherit = "base.toml"\n')).name == "my"
    assert load_config(write(tmp_path, 'name = "second"\ninherit = "base.toml"\n')).name == "second"
