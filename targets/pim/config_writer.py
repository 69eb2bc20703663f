"""The configuration as files that the simulator reads.

Our reader accepts gzip and overrides; the simulator wants plain JSON with the
final numbers.  Everything that the original file says is kept.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.targets.pim.mesh import network_json

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.targets.pim.config import PimConfig


def simulator_config(
    config: PimConfig,
    network_file: str,
    *,
    sim_mode: int = 1,
    sim_time_ms: float = 1.0,
) -> str:
    """Text of the configuration file, overrides applied.

    Args:
        config: the chip.
        network_file: path of the network table relative to the configuration.
        sim_mode: 0 throughput, 1 latency.
        sim_time_ms: simulated milliseconds in throughput mode.
    """
    document = _section(_plain(dict(config.document)))
    chip = _section(document["chip_config"])
    chip["core_cnt"] = config.core_count
    matrix = _section(_section(chip["core_config"])["matrix_config"])
    matrix["xbar_array_count"] = config.crossbars_per_core
    matrix["xbar_size"] = list(config.crossbar_size)
    _section(chip["network_config"])["net_config_file_path"] = network_file
    document["sim_config"] = {
        "sim_mode": sim_mode,
        "sim_time": sim_time_ms,
        "report_verbose_level": 1,
    }
    return json.dumps(document, indent=1) + "\n"


def write_simulator_config(
    config: PimConfig,
    folder: Path,
    *,
    sim_mode: int = 1,
    sim_time_ms: float = 1.0,
) -> Path:
    """Write ``config.json`` and ``network.json`` to ``folder``; return the former."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(
        simulator_config(
            config, "network.json", sim_mode=sim_mode, sim_time_ms=sim_time_ms
        ),
        encoding="utf-8",
    )
    (folder / "network.json").write_text(
        network_json(config.network, config.global_memory_id), encoding="utf-8"
    )
    return path


def _section(value: object) -> dict[str, object]:
    if not isinstance(value, dict):  # the reader has checked it
        raise TypeError("not a JSON object")
    return value


def _plain(value: object) -> object:
    """A deep copy in which exact fractions are floats again."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Fraction) else value
