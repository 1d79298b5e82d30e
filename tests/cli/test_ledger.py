"""`kair ledger`: a job that is captured, mended midway, and what is told of it; the words for people; no network."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.captured import rows_for
from support.cli_samples import assert_valid, kair, store_variables
from support.kept_cases import assert_kept
from support.live_status import STATUS, write_status

from kair_capture.agent.step_rows import Rows
from kair_capture.coordinator.step_log import write_part
from kair_engine.results.ledger import LedgerEntry, LedgerSummary
from kair_engine.results.triage import DeviceRecord, TrackRecord
from kair_engine.store.ledger import FOLDER, change_ledger, ledger_of
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.identity_file import identity_json
from kair_tui.render.ledger import came_in_words, record_in_words, track_record_in_words

JOB, RANKS, ONSET, LIFTED, STEPS = "job123", 4, 100, 220, 340


def rows(begin: int, end: int) -> Rows:
    """Rank 2 takes 30 ms by itself for its peers' 20 from ONSET to LIFTED; all wait for the slowest."""
    noise = np.random.default_rng(1).normal(0, 150, (RANKS, STEPS)).astype(int)
    own = 20_000 + noise
    own[2, ONSET:LIFTED] += 10_000
    found = []
    for rank in range(RANKS):
        of = rows_for(rank, range(begin, end), step_us=25_000, begin_us=10**15)
        of["self_us"] = of["forward_us"] = of["cpu_us"] = own[rank, begin:end]
        of["step_us"] = own.max(axis=0)[begin:end] + 5000
        of["waited_us"] = of["step_us"] - of["self_us"]
        of["attempt"], of["process_s"] = 1, 999_999_990
        found.append(of)
    return np.concatenate(found)


@pytest.fixture
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that runs, until its fault is about to be lifted."""
    store_variables(monkeypatch, tmp_path)
    store = tmp_path / "store"
    write_status(store, replace(STATUS, alerts=()))
    (store / JOB / "steps").mkdir()
    write_part(store / JOB / "steps" / "part-00000001.parquet", rows(0, LIFTED))
    return store


def goes_on(store: Path) -> None:
    write_part(store / JOB / "steps" / "part-00000002.parquet", rows(LIFTED, STEPS))


@pytest.mark.slow
def test_a_job_that_is_mended_midway(_store: Path) -> None:
    empty = kair("ledger")
    assert (empty.status, empty.out.startswith("nothing was predicted")) == (0, True)
    assert kair("triage", JOB).status == 0
    assert kair("triage", JOB).status == 0
    document = json.loads(kair("ledger", "--json").out)
    assert_valid(document, "ledger")
    (before,) = document["data"]["entries"]
    assert (before["came"], before["ranks"], before["since"]) == ("open", [2], ONSET)
    assert before["predicted_us"] == pytest.approx(9900, abs=200)
    goes_on(_store)
    document = json.loads(kair("ledger", "--json", "--job", JOB).out)
    assert_valid(document, "ledger")
    (came,) = document["data"]["entries"]
    assert (came["came"], came["without"], came["run"]) == ("came_true", "same_run", before["run"])
    assert came["actual_us"] == pytest.approx(10_000, abs=200)
    assert document["data"]["summary"] == {"predictions": 1, "came": 1, "came_true": 1}
    page = kair("ledger").out
    assert page.startswith("1 prediction, 1 within 10 %\n")
    assert "came true" in page
    # A triage of all steps tells of the fault that was; what was predicted stays.
    assert kair("triage", JOB).status == 0
    assert json.loads(kair("ledger", "--json").out)["data"]["entries"] == [came]
    assert kair("ledger", "--job", "other").status == 3


def test_what_came_outlives_the_job(_store: Path) -> None:
    assert kair("triage", JOB).status == 0
    goes_on(_store)
    assert kair("ledger").out.startswith("1 prediction, 1 within 10 %")
    for path in (_store / JOB / "steps").iterdir():
        path.unlink()
    assert kair("ledger").out.startswith("1 prediction, 1 within 10 %")


def identify(folder: Path, attempt: int, began: int, host_of_2: str) -> None:
    """What capture tells of the processes of an attempt: each on a host and a device of its own."""
    for rank in range(RANKS):
        host = host_of_2 if rank == 2 else f"node-{rank}"
        device = DeviceIdentity(uuid=f"GPU-{int(host[5:]):08x}-0000-0000-0000-000000000000")
        one = RankIdentity(rank, host=host, process_s=began, device=device)
        (folder / f"identity-{rank}.{attempt}.json").write_bytes(identity_json(one))


def test_a_restart_on_another_host_tells_what_draining_the_first_was_worth(_store: Path) -> None:
    """Rank 2 is on node-2 with its device, then on node-9: its times there are its peers'."""
    began = {1: 999_999_990, 2: 1_000_000_100}
    folder = _store / JOB / "evidence"
    folder.mkdir()
    identify(folder, 1, began[1], "node-2")
    assert kair("triage", JOB).status == 0
    identify(folder, 2, began[2], "node-9")
    again = rows(0, LIFTED)
    again["attempt"], again["process_s"] = 2, began[2]
    again["begin_us"] += 10**9
    slow = again["rank"] == 2
    again["step_us"] = np.where(again["step_us"] > 31_000, again["step_us"] - 10_000, again["step_us"])
    again["self_us"][slow & (again["step"] >= ONSET)] -= 10_000
    again["forward_us"] = again["cpu_us"] = again["self_us"]
    again["waited_us"] = again["step_us"] - again["self_us"]
    write_part(_store / JOB / "steps" / "part-00000002.parquet", again)
    (came,) = json.loads(kair("ledger", "--json").out)["data"]["entries"]
    assert (came["hosts"], came["devices"][0][:12]) == (["node-1"], "GPU-00000002")
    assert (came["came"], came["without"], came["without_run"][:9]) == ("came_true", "next_attempt", "attempt 2")


def test_a_damaged_ledger_is_told_and_the_rest_read(_store: Path) -> None:
    assert kair("triage", JOB).status == 0
    file = _store / FOLDER / f"{JOB}.lines"
    file.write_bytes(b"\x1b[2J damage\n" + file.read_bytes())
    outcome = kair("ledger")
    assert (outcome.status, outcome.out.startswith("1 prediction")) == (0, True)
    assert outcome.err == "kair: warning: 1 line is left out of the ledger of job job123: damaged\n"


@pytest.mark.slow
def test_triage_tells_beside_a_price_how_earlier_ones_came_out(_store: Path) -> None:
    assert kair("triage", JOB).status == 0
    (one,) = ledger_of(_store, JOB).entries
    others = [replace(one, job=f"other{at}", came="came_true" if at < 4 else "less", ratio=1.0) for at in range(5)]
    for other in others:
        change_ledger(_store, other.job, lambda kept, other=other: replace(kept, entries=(other,)))  # type: ignore[misc]
    assert "of 5 earlier predictions for this cause 4 came true within 10 %" in kair("triage", JOB).out
    document = json.loads(kair("triage", JOB, "--json").out)
    assert_valid(document, "triage")
    assert document["data"]["findings"][0]["track_record"] == {"came": 5, "came_true": 4}


@pytest.mark.slow
def test_nothing_of_it_leaves_the_machine(_store: Path) -> None:
    """The interpreter tells of every connection that a program asks for: there is none."""
    code = (
        "import sys\n"
        "asked = []\n"
        "sys.addaudithook(lambda event, _: asked.append(event) if event.startswith('socket.') else None)\n"
        "from kair_tui.cli.main import main\n"
        f"assert main(['triage', '{JOB}', '--store', {str(_store)!r}]) == 0\n"
        f"assert main(['ledger', '--store', {str(_store)!r}]) == 0\n"
        "print(asked, flush=True)\n"
        # Threads of libraries outlive the interpreter: one that reports to the hook then aborts the process.
        "import os\n"
        "os._exit(0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


DEVICE = DeviceRecord(
    kind="device",
    name="GPU-5f3e",
    jobs=9,
    slow_in=7,
    slow_share=0.03,
    jobs_before=5,
    slow_before=0,
    since="2026-11-02T00:00:00+00:00",
    driver_before="570",
    driver_since="575",
    chance=0.001,
    by_address=False,
    always_rank=None,
    ranks=(3,),  # type: ignore[arg-type]
)
HOST = replace(DEVICE, since=None, driver_before=None, driver_since=None, ranks=(), kind="host", name="node-7")


def test_the_words() -> None:
    said = {
        "all came": came_in_words(LedgerSummary(23, 23, 19)),
        "some are open": came_in_words(LedgerSummary(25, 23, 19)),
        "none came": came_in_words(LedgerSummary(3, 0, 0)),
        "of a cause": track_record_in_words(TrackRecord(12, 10)),
        "a device": record_in_words(DEVICE),
        "always the same rank": record_in_words(replace(HOST, always_rank=0)),
    }
    assert_kept("ledger", said)
    entry = LedgerEntry(kind="finding", job="a", run="b", at="2026-11-27T00:00:00+00:00", about="compute")
    assert not entry.has_come
