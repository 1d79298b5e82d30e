"""`kair mitigate`: what a person orders, approves and sees of a job that is run under it."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair, store_variables

from kair_mitigate import orders
from kair_mitigate.job_state import StateWriter
from kair_mitigate.known_units import keep_units
from kair_mitigate.plans import Plan, State
from kair_mitigate.policy.units import Units
from kair_mitigate.records import Records


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """That of a job of three ranks, 40 steps into its first epoch of 2,000 samples."""
    store_variables(monkeypatch, tmp_path)
    store = tmp_path / "store"
    monkeypatch.setenv("KAIR_STORE", str(store))
    Records(store / "job7" / "mitigate")
    StateWriter(store / "job7" / "mitigate", 0).write(State(1, 0, 960, 40, Plan(0, 0, (8, 8, 8))), 2000, 2)
    return store / "job7" / "mitigate"


def ordered(folder: Path) -> Plan:
    return orders.read_plan(folder, orders.read_key(folder))


@pytest.mark.usefixtures("folder")
def test_status_tells_where_the_data_stands() -> None:
    assert kair("mitigate", "status").err.startswith("kair: error: which job?")
    said = kair("mitigate", "status", "job7")
    assert said.status == 0
    assert said.out.startswith(
        "job job7: step 40, epoch 0, 48% of 2,000 samples done; 8 samples a step on each of 3 ranks"
    )
    told = json.loads(kair("mitigate", "status", "job7", "--json").out)
    assert_valid(told, "mitigate")
    assert (told["data"]["done"], told["data"]["doing"], told["data"]["samples"]) == (960, 48, 2000)


def test_a_plan_is_signed_numbered_and_in_the_history(folder: Path) -> None:
    assert kair("mitigate", "plan", "job7", "--sizes", "10,4,10", "--from-step", "60").status == 0
    assert ordered(folder) == Plan(1, 60, (10, 4, 10))
    assert kair("mitigate", "leave", "job7", "--leave-out", "node3").status == 0
    assert ordered(folder) == Plan(2, 0, (8, 8, 8), "leave")
    history = json.loads(kair("mitigate", "history", "job7", "--json").out)["data"]["history"]
    assert [(one["version"], one["kind"], one["sizes"]) for one in history] == [
        (2, "leave", [8, 8, 8]),
        (1, "sizes", [10, 4, 10]),
    ]
    assert (folder / "hosts_left_out").read_text() == "node3\n"


def test_who_approves_has_it_ordered_and_who_denies_not(folder: Path) -> None:
    records = Records(folder)
    first = records.propose("adjust_bs", (10, 4, 10), {"now_s": 0.129, "after_s": 0.107, "worst_after_s": 0.114})
    assert "resize  10,4,10 samples a step  129 ms a step to 107 to 114" in kair("mitigate", "status", "job7").out
    assert kair("mitigate", "deny", "job7", str(first)).status == 0
    assert not (folder / "plan.json").exists()
    records.propose("adjust_bs", (9, 6, 9), {})
    second = records.propose("adjust_bs", (11, 2, 11), {})
    assert kair("mitigate", "approve", "job7", str(second)).status == 0
    assert ordered(folder).sizes == (11, 2, 11)
    # It is decided once.
    assert kair("mitigate", "approve", "job7", str(second)).status == 3
    told = json.loads(kair("mitigate", "status", "job7", "--json").out)["data"]
    assert [(one["number"], one["decision"]) for one in told["proposals"]] == [
        (second, "approved"),
        (first + 1, "replaced"),
        (first, "denied"),
    ]
    assert told["proposals"][1]["why"] == "proposal 3 is newer"
    assert "replaced: proposal 3 is newer" in kair("mitigate", "status", "job7").out


def test_undo_orders_the_sizes_before(folder: Path) -> None:
    StateWriter(folder, 0).write(State(1, 0, 1200, 50, Plan(4, 48, (12, 0, 12))), 2000, 2)
    assert kair("mitigate", "undo", "job7").status == 0
    assert ordered(folder) == Plan(5, 0, (8, 8, 8))


def test_the_audit_counts_samples_once_an_epoch(folder: Path) -> None:
    (folder / "trained").mkdir()
    rows = [{"gen": 0, "rank": 0, "step": 0, "epoch": 0, "begin": 0, "end": 1500}]
    rows += [{"gen": 0, "rank": 1, "step": 1, "epoch": 0, "begin": 1400, "end": 2000}]
    (folder / "trained" / "0-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = kair("mitigate", "audit", "job7", "--epochs", "1")
    assert said.out.startswith("0 samples missing, 100 twice, in 1 whole epoch")
    told = json.loads(kair("mitigate", "audit", "job7", "--epochs", "1", "--json").out)["data"]["audited"]
    assert told["twice"] == [{"epoch": 0, "begin": 1400, "end": 1500, "file": None}]


def test_a_damaged_database_or_key_is_told(folder: Path) -> None:
    (folder / "key").chmod(0o644)
    said = kair("mitigate", "plan", "job7", "--sizes", "10,4,10")
    assert (said.status, "chmod 600" in said.err) == (3, True)
    (folder / "mitigation.db").write_bytes(b"no database" * 100)
    assert kair("mitigate", "status", "job7").status == 3


@pytest.mark.usefixtures("folder")
def test_run_ends_as_the_command_does() -> None:
    said = kair("mitigate", "run", "--no-capture", "--job", "job8", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert said.status == 7
    assert kair("mitigate", "run", "--no-capture", "--job", "job8", "--", "no-such-command").status == 127


@pytest.mark.slow
def test_a_run_without_a_loader_says_so_at_its_end_and_in_its_status(folder: Path) -> None:
    run = ("mitigate", "run", "--no-capture", "--job", "job8", "--", sys.executable, "-c")
    assert "kair: no rank made a kair_mitigate.loader, so nothing could be resized\n" in kair(*run, "pass").err
    assert "no rank made a kair_mitigate.loader yet" in kair("mitigate", "status", "job8").err
    [warning] = json.loads(kair("mitigate", "status", "job8", "--json").out)["warnings"]
    assert warning["code"] == "loader"
    has = "from kair_mitigate import restarts as of; from kair_mitigate.trained import TrainedLog as Log;"
    made = f"{has} Log.of_run(of.run_folder(), 0, of.generation())"
    assert "no rank made" not in kair(*run, made).err
    assert "no rank made" not in kair("mitigate", "status", "job8").err
    # Of the attempts of this run alone.
    assert "no rank made" in kair(*run, "pass").err
    (folder.parents[1] / "job8" / "mitigate" / "shards.sqlite").touch()
    assert "no rank made" not in kair(*run, "pass").err


_WRITES = """
from kair_mitigate import orders, restarts, running
from kair_mitigate.job_state import StateWriter
from kair_mitigate.known_units import keep_units
from kair_mitigate.plans import Plan, State
from kair_mitigate.policy.units import Units
from kair_mitigate.records import Records
from kair_mitigate.shards.store import ShardStore
from kair_mitigate.trained import TrainedLog
folder = restarts.run_folder()
TrainedLog.of_run(folder, 0, 0)
StateWriter(folder, 0).write(State(1, 0, 0, 0, Plan(0, 0, (8,))), 80, 0)
Records(folder).order((8,), "me")
running.leave_out(folder, "node3")
ShardStore(folder / "shards.db", rows=folder / "trained" / "shards.jsonl").close()
restarts.say_left(3)
running.leave_out(folder, running.socket.gethostname())
"""


@pytest.mark.slow
def test_what_a_run_writes_is_its_owners_alone_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o002)
    try:
        said = kair("mitigate", "run", "--no-capture", "--job", "job8", "--", sys.executable, "-c", _WRITES)
    finally:
        os.umask(before)
    assert said.status == 0
    made = folder.parents[1] / "job8"
    modes = {path.relative_to(made).as_posix(): path.stat().st_mode & 0o777 for path in (made, *made.rglob("*"))}
    assert {*modes} >= {"mitigate/" + name for name in ("key", "mitigation.db", "hosts_left_out", "left-0", "trained")}
    assert {modes[name] for name in modes if (made / name).is_dir()} == {0o700}
    assert {modes[name] for name in modes if (made / name).is_file()} == {0o600}


@pytest.mark.usefixtures("folder")
def test_draining_a_host_is_printed_and_run_only_if_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # neither is there
    for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    said = kair("mitigate", "drain", "node7")
    assert said.status == 0
    assert "scontrol update NodeName=node7 State=DRAIN 'Reason=kair: slow'" in said.out
    assert "kubectl cordon node7" in said.out
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert "kubectl" not in kair("mitigate", "drain", "node7").out
    assert not (tmp_path / "asked").exists()
    assert kair("mitigate", "drain", "node7", "--yes").out.startswith("drained")
    assert (tmp_path / "asked").read_text() == "update NodeName=node7 State=DRAIN Reason=kair: slow\n"
    program.write_text("#!/bin/sh\necho no such node >&2; exit 1\n")
    said = kair("mitigate", "drain", "node7", "--yes")
    assert (said.status, "no such node" in said.err) == (3, True)


def test_batches_and_a_deadline_are_for_loops_that_can_leave_off(folder: Path) -> None:
    said = kair("mitigate", "plan", "job7", "--deadline", "40")
    assert said.status == 3
    assert "uneven_accumulation=True" in said.err
    StateWriter(folder, 0, is_uneven=True).write(State(1, 0, 960, 40, Plan(0, 0, (8, 8, 8))), 2000, 2)
    assert kair("mitigate", "plan", "job7", "--deadline", "40", "--batches", "2,1,2").status == 0
    assert ordered(folder) == Plan(1, 0, (8, 8, 8), "sizes", (2, 1, 2), 40_000)
    assert kair("mitigate", "plan", "job7", "--sizes", "9,6,9").status == 0
    assert ordered(folder) == Plan(2, 0, (9, 6, 9), "sizes", (2, 1, 2), 40_000)
    assert kair("mitigate", "plan", "job7", "--deadline", "0").status == 0
    history = json.loads(kair("mitigate", "history", "job7", "--json").out)["data"]["history"]
    assert [(one["batches"], one["deadline_us"]) for one in history[:2]] == [([2, 1, 2], None), ([2, 1, 2], 40_000)]


def test_claims_are_turned_on_and_off_where_ranks_are_independent(folder: Path) -> None:
    assert "uneven_accumulation=True" in kair("mitigate", "plan", "job7", "--claims", "on").err
    state = State(1, 0, 960, 40, Plan(0, 0, (8, 8, 8)))
    StateWriter(folder, 0, is_uneven=True).write(state, 2000, 2)
    keep_units(folder, Units(((0, 1), (2,)), "recorded"))
    said = kair("mitigate", "plan", "job7", "--claims", "on")
    assert (said.status, said.err) == (3, "kair: error: claims: ranks 0+1 meet in every micro-batch\n")
    keep_units(folder, Units(((0,), (1,), (2,)), "recorded"))
    assert kair("mitigate", "plan", "job7", "--claims", "on").status == 0
    assert ordered(folder) == Plan(1, 0, (8, 8, 8), claims=True)
    StateWriter(folder, 0, is_uneven=True).write(replace(state, plan=Plan(1, 40, (8, 8, 8), claims=True)), 2000, 2)
    assert "24 samples a step, claimed by 3 ranks while it runs" in kair("mitigate", "status", "job7").out
    assert json.loads(kair("mitigate", "status", "job7", "--json").out)["data"]["plan"]["claims"] is True
    assert kair("mitigate", "plan", "job7", "--claims", "off").status == 0
    assert ordered(folder) == Plan(2, 0, (8, 8, 8))
    assert kair("mitigate", "plan", "job7", "--claims", "on").status == 0
    assert kair("mitigate", "undo", "job7").status == 0
    assert ordered(folder) == Plan(4, 0, (8, 8, 8))
