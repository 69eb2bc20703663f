"""The chip configuration: what is read, what is refused, what is generated."""

from __future__ import annotations

import copy
import gzip
import importlib.resources
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.config import (
    PimConfig,
    builtin_configs,
    load_config,
    read_config,
)
from raptor_cp.targets.pim.config_writer import write_simulator_config
from raptor_cp.targets.pim.mesh import (
    SHIPPED_RULE,
    MeshRule,
    mesh_network,
    network_json,
)

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "pimsim"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="reference data ../shared not present"
)

SHIPPED = {
    "arch-a": (168, 96, (128, 128), (12, 14)),
    "arch-b": (138, 128, (128, 128), (12, 12)),
    "arch-c": (64, 8, (512, 1024), (8, 8)),
}


def chip(**core: Any) -> dict[str, Any]:
    """A small valid configuration of two cores."""
    matrix = {
        "xbar_array_count": 4,
        "period": 1,
        "dac_count": 16,
        "adc_count": 2,
        "xbar_size": [16, 16],
        "cell_precision": 2,
        "xbar_latency": 30,
    }
    memory = {"data_width": 64, "period": 1}
    memory |= {"read_latency_cycle": 1, "write_latency_cycle": 1}
    return {
        "chip_config": {
            "core_cnt": 2,
            "core_config": {
                "matrix_config": matrix,
                "local_memory_config": memory,
                **core,
            },
            "global_memory_config": copy.deepcopy(memory),
            "network_config": {"bus_width": 8, "net_config_file_path": "net.json"},
        }
    }


def table(cores: int = 2) -> dict[str, Any]:
    latency: dict[str, dict[str, object]] = {
        str(a): {str(b): 4 for b in range(cores) if b != a} for a in range(cores)
    }
    for row in latency.values():
        row["-10"] = 15
    return {"latency": latency, "energy": {}}


def read(document: object, network: object = None) -> PimConfig:
    text = json.dumps(table() if network is None else network).encode()
    return read_config(document, "chip.json", lambda _: text)


def test_defaults_are_those_of_the_simulator() -> None:
    config = read(chip())
    assert config.core.rob_size == 1
    assert config.core.matrix.dac_latency_cycle == 1
    assert config.core.vector_width == 16
    assert config.global_memory_id == -10
    assert config.core.local_memory.static_power_mw == 1.0
    assert config.network.latency_ns.tolist() == [[0, 4, 15], [4, 0, 15], [0, 0, 0]]


def test_matrix_period_defaults_to_the_odd_clock() -> None:
    document = chip()
    del document["chip_config"]["core_config"]["matrix_config"]["period"]
    assert read(document).core.matrix.period_ns == Fraction(25, 32)


def test_reorder_buffer_is_kept_not_refused() -> None:
    assert read(chip(rob_size=4)).core.rob_size == 4


def test_unknown_keys_are_reported_with_the_nearest_known_key() -> None:
    config = read(chip(vector_widht=64))
    assert config.core.vector_width == 16
    (ignored,) = config.ignored_keys
    assert ignored == ("chip_config.core_config.vector_widht (similar to vector_width)")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("core_cnt", 0, ("core_cnt", "got 0", "from 1")),
        ("core_cnt", True, ("core_cnt", "True", "integer")),
        ("core_cnt", 10**9, ("core_cnt", "1000000000")),
        ("core_config.period", 0, ("core_config.period", "> 0")),
        ("core_config.period", -1.5, ("core_config.period", "-1.5")),
        ("core_config.period", "1", ("core_config.period", "'1'", "number")),
        ("core_config.vector_width", 0, ("vector_width", "from 1")),
        ("core_config.vector_latency_cycle", -4, ("vector_latency_cycle", "-4")),
        ("core_config.rob_size", 0, ("rob_size", "from 1")),
        ("core_config.scalar_dynamic_power", -1, ("scalar_dynamic_power", ">= 0")),
        ("core_config.matrix_config", 3, ("matrix_config", "JSON object")),
        ("core_config.matrix_config.xbar_size", [16], ("xbar_size", "two integers")),
        ("core_config.matrix_config.xbar_size", [16, 0], ("xbar_size", "from 1")),
        ("core_config.matrix_config.dac_count", 17, ("dac_count", "17", "most 16")),
        ("core_config.matrix_config.adc_count", 17, ("adc_count", "17", "most 16")),
        ("core_config.matrix_config.pipeline_mode", 1, ("pipeline_mode", "true or")),
        ("core_config.local_memory_config.data_width", 0, ("data_width", "from 1")),
        ("core_config.global_memory_switch_id", -9, ("switch_id", "-9", "-10")),
        ("global_memory_switch_id", 1, ("switch_id", "1")),
        ("global_memory_config.period", 0, ("global_memory_config.period", "> 0")),
        ("network_config.bus_width", 0, ("bus_width", "from 1")),
        ("network_config.net_config_file_path", "", ("net_config", "non-empty")),
    ],
)
def test_misuse_names_key_value_and_expectation(
    path: str, value: object, words: tuple[str, ...]
) -> None:
    document = chip()
    place = document["chip_config"]
    *parents, last = path.split(".")
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(MalformedInput) as error:
        read(document)
    message = str(error.value)
    assert message.startswith("chip.json: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "path",
    [
        "chip_config",
        "chip_config.core_cnt",
        "chip_config.core_config",
        "chip_config.core_config.matrix_config",
        "chip_config.core_config.matrix_config.xbar_array_count",
        "chip_config.core_config.local_memory_config",
        "chip_config.global_memory_config",
        "chip_config.network_config",
        "chip_config.network_config.net_config_file_path",
    ],
)
def test_missing_key_is_named(path: str) -> None:
    document: dict[str, Any] = chip()
    place = document
    *parents, last = path.split(".")
    for key in parents:
        place = place[key]
    del place[last]
    with pytest.raises(MalformedInput, match=f"{path}: missing key"):
        read(document)


def test_missing_pair_of_the_network_table_is_named() -> None:
    network = table()
    del network["latency"]["1"]["0"]
    with pytest.raises(MalformedInput, match=r"latency\.1\.0: the pair is missing"):
        read(chip(), network)
    network = table()
    del network["latency"]["0"]["-10"]
    with pytest.raises(MalformedInput, match=r"latency\.0\.-10: the pair is missing"):
        read(chip(), network)
    network = table()
    del network["latency"]["1"]
    with pytest.raises(MalformedInput, match=r"latency\.1: .*no links from a core"):
        read(chip(), network)


@pytest.mark.parametrize("value", [-1, 2.5, "4", None, True])
def test_wrong_latency_is_named(value: object) -> None:
    network = table()
    network["latency"]["0"]["1"] = value
    with pytest.raises(MalformedInput, match=r"latency\.0\.1: wrong value"):
        read(chip(), network)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "no JSON object"),
        ('{"chip_config": {"core_cnt": NaN}}', "not a number"),
        ('{"chip_config": {"core_cnt": 1e999}}', "out of range"),
        ('{"a": 1, "a": 2}', "duplicate key"),
        ("[" * 100_000, "not valid JSON"),
        ("\xff", "not valid JSON"),
    ],
)
def test_bad_text(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "chip.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(MalformedInput, match=words) as error:
        load_config(path)
    assert str(path) in str(error.value)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="arch-a, arch-b, arch-c"):
        load_config("arch-q")
    path = tmp_path / "chip.json"
    path.write_text(json.dumps(chip()))
    with pytest.raises(MalformedInput, match=r"net\.json: cannot read"):
        load_config(path)


def test_gzip_is_accepted_and_damage_is_reported(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_bytes(gzip.compress(json.dumps(table()).encode()))
    whole = gzip.compress(json.dumps(chip()).encode())
    path = tmp_path / "chip.json"
    path.write_bytes(whole)
    assert load_config(path).core_count == 2
    path.write_bytes(whole[:-20])
    with pytest.raises(MalformedInput, match="damaged gzip"):
        load_config(path)


def test_overrides() -> None:
    config = load_config(
        "arch-a", core_count=20, crossbar_count=7, crossbar_size=(256, 512)
    )
    assert (config.core_count, config.crossbars_per_core) == (20, 7)
    assert config.crossbar_size == (256, 512)
    assert config.network.cores == 20
    whole = load_config("arch-a").network.latency_ns
    np.testing.assert_array_equal(config.network.latency_ns[:20, 20], whole[:20, 168])
    again = load_config("arch-a").with_overrides(core_count=20)
    np.testing.assert_array_equal(again.network.latency_ns, config.network.latency_ns)


@pytest.mark.parametrize(
    "override",
    [
        {"core_count": 0},
        {"core_count": 169},
        {"core_count": 10**7},
        {"crossbar_count": -1},
        {"crossbar_size": 64},  # fewer rows than DACs
        {"crossbar_size": (128, 0)},
    ],
)
def test_bad_overrides(override: dict[str, Any]) -> None:
    with pytest.raises(MalformedInput):
        load_config("arch-a", **override)


def test_shipped_configurations() -> None:
    assert builtin_configs() == tuple(SHIPPED)
    for name, (cores, crossbars, size, layout) in SHIPPED.items():
        config = load_config(name)
        assert config.core_count == cores
        assert config.crossbars_per_core == crossbars
        assert config.crossbar_size == size
        assert config.layout == layout
        assert config.core.matrix.cell_precision == 2
        assert config.ignored_keys == ()


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_tables_are_what_the_generator_makes(name: str) -> None:
    cores, _, _, layout = SHIPPED[name]
    folder = importlib.resources.files("raptor_cp.targets.pim") / "configs"
    packed = (folder / f"{name}.network.json.gz").read_bytes()
    assert len(packed) <= 400_000
    made = network_json(mesh_network(layout, cores, SHIPPED_RULE))
    assert gzip.decompress(packed) == made.encode()


@needs_shared
def test_arch_a_has_the_published_constants() -> None:
    published = load_config(SHARED / "squeezenet-program" / "config.json")
    ours = load_config("arch-a")
    assert ours.core == published.core
    assert ours.global_memory == published.global_memory
    assert ours.bus_width == published.bus_width
    assert ours.layout == published.layout
    # The published table is uniform; the mesh keeps its mean within 5 %.
    uniform = mesh_network((12, 14), 168, MeshRule(10, 0, 100))
    np.testing.assert_array_equal(
        published.network.latency_ns[:168], uniform.latency_ns[:168]
    )
    mean = ours.network.latency_ns[:168, :168].sum() / (168 * 167)
    assert 9.5 <= mean <= 10.5


@needs_shared
def test_mesh_rule_is_the_envelope_of_the_simulators_own_table() -> None:
    published = load_config(SHARED / "lat.json").network.latency_ns
    envelope = mesh_network((8, 8), 64, MeshRule(2, 2, 15)).latency_ns
    assert (published >= envelope).all()
    assert (published[:64, 64] == envelope[:64, 64]).all()
    assert (published == envelope).mean() > 0.15


def test_mesh_needs_room() -> None:
    with pytest.raises(MalformedInput, match="do not fit"):
        mesh_network((2, 2), 5, SHIPPED_RULE)


def test_written_configuration_reads_back(tmp_path: Path) -> None:
    config = load_config("arch-c", core_count=5, crossbar_count=3)
    again = load_config(write_simulator_config(config, tmp_path))
    assert again.core == config.core
    assert again.core_count == 5
    np.testing.assert_array_equal(again.network.latency_ns, config.network.latency_ns)
    np.testing.assert_array_equal(again.network.energy_pj, config.network.energy_pj)
