"""Programs on disk: all forms, every refusal, and hostile files."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim import artifact, artifact_checks
from raptor_cp.targets.pim.artifact import (
    Program,
    ProgramForm,
    ProgramWriter,
    check_chip,
    make_program,
    read_program,
    write_program,
)
from raptor_cp.targets.pim.artifact_checks import BLOCK
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.isa import JSON_FIELDS, RECORD, SLOT_ONLY, Opcode

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "pimsim"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="reference data ../shared not present"
)
MICRO = ["m1_mvm", "m2_ld_mvm_vec_st", "m3_sendrecv", "m4_pipe2", "m5_syncwait"]
ZERO = {"offset_value": 0, "offset_select": 0}


def document() -> dict[str, Any]:
    """Two cores that use every kind of instruction with a check of its own."""
    return {
        "config": {
            "core_cnt": 2,
            "array_group_map": {"core0": [4, 2], "core1": [1]},
        },
        "core0": [
            {"op": "setbw", "ibiw": 8, "obiw": 16},
            {"op": "sldi", "rd": 3, "imm": -4096},
            {"op": "sadd", "rd": 3, "rs1": 4, "rs2": 5},
            {"op": "ld", "rd": 0, "rs1": 4, "size": 128, "offset": ZERO},
            {"op": "mvmul", "rd": 0, "rs1": 1, "mbiw": 8, "group": 1, "relu": 0},
            {
                "op": "vvadd",
                "rd": 0,
                "rs1": 1,
                "rs2": 2,
                "len": 512,
                "offset": {"offset_value": 64, "offset_select": 3},
            },
            {"op": "send", "rd": 0, "core": 1, "size": 512, "offset": ZERO},
            {"op": "wait", "event_register": 7, "wait_value": 1},
        ],
        "core1": [
            {"op": "recv", "rd": 0, "core": 0, "size": 512},
            {"op": "lldi", "rd": 1, "imm": 3, "len": 64},
            {"op": "lmv", "rd": 1, "rs1": 2, "len": 64},
            {"op": "st", "rd": 4, "rs1": 0, "size": 512, "offset": ZERO},
            {"op": "sync", "core": 0, "event_register": 7},
        ],
    }


def written(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "program.json"
    path.write_text(json.dumps(value))
    return path


def assert_equal(first: Program, second: Program) -> None:
    assert first.core_count == second.core_count
    for a, b in zip(first.active_cores, second.active_cores, strict=True):
        assert a.core == b.core
        np.testing.assert_array_equal(a.array_groups, b.array_groups)
        np.testing.assert_array_equal(a.records, b.records)


def test_fields_of_records(tmp_path: Path) -> None:
    program = read_program(written(tmp_path, document()))
    records = program.cores[0].records
    assert records[0].tolist() == (8, 0, 0, 0, 0, 8, 16, 0)
    assert records[1].tolist() == (1, 3, 0, 0, -4096, 0, 0, 0)
    assert records[2].tolist() == (3, 3, 4, 0, 5, 0, 0, 0)
    assert records[4].tolist() == (9, 0, 1, 0, 8, 0, 1, 0)
    assert records[5].tolist() == (10, 0, 1, 0, 2, 3, 64, 512)
    assert records[6].tolist() == (29, 0, 0, 0, 1, 0, 0, 512)
    assert records[7].tolist() == (31, 0, 0, 0, 0, 7, 1, 0)
    assert program.cores[1].records[1].tolist() == (27, 1, 0, 0, 3, 0, 0, 64)
    assert program.cores[1].records[4].tolist() == (32, 0, 0, 0, 0, 7, 0, 0)
    assert program.instructions == 13


@pytest.mark.parametrize("form", list(ProgramForm))
def test_every_form_reads_back(tmp_path: Path, form: ProgramForm) -> None:
    program = read_program(written(tmp_path, document()))
    target = tmp_path / "again"
    write_program(program, target, form)
    assert_equal(program, read_program(target))
    assert not list(tmp_path.rglob("*.tmp"))


def test_single_files_are_deterministic(tmp_path: Path) -> None:
    program = read_program(written(tmp_path, document()))
    for name in ("a", "b"):
        write_program(program, tmp_path / name, ProgramForm.GZIP)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@needs_shared
@pytest.mark.parametrize("name", MICRO)
def test_micro_programs(tmp_path: Path, name: str) -> None:
    program = read_program(SHARED / f"{name}.json", load_config(SHARED / "lat.json"))
    write_program(program, tmp_path / "copy")
    assert_equal(program, read_program(tmp_path / "copy"))


def test_json_text_of_every_opcode_reads_back(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    rows: list[tuple[int, ...]] = [(8, 0, 0, 0, 0, 8, 8, 0)]
    for opcode in Opcode:
        if opcode in (Opcode.NOP, Opcode.SEND, Opcode.RECV, Opcode.SYNC):
            continue
        row = dict.fromkeys(RECORD.names or (), 0) | {"opcode": int(opcode)}
        for column in JSON_FIELDS[opcode].values():
            row[column] = int(generator.integers(1, 20))
        if opcode is Opcode.MVMUL:
            row["generic2"] = 0
        rows.append(tuple(row.values()))
    records = np.array(rows, dtype=RECORD)
    program = make_program({0: (np.array([1]), records)}, 1)
    write_program(program, tmp_path / "p.json", ProgramForm.JSON)
    assert_equal(program, read_program(tmp_path / "p.json"))


def test_folder_prefers_binary_and_allows_empty_cores(tmp_path: Path) -> None:
    program = read_program(written(tmp_path, document()))
    folder = tmp_path / "folder"
    writer = ProgramWriter(folder, 4)
    for core in program.cores:
        writer.write_core(core.core, core.array_groups, core.records)
    writer.close()
    (folder / "core_0.json").write_text("not looked at")
    again = read_program(folder)
    assert [core.length for core in again.cores] == [8, 5, 0, 0]
    assert again.core_count == 4
    for a, b in zip(program.cores, again.active_cores, strict=True):
        np.testing.assert_array_equal(a.records, b.records)


def set_at(value: Any, path: str, item: object) -> None:
    *parents, last = path.split("/")
    for key in parents:
        value = value[int(key)] if key.isdigit() else value[key]
    value[int(last) if last.isdigit() else last] = item


@pytest.mark.parametrize(
    ("path", "item", "words"),
    [
        ("config/core_cnt", 0, ("core_cnt", "got 0", "from 1")),
        ("config/core_cnt", 10**9, ("core_cnt", "1000000000")),
        ("config/core_cnt", "2", ("core_cnt", "'2'")),
        ("config/core_cnt", 1, ("beyond the declared core count", "got 1")),
        ("config/array_group_map", None, ("no array-group map",)),
        ("config/array_group_map", {}, ("array_group_map.core0", "no array groups")),
        ("config/array_group_map/core1", [0], ("core1[0]", "got 0", "positive")),
        ("config/array_group_map/core1", [1.5], ("core1[0]", "1.5")),
        ("config/array_group_map/core1", [True], ("core1[0]", "True")),
        ("core0/0/op", "vexp", ("core0[0]", "unknown opcode", "'vexp'")),
        ("core0/0/op", ["x"], ("core0[0]", "unknown opcode")),
        ("core0/1/op", "nop", ("core 0, instruction 1", "nop")),
        ("core0/1", 7, ("core0[1]", "not an object")),
        ("core0/1/imm", 2**31, ("core0[1]", "wrong imm", "2147483648")),
        ("core0/1/imm", 1.5, ("core0[1]", "wrong imm", "1.5")),
        ("core0/1/rd", 32, ("instruction 1", "no such register rd", "32")),
        ("core0/2/rs2", 32, ("instruction 2", "register rs2", "32")),
        ("core0/3/rs1", 31, ("instruction 3", "register pair in rs1")),
        ("core0/3/size", -1, ("instruction 3", "negative length or size")),
        ("core0/3/offset", 3, ("core0[3]", "wrong offset")),
        ("core0/3/offset", {"offset_value": "a"}, ("core0[3]", "offset_value")),
        ("core0/0/ibiw", 0, ("instruction 0", "ibiw", "got 0")),
        ("core0/0/obiw", 65, ("instruction 0", "obiw", "got 65")),
        ("core0/0", {"op": "sldi"}, ("mvmul before any setbw", "instruction 4")),
        ("core0/4/group", 2, ("instruction 4", "array group", "got 2", "0 to 1")),
        ("core0/4/group", -1, ("instruction 4", "array group", "got -1")),
        ("core0/4/mbiw", 0, ("instruction 4", "mbiw")),
        ("core0/7/event_register", 32, ("instruction 7", "event register", "0..31")),
        ("core0/7/event_register", -1, ("instruction 7", "event register")),
        ("core0/7/wait_value", -1, ("instruction 7", "negative wait value")),
        ("core0/6/core", 2, ("instruction 6", "send", "got 2")),
        ("core0/6/core", 0, ("instruction 6", "send", "got 0", "another core")),
        ("core0/6", {"op": "sldi"}, ("RECV without its SEND", "core 0 to core 1")),
        ("core1/0", {"op": "sldi"}, ("SEND without its RECV", "core 0 to core 1")),
        ("core1", [], ("core without a program", "instruction 6", "got 1")),
    ],
)
@pytest.mark.parametrize("block", [1, 3, BLOCK])
def test_refusals_name_place_value_and_expectation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    item: object,
    words: tuple[str, ...],
    block: int,
) -> None:
    monkeypatch.setattr(artifact_checks, "BLOCK", block)
    value = copy.deepcopy(document())
    set_at(value, path, item)
    with pytest.raises(MalformedInput) as error:
        read_program(written(tmp_path, value))
    for word in ("program.json", *words):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends early"),
        ("[]", "unexpected character"),
        ("{}", "no config object"),
        ('{"core0": []', "ends early"),
        ('{"core0": [', "not valid JSON, or truncated"),
        ('{"core0": [{"op": "sldi"', "not valid JSON, or truncated"),
        ('{"core0": [], "core0": []}', "the same key twice"),
        ('{"core0": [], "core00": []}', "two cores with one id"),
        ('{"core0": []} x', "text after the end"),
        ('{"config": NaN}', "not a number"),
        ('{"config": ' + "[" * 50_000, "not valid JSON"),
        ('{"core0": [{"op": "sldi", "imm": ' + "1" * 5000 + "}]}", "not valid JSON"),
        ('{"core0": [{"op": "' + "x" * 2**21 + '"}]}', "more than 65536 characters"),
        ('{"config": {"core_cnt": 1, "array_group_map": {}}}', "no core has"),
    ],
)
def test_bad_text(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "program.json"
    path.write_text(text)
    with pytest.raises(MalformedInput, match=words):
        read_program(path)


def test_not_a_program(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="program not found"):
        read_program(tmp_path / "absent")
    with pytest.raises(MalformedInput, match=r"no config\.json"):
        read_program(tmp_path)
    path = tmp_path / "core_0.pim"
    path.write_bytes(b"")
    with pytest.raises(MalformedInput, match="one core's binary file"):
        read_program(path)
    (tmp_path / "x.json").write_bytes(b"{\xff")
    with pytest.raises(MalformedInput, match="not UTF-8"):
        read_program(tmp_path / "x.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program = read_program(written(tmp_path, document()))
    write_program(program, tmp_path / "folder")
    return tmp_path / "folder"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PIM", "truncated header"),
        (b"PIMA" + struct.pack("<II", 1, 0), "wrong magic"),
        (b"PIMB" + struct.pack("<II", 2, 0), "wrong format version"),
        (b"PIMB" + struct.pack("<II", 1, 2**32 - 1), "truncated file"),
        (b"PIMB" + struct.pack("<II", 1, 0) + b"x", "bytes after the last"),
        (b"PIMB" + struct.pack("<II", 1, 1) + b"\x21" + bytes(19), "unknown opcode"),
        (b"PIMB" + struct.pack("<II", 1, 1) + bytes(20), "nop"),
    ],
)
def test_bad_binary(folder: Path, data: bytes, words: str) -> None:
    (folder / "core_1.pim").write_bytes(data)
    with pytest.raises(MalformedInput, match=words) as error:
        read_program(folder)
    assert "core_1.pim" in str(error.value) or "core 1" in str(error.value)


def test_bad_folders(folder: Path) -> None:
    stray = folder / "core_one.pim"
    stray.write_bytes(b"")
    with pytest.raises(MalformedInput, match="not a core's instruction file"):
        read_program(folder)
    stray.unlink()
    twin = folder / "core_01.pim"
    twin.write_bytes((folder / "core_1.pim").read_bytes())
    with pytest.raises(MalformedInput, match="two cores with one id"):
        read_program(folder)
    twin.unlink()
    extra = folder / "core_9.pim"
    extra.write_bytes((folder / "core_1.pim").read_bytes())
    with pytest.raises(MalformedInput, match="beyond the declared core count"):
        read_program(folder)
    extra.unlink()
    (folder / "core_0.pim").unlink()
    with pytest.raises(MalformedInput, match="core_0"):
        read_program(folder)
    (folder / "core_0.pim").mkdir()
    with pytest.raises(MalformedInput, match="not a core's instruction file"):
        read_program(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(MalformedInput):
        read_program(folder)


def test_program_must_fit_the_chip(tmp_path: Path) -> None:
    program = read_program(written(tmp_path, document()))
    check_chip(program, load_config("arch-c"))
    with pytest.raises(MalformedInput, match="more cores than the chip"):
        check_chip(program, load_config("arch-c", core_count=1))
    with pytest.raises(MalformedInput, match="more crossbars than it has"):
        check_chip(program, load_config("arch-c", crossbar_count=5))


def test_gzip_damage_and_bombs(tmp_path: Path) -> None:
    path = tmp_path / "program.gz"
    packed = gzip.compress(json.dumps(document()).encode())
    for cut in (1, 10, 18, len(packed) // 2, len(packed) - 1):
        path.write_bytes(packed[:cut])
        with pytest.raises(MalformedInput):
            read_program(path)
    path.write_bytes(gzip.compress(b'{"config": "' + b" " * 2**26))

    assert error_of(path).startswith("program.gz: the text is too long")


def error_of(path: Path) -> str:
    with pytest.raises(MalformedInput) as error:
        read_program(path)
    return str(error.value)


def test_packed_instructions_are_bounded_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "FREE_TEXT_BYTES", 2**16)
    path = tmp_path / "program.gz"
    text = '{"config": {"core_cnt": 1, "array_group_map": {"core0": []}}, "core0": ['
    many = ",".join(['{"op": "sadd"}'] * 100_000)
    path.write_bytes(gzip.compress(f"{text}{many}]}}".encode()))
    assert "the text is too long; expected at most" in error_of(path)
    monkeypatch.setattr(artifact, "MAX_TEXT_RATIO", 1000)
    assert read_program(path).instructions == 100_000


def test_huge_sparse_files_are_refused_at_once(tmp_path: Path) -> None:
    """Memory and time do not grow with what a header claims or a hole pretends."""
    config = {"core_cnt": 1, "array_group_map": {"core0": []}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    count = 2**32 - 1
    with (tmp_path / "core_0.pim").open("wb") as stream:
        stream.write(b"PIMB" + struct.pack("<II", 1, count))
        stream.truncate(12 + 20 * count)
    assert "core 0, instruction 0: nop is not executable" in error_of(tmp_path)


def test_slot_only_instructions_need_nothing() -> None:
    records = np.zeros(3, dtype=RECORD)
    records["opcode"] = [int(code) for code in sorted(SLOT_ONLY)[:3]]
    make_program({0: (np.zeros(0, dtype=np.int64), records)}, 1)
    with pytest.raises(MalformedInput, match="beyond the declared"):
        make_program({1: (np.zeros(0, dtype=np.int64), records)}, 1)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_fuzzed_binaries_raise_or_read(folder: Path, data: st.DataObject) -> None:
    path = folder / "core_0.pim"
    original = path.read_bytes()
    try:
        changed = bytearray(original)
        for _ in range(data.draw(st.integers(1, 4))):
            bit = data.draw(st.integers(0, 8 * len(changed) - 1))
            changed[bit // 8] ^= 1 << bit % 8
        cut = data.draw(st.integers(0, len(changed)) | st.just(len(changed)))
        path.write_bytes(changed[:cut])
        with contextlib.suppress(MalformedInput):
            read_program(folder)
    finally:
        path.write_bytes(original)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_fuzzed_text_raises_or_reads(tmp_path: Path, data: st.DataObject) -> None:
    text = json.dumps(document())
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    middle = data.draw(st.text(max_size=5) | st.sampled_from(["[", "9" * 30, "null"]))
    path = tmp_path / "fuzz.json"
    path.write_text(text[:start] + middle + text[end:], errors="replace")
    with contextlib.suppress(MalformedInput):
        read_program(path)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 255)] * 4, *[st.integers(-3, 70)] * 4)))
def test_random_records_raise_or_pass(rows: list[tuple[int, ...]]) -> None:
    records = np.array(rows, dtype=RECORD)
    with contextlib.suppress(MalformedInput):
        make_program({0: (np.array([2, 3]), records)}, 2)
