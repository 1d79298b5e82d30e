import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from support.cli_samples import kair
from support.live_status import SLOW, STATUS, write_status

from kair.app.answers import watch
from kair_engine.results.watch import WatchResult
from kair_tui.cli import follow as following


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAIR_RUN_DIR", str(tmp_path / "run"))
    write_status(tmp_path, STATUS)
    return tmp_path


def test_a_look_names_the_slow_rank_and_what_was_sampled(store: Path) -> None:
    told = kair("watch", "job123", "--once", "--store", str(store))
    assert told.status == 0
    assert told.out.startswith("job123: training, step 150, 60.0 ms a step (median of the last 20), rank 2 is slow\n")
    first = next(line for line in told.out.splitlines() if re.match(r" +\d", line))
    assert re.search(r"2 +node-1 +150 .*\+20.0 % .*▲ slow", first)
    assert "140-147" in told.out
    assert "step 124: rank 2 on node-1 is slow: its own time is 20" in told.out
    assert kair("watch", "--once", "--store", str(store)).out == told.out
    assert "over its budget" not in told.out
    assert "by themselves" not in told.out


def test_a_look_tells_how_often_is_sampled_and_what_is_owed(store: Path) -> None:
    hosts = tuple(replace(STATUS.hosts[0], host=name, sampled_every=every) for name, every in (("a", 50), ("b", 400)))
    write_status(store, replace(STATUS, hosts=hosts, sampling=replace(STATUS.sampling, owed_us=120_000.0)))
    told = kair("watch", "job123", "--once", "--store", str(store)).out
    assert "ranks also sample one step in 400 by themselves\n" in told
    assert "it is 120 ms over its budget: until the job has run long enough for that, ranks are sampled only" in told


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "socket"])
def test_what_stands_in_the_place_of_the_status_is_no_file(store: Path, what: str) -> None:
    """Who opens a pipe waits for its writer, who reads a device may never come to its end."""
    status = store / "job123" / "capture" / "status.json"
    status.unlink()
    if what == "pipe":
        os.mkfifo(status)
    elif what == "device":
        status.symlink_to("/dev/zero")
    elif what == "folder":
        status.mkdir()
    else:
        os.mknod(status, stat.S_IFSOCK | 0o600)
    told = kair("watch", "job123", "--once", "--store", str(store))
    assert (told.status, told.out) == (3, "")
    assert told.err.startswith(f"kair: error: cannot read {status}: ")


def test_json_is_what_the_schema_says(store: Path) -> None:
    document = json.loads(kair("watch", "job123", "--json", "--store", str(store)).out)
    schema = json.loads(kair("schema", "watch").out)
    Draft202012Validator(schema).validate(document)
    assert document["data"]["alerts"][0]["ranks"] == [2]


def test_a_stream_tells_alerts_once_and_ends_with_the_job(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> Iterator[WatchResult]:
        later = replace(SLOW, step=300, ranks=(1,))
        yield replace(STATUS, alerts=(SLOW, later))
        yield replace(STATUS, alerts=(SLOW, later), state="over")

    coming = states()
    monkeypatch.setattr(following.time, "sleep", lambda _: write_status(store, next(coming)))
    told = kair("watch", "job123", "-o", "ndjson", "--store", str(store))
    records = [json.loads(line) for line in told.out.splitlines()]
    assert [one["ranks"] for one in records if one["record"] == "alert"] == [[2], [1]]
    assert [one["record"] for one in records][-3:] == ["alert", "progress", "end"]
    assert records[-1]["rows"] == len(records) - 2
    write_status(store, STATUS)
    coming = states()
    told = kair("watch", "job123", "--store", str(store))
    assert told.out.count("rank 2 on node-1 is slow") == 1
    assert told.out.endswith("step 300: rank 1 on node-1 is slow: its own time is 20% longer\n")


@pytest.mark.parametrize(
    ("condition", "status"), [("slow_rank", 10), ("stalled", 0), ("stalled,alert", 10), ("straggler", 2)]
)
def test_pipelines_hear_of_alerts_by_the_exit_status(store: Path, condition: str, status: int) -> None:
    assert kair("watch", "job123", "--once", "--store", str(store), "--fail-on", condition).status == status


def test_an_alert_that_is_over_fails_nothing(store: Path) -> None:
    write_status(store, replace(STATUS, alerts=(SLOW, replace(SLOW, step=200, excess=None, over=True))))
    assert kair("watch", "job123", "--once", "--store", str(store), "--fail-on", "alert").status == 0


def test_a_coordinator_that_is_gone_is_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_status(store, replace(STATUS, updated_at="2026-01-01T10:00:00+00:00"))
    assert "unattended" in kair("watch", "job123", "--store", str(store)).out
    (store / "job123" / "capture" / "status.json").write_text("{")
    assert kair("watch", "job123", "--store", str(store)).status == 3
    monkeypatch.setattr(watch, "_APPEARS_S", 0.0)
    told = kair("watch", "other", "--store", str(store))
    assert told.status == 3
    assert "kair coordinator --job other" in told.err


def test_who_looks_right_after_a_coordinator_was_started_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch.time, "sleep", lambda _: write_status(tmp_path, STATUS))
    told = kair("watch", "job123", "--once", "--store", str(tmp_path))
    assert (told.status, told.out[:16]) == (0, "job123: training")
    assert told.err == "kair: waiting up to 5 s for a coordinator of job job123 to begin\n"


def test_figures_that_are_not_written_any_more_are_not_shown_as_live(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime.now(UTC) - timedelta(seconds=12)
    write_status(store, replace(STATUS, updated_at=at.isoformat(), unwritten_since="2026-01-01T10:00:00.000+00:00"))
    told = kair("watch", "job123", "--once", "--store", str(store)).out
    assert told.startswith("job123: training, figures are 12 s old, step 150")
    assert "since 2026-01-01T10:00:00 UTC step times cannot be written" in told
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(watch.os, "statvfs", lambda _: full)
    told = kair("watch", "job123", "--once", "--store", str(store)).out
    assert told.startswith("job123: training, figures are 12 s old, the store is full, step 150")


def test_how_slow_a_rank_is_is_told_in_ms_of_a_step(store: Path) -> None:
    """A rank that has next to nothing to do of its own is slower by any share."""
    slow = replace(SLOW, excess=210.84, excess_us=12_300.0, excess_of_step=0.205)
    longer = replace(SLOW, kind="longer_steps", ranks=(), hosts=(), excess=0.2, excess_us=1500.0, excess_of_step=0.17)
    ranks = [replace(one, excess_us=12_300.0, excess_of_step=0.205) if one.slow else one for one in STATUS.ranks]
    write_status(store, replace(STATUS, alerts=(slow, longer), ranks=tuple(ranks), attempt=2))
    told = kair("watch", "job123", "--once", "--store", str(store)).out
    assert "attempt 2, step 150" in told
    assert "step 124: rank 2 on node-1 is slow: its own time is 12 ms longer (20% of the step)\n" in told
    assert "step 124: the job's steps became longer by 1.5 ms (20%)\n" in told
    assert re.search(r"2 +node-1 .*\+12.3 ms \(20.5 %\)", told)


def test_a_job_whose_ranks_recorded_no_step_is_said_to_be_watched(store: Path) -> None:
    told = kair("triage", "job123", "--store", str(store))
    assert told.status == 3
    assert "job job123 is watched, and no step of it was recorded yet" in told.err
    assert "kair watch job123" in told.err


def test_a_window_by_hand_needs_a_coordinator(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = kair("capture", "now", "--job", "job123", "--ranks", "1,3", "--store", str(store))
    assert told.status == 3
    assert "has no coordinator" in told.err
    assert kair("capture", "now", "--job", "job123", "--ranks", "x", "--store", str(store)).status == 2
    assert kair("coordinator", "--job", "j", "--max-overhead", "200%", "--store", str(store)).status == 2
    assert kair("coordinator", "--job", "j", "--listen", "x:y", "--store", str(store)).status == 2
    monkeypatch.setenv("KAIR_COORDINATOR", ":")
    told = kair("capture", "now", "--job", "job123", "--store", str(store))
    assert (told.status, "KAIR_COORDINATOR: an address is host:port" in told.err) == (2, True)


def test_what_cannot_be_run_has_the_status_of_a_shell_and_one_line(store: Path) -> None:
    (store / "no-program").write_text("")
    for command, status in ({"no-such-command": 127, "./no/such": 127, str(store / "no-program"): 126}).items():
        told = kair("capture", "run", "--job", "j", "--store", str(store), "--", command, "x")
        assert told.status == status
        assert len(told.err.splitlines()) == 1
        assert f"kair: error: cannot run {command}: " in told.err


def test_an_address_that_is_taken_is_named(store: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        told = kair("coordinator", "--job", "j", "--listen", where, "--store", str(store))
    assert told.status == 3
    assert f"cannot listen at {where}: Address already in use" in told.err


def test_a_second_coordinator_of_a_host_takes_a_free_port(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda _, stop: stop and stop())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr("kair_capture.places.DEFAULT_PORT", port)
        told = kair("coordinator", "--job", "j", "--store", str(store))
    assert told.status == 0
    assert "coordinator of job j at 127.0.0.1:" in told.err
    assert f":{port}," not in told.err


@pytest.mark.slow
def test_a_command_runs_without_capture_where_that_cannot_be_and_it_is_told_once(store: Path) -> None:
    (store / "taken").touch()
    program = "import os, sys; print(os.environ['KAIR_DISABLE'], 'KAIR_CAPTURE' in os.environ); sys.exit(6)"
    command = [sys.executable, "-m", "kair_tui", "capture", "run", "--job", "j", "--", sys.executable, "-c", program]
    for variable, value, why in (
        ("KAIR_RUN_DIR", f"{store}/taken", f"{store}/taken: File exists"),
        ("KAIR_RING_RECORDS", "5", "KAIR_RING_RECORDS must be a power of two from 256 to 4194304"),
    ):
        ran = subprocess.run(command, env={**os.environ, variable: value}, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == (6, "1 False\n")
        assert ran.stderr == f"kair: warning: capture is off, the command runs without: {why}\n"
