"""`kair probe`: a machine measured, and a suspect held against its peers."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.cli_samples import HOSTILE, assert_valid, kair
from support.patience import PATIENCE_S
from support.probes import around, machine, recording, written
from support.program import KAIR

from kair_engine.results.probe import HostCounters

PEER = recording(machine("node1", 4), gpu_matrix_product=around(600_000.0), python_loop=around(4e7))
SLOW = recording(machine("node0", 5), gpu_matrix_product=around(536_000.0), python_loop=around(4e7))
FINE = recording(machine("node0", 5), gpu_matrix_product=around(590_000.0), python_loop=around(4e7))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    probes = {"peer": PEER, "slow": SLOW, "fine": FINE}
    return {name: str(written(tmp_path / f"{name}.json", probe)) for name, probe in probes.items()}


def test_a_slow_machine_is_confirmed_in_a_sentence(files: dict[str, str]) -> None:
    outcome = kair("probe", "--compare", files["slow"], files["peer"])
    assert (outcome.status, outcome.err) == (0, "")
    first, _, table = outcome.out.partition("\n")
    assert first == "confirmed: rank 5's matrix product on the GPU is 12 % slower (11–12 %)"
    assert "▲ slower" in table and "as fast" in table
    assert "536 TFLOP/s" in table and "600 TFLOP/s" in table


def test_a_machine_within_what_devices_differ_by_is_not_confirmed(files: dict[str, str]) -> None:
    out = kair("probe", "--compare", files["fine"], files["peer"], files["peer"]).out
    assert out.startswith("not confirmed: rank 5 is within what devices of one type differ by (at most 2 % slower")
    assert "8 % on average (Sinha et al." in out


def test_a_suspect_whose_cores_others_take_is_told(tmp_path: Path, files: dict[str, str]) -> None:
    busy = machine("node0", 5, counters=HostCounters(0.5, 100.0, 2.0, 3))
    path = str(written(tmp_path / "busy.json", recording(busy, python_loop=around(2e7))))
    outcome = kair("probe", "--compare", path, files["peer"])
    assert outcome.out.startswith("confirmed: rank 5's Python loop is 100 % slower (")
    assert "); it waited for a core 50.0 % of the time, taken by other programs\n" in outcome.out
    assert "limited to 2, stopped by that limit 3 times" in " ".join(outcome.out.split())
    assert "node0: the probe waited for a core 50.0 % of the time" in outcome.err


@pytest.mark.parametrize(("suspect", "status"), [("slow", 10), ("fine", 0)])
def test_the_exit_status_tells_where_it_is_asked_for(files: dict[str, str], suspect: str, status: int) -> None:
    assert kair("probe", "--compare", files[suspect], files["peer"], "--fail-on", "slower").status == status


def test_the_answer_is_there_for_machines(files: dict[str, str]) -> None:
    document = json.loads(kair("probe", "--compare", files["slow"], files["peer"], "--json").out)
    assert_valid(document, "probe")
    data = document["data"]
    assert (document["job"], data["verdict"]) == (None, "confirmed")
    assert [row["verdict"] for row in data["measurements"]] == ["slower", "as_fast"]
    assert [peer["rank"] for peer in data["peers"]] == [4]
    csv = kair("probe", "--compare", files["slow"], files["peer"], "-o", "csv", "--fields", "name,verdict").out
    assert csv == "name,verdict\ngpu_matrix_product,slower\npython_loop,as_fast\n"


@pytest.mark.parametrize("form", ["table", "wide", "json", "ndjson", "csv"])
def test_names_in_files_reach_no_terminal_as_commands(tmp_path: Path, form: str) -> None:
    evil = machine(HOSTILE, device=HOSTILE, processor=HOSTILE, versions={HOSTILE: HOSTILE}, launch=HOSTILE)
    path = str(written(tmp_path / "evil.json", recording(evil, python_loop=around(4e7))))
    outcome = kair("probe", "--compare", path, path, "-o", form)
    assert outcome.status == 0
    for sign in ("\x1b", "\u202e", "\x9b", "\x07"):
        assert sign not in outcome.out + outcome.err


def test_ranks_do_not_write_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    outcome = kair("probe", "--out", "probe.json")
    assert outcome.status == 2
    assert outcome.err.splitlines() == [
        "kair: error: 8 ranks would write probe.json",
        "hint: put {rank} into its name: --out probe-{rank}.json",
    ]


def process(folder: Path, *words: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*KAIR, "probe", *words],
        cwd=folder,
        env={**{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}, **environment}
        | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_this_machine_is_measured_and_compared(tmp_path: Path) -> None:
    words = ("--seconds", "0.2", "--device", "cpu", "--rank", "5", "--out", "probe-{rank}.json", "--json")
    out, err = process(tmp_path, *words).communicate(timeout=PATIENCE_S)
    assert "error" not in err
    document = json.loads(out)
    assert json.loads((tmp_path / "probe-5.json").read_text()) == document
    assert_valid(document, "probe")
    assert {row["name"] for row in document["data"]["measurements"]} == {
        "cpu_matrix_product",
        "cpu_memory_copy",
        "python_loop",
        "wake_up",
    }
    assert all(len(row["values"]) >= 8 for row in document["data"]["measurements"])
    assert "1 thread" in document["data"]["measurements"][0]["work"]
    # Two that were measured are compared below.
    outcome = kair("probe", "--compare", *[str(tmp_path / "probe-5.json")] * 2)
    assert outcome.status == 0
    assert "rank 5" in outcome.out


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_ranks_that_are_launched_together_measure_their_link(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = ("--seconds", "0.2", "--device", "cpu", "--out", "probe-{rank}.json")
    both = [process(tmp_path, *words, RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in (0, 1)]
    errors = [one.communicate(timeout=300)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], errors
    data = [json.loads((tmp_path / f"probe-{rank}.json").read_text())["data"] for rank in (0, 1)]
    assert [one["link"] for one in data] == ["measured", "measured"]
    reduced = [
        [(row["name"], len(row["values"])) for row in one["measurements"] if row["name"].startswith("all_reduce")]
        for one in data
    ]
    assert reduced[0] == reduced[1]
    assert [name for name, _ in reduced[0]] == ["all_reduce_64_kib", "all_reduce_1_mib", "all_reduce_16_mib"]
    outcome = kair("probe", "--compare", *(str(tmp_path / f"probe-{rank}.json") for rank in (0, 1)))
    assert "took part in the same all-reduce" in outcome.err
