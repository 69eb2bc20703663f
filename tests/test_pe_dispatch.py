"""``raptor-cp dispatch``, scenarios of elements, advice on large composites."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from raptor_cp.cli.dispatch import dispatch
from raptor_cp.cli.fusion_advice import advised, split_plan
from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import loads
from raptor_cp.targets.pe.analysis import analyse_scenario, scenario_topology
from raptor_cp.targets.pe.command_spec import read_commands
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    DmaReadCmd,
    GemmCmd,
    MathCmd,
    OpSpec,
    PeCpuOverheadCmd,
    TensorHandle,
)
from raptor_cp.targets.pe.cost_model import CompositeTooLarge, PeCostModel
from raptor_cp.targets.pe.kernels import KERNELS
from raptor_cp.targets.pe.op_log import OpLog
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from typer.testing import Result

ROOT = Path(__file__).resolve().parent.parent
APP = typer.Typer()
APP.command()(dispatch)

HEAD = "schema: raptor-cp/1\nname: attention\n"
TASKS = """
target: {kind: pe}
mode: latency
network:
  tasks:
    - id: load
      commands:
        - tensor: {name: far, shape: [64, 64], space: hbm}
        - tensor: {name: near, shape: [64, 64]}
        - {type: dma_read, src: far, dst: near}
        - {type: cpu, cycles: 12}
    - id: product
      commands:
        - tensor: {name: a, shape: [64, 64]}
        - tensor: {name: b, shape: [64, 64]}
        - {type: gemm, a: a, b: a, out: b, mkn: [64, 64, 64]}
        - {type: math, op: exp, operands: [b], out: b}
        - type: composite
          ops: [{kind: add, operands: {x: b, y: b}, out: b}]
          rw_handles: [b]
  edges: [{src: load, dst: product, bytes: 8192}]
"""


def run(*args: str) -> Result:
    return CliRunner().invoke(APP, list(args))


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_has_a_report(name: str) -> None:
    result = run(name, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "raptor-cp/dispatch/1"
    (kernel,) = document["kernels"]
    assert kernel["kernel"] == name
    assert kernel["dispatch_cycles"] > 0
    assert kernel["fixed_share"] + kernel["bytes_share"] == pytest.approx(1)


def test_large_cycle_counts_stand_in_full() -> None:
    result = run("gemm_primitive", "--param", "m=16384")
    assert result.exit_code == 0
    assert "gemm_primitive: 1,481,291.5 cycles" in result.stderr
    assert "queue was full for 1,348,741 cycles" in result.stderr
    assert "e+0" not in result.stderr


def test_help_names_every_kernel() -> None:
    text = " ".join(run("--help").stdout.split())
    assert [name for name in KERNELS if name not in text] == []


def test_people_read_standard_error() -> None:
    result = run("gqa_decode_opt2", "--param", "tiles=2")
    assert result.exit_code == 0
    assert result.stdout == ""
    for word in ("CompositeCmd", "FIXED is", "DMA: busy", "starves", "busiest"):
        assert word in result.stderr
    assert run("gqa_decode_opt2", "--quiet").stderr == ""


def test_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace, log, plot = (tmp_path / name for name in ("t.json", "o.jsonl", "p.svg"))
    result = run(
        "gqa_decode_opt3",
        *("--param", "tiles=2", "--sweep", "R=0.25,0.0625,FIXED_SINGLE=8,40"),
        *("--trace", str(trace), "--op-log", str(log), "--plot", str(plot), "--json"),
    )
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["sensitivity"]["rows"]) == 4
    assert json.loads(trace.read_text())["traceEvents"]
    assert len(OpLog.from_bytes(log.read_bytes()).commands) == 23
    assert plot.read_text().startswith("<?xml")


def test_a_topology_file_changes_the_figures(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("pe: {attrs: {pe_cost_model: {fixed_per_cmd_cycles: 100}}}")
    document = json.loads(
        run("gemm_composite", "--topology", str(file), "--json").stdout
    )
    assert document["kernels"][0]["dispatch_cycles"] == 103.375


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("gqa_decode",), "did you mean"),
        (("gqa_decode_opt2", "--param", "tile=3"), "tile"),
        (("gqa_decode_opt2", "--param", "tiles"), "NAME=VALUE"),
        (("gqa_decode_opt2", "--param", "tiles=["), "cannot read"),
        (("gqa_decode_opt2", "--sweep", "Q=1"), "did you mean"),
        (("gqa_decode_opt2", "--plot", "x.png"), "needs a sweep"),
        (("gqa_decode_opt2", "--topology", "missing.yaml"), "missing.yaml"),
        (("gqa_decode_opt2", "--set", "name=x"), "for scenarios"),
        (("missing.yaml",), "missing.yaml"),
    ],
)
def test_bad_input_is_one_sentence(args: tuple[str, ...], words: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_kernel_scenario(tmp_path: Path) -> None:
    (tmp_path / "chip.yaml").write_text("pe: {count: 2}")
    file = tmp_path / "s.yaml"
    file.write_text(
        HEAD
        + "network: {kernel: gqa_decode_opt2, params: {tiles: 3}}\n"
        + "target: {kind: pe, topology: chip.yaml}\n"
    )
    result = run(str(file), "--json", "--set", "network.params.tiles=4")
    assert result.exit_code == 0, result.stderr
    (kernel,) = json.loads(result.stdout)["kernels"]
    assert kernel["commands"] == 4 * 2 + 3
    assert run(str(file), "--param", "tiles=1").exit_code == 2


def test_a_scenario_of_tasks_with_commands() -> None:
    load, product = analyse_scenario(loads(HEAD + TASKS))
    assert load.report.kernel == "load"
    assert load.op_log.commands[1] == PeCpuOverheadCmd(12)
    assert load.report.cpu.explicit == 12
    kinds = [type(command) for command in product.op_log.commands]
    assert kinds == [GemmCmd, MathCmd, CompositeCmd]


def test_scenarios_of_other_kinds_are_refused() -> None:
    other = HEAD + "network: {zoo: resnet18}\ntarget: {kind: pim}\n"
    with pytest.raises(MalformedInput, match="not a pe target"):
        analyse_scenario(loads(other))
    silent = HEAD + "network: {zoo: resnet18}\ntarget: {kind: pe}\n"
    with pytest.raises(MalformedInput, match="issues commands"):
        analyse_scenario(loads(silent))


def test_number_of_elements(tmp_path: Path) -> None:
    text = HEAD + "network: {kernel: gemm_composite}\n"
    three = loads(text + "target: {kind: pe, elements: 3}\n")
    assert len(scenario_topology(three).elements) == 3
    (tmp_path / "t.yaml").write_text(
        "pe: {count: 2, overrides: {1: {clock_freq_ghz: 2}}}"
    )
    mixed = loads(
        text + "target: {kind: pe, elements: 3, topology: t.yaml}\n", folder=tmp_path
    )
    with pytest.raises(MalformedInput, match="elements differ"):
        scenario_topology(mixed)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"type": "jump"}, "unknown command type"),
        ({}, "unknown command type"),
        ({"type": "copy", "src": "x"}, "c.1.dst: is missing"),
        ({"type": "copy", "src": "x", "dest": "x"}, "did you mean 'dst'"),
        ({"type": "copy", "src": "x", "dst": "y"}, "no tensor 'y'"),
        ({"type": "cpu", "cycles": -1}, "negative"),
        ({"type": "gemm", "a": "x", "b": "x", "out": "x", "mkn": [1]}, "c.1"),
        ({"type": "composite", "ops": 3}, "c.1.ops"),
        ({"type": "composite", "ops": [{"kin": 1}]}, "did you mean 'kind'"),
        ({"type": "composite", "ops": [{"kind": "f", "scope": "x"}]}, "scope"),
        ({"tensor": {"name": "y"}}, "shape"),
        ({"tensor": {"name": "y", "shape": [0]}}, "positive"),
        ({"tensor": {"name": "y", "shape": [1], "dtype": "f9"}}, "f9"),
        ({"tensor": 1}, "not a mapping"),
    ],
)
def test_bad_command_records(record: dict[str, object], words: str) -> None:
    first: dict[str, object] = {"tensor": {"name": "x", "shape": [4, 4]}}
    with pytest.raises(MalformedInput) as caught:
        read_commands([first, record], "c")
    assert words.lower() in str(caught.value).lower()
    assert str(caught.value).startswith("c.1")


def test_command_records_have_defaults() -> None:
    x: dict[str, object] = {"tensor": {"name": "x", "shape": [4, 4]}}
    y: dict[str, object] = {"tensor": {"name": "y", "shape": [4, 4], "space": "hbm"}}
    read, empty = read_commands(
        [
            x,
            y,
            {"type": "dma_read", "src": "y", "dst": "x"},
            {"type": "composite", "ops": [{"kind": "nop"}]},
        ],
        "c",
    )
    assert isinstance(read, DmaReadCmd)
    assert empty == CompositeCmd((OpSpec("nop"),))


def too_large() -> CompositeTooLarge:
    tensors = [TensorHandle(f"t{i}", (8, 8)) for i in range(51)]
    ops = tuple(
        OpSpec("add", {"a": tensors[i], "b": tensors[i]}, tensors[i + 1])
        for i in range(50)
    )
    command = CompositeCmd(ops, (tensors[50],), "tail")
    return CompositeTooLarge(command, PeCostModel(), "network.tasks.0")


def test_advice_is_the_cheapest_split() -> None:
    error = too_large()
    plan = split_plan(error)
    assert plan.verdict is Verdict.OPTIMAL
    assert sum(len(command.operations) for command in plan.commands) == 50
    text = str(advised(error))
    for word in ("'tail'", "cap is 1024", "#0 add->t1", "advice", "composite of #"):
        assert word in text
    assert "never split automatically" in text
    assert advised(error).exit_code == 2


def test_advice_says_when_there_is_no_split() -> None:
    wide = OpSpec("wide", {str(i): TensorHandle(f"h{i}", (1,)) for i in range(200)})
    error = CompositeTooLarge(CompositeCmd((wide,)), PeCostModel())
    # The operation alone is a single-op command, which has no cap.
    assert [c.composite for c in split_plan(error).commands] == [False]


def test_an_oversized_composite_exits_2_with_advice(tmp_path: Path) -> None:
    ops = ", ".join("{kind: add, operands: {x: b, y: b}, out: b}" for _ in range(40))
    file = tmp_path / "s.yaml"
    file.write_text(
        HEAD
        + "target: {kind: pe}\nnetwork:\n  tasks:\n    - id: t\n      commands:\n"
        + "        - tensor: {name: b, shape: [8, 8]}\n"
        + f"        - {{type: composite, name: huge, ops: [{ops}], rw_handles: [b]}}\n"
    )
    result = run(str(file))
    assert result.exit_code == 2
    for word in (
        "tasks.0.commands",
        "'huge'",
        "1134 logical bytes",
        "cap is 1024",
        "add->b",
        "advice",
    ):
        assert word in result.stderr


def test_the_large_composite_benchmark_prints_its_table() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "bench_large_composite.py")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[-2].startswith("| 36 | 1022 | 103.875 | 355.5 |")
    assert "refused" in rows[-1]
    # Every row of the document is a row of the benchmark.
    page = (ROOT / "docs" / "dispatch.md").read_text(encoding="utf-8")
    assert rows[-2] in page


@pytest.mark.parametrize(
    "path", sorted((ROOT / "scenarios").glob("*-pe.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_scenario_of_the_target_is_analysed(path: Path) -> None:
    result = run(str(path), "--json")
    assert result.exit_code == 0, result.stderr
    kernels = json.loads(result.stdout)["kernels"]
    assert kernels
    if "gqa" in path.stem:
        assert [k["kernel"] for k in kernels][-1] == "merge"
