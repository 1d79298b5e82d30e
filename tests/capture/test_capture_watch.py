"""`kair capture run --watch` brings a coordinator, which goes with the job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import PATIENCE_S, wait_until

from kair_capture.files import BusyError, locked
from kair_capture.places import JobPlaces
from kair_tui.commands.capture_watch import start_coordinator


@pytest.mark.slow
def test_a_job_that_is_run_with_watch_has_a_coordinator_as_long_as_it_runs(tmp_path: Path) -> None:
    places = JobPlaces(tmp_path, "job")
    until_it_listens = f"until [ -e {places.address} ]; do sleep 0.1; done"
    run = ("capture", "run", "--watch", "--no-agent", "--job", "job", "--store", str(tmp_path))
    ran = subprocess.run(
        (sys.executable, "-P", "-m", "kair_tui", *run, "--", "sh", "-c", until_it_listens),
        env={**os.environ, "KAIR_RUN_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "kair: coordinator of job job at 127.0.0.1:" in ran.stderr
    wait_until(lambda: not places.address.exists())
    os.close(locked(places.capture / "lock"))


def test_a_second_coordinator_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = JobPlaces(tmp_path, "job")
    places.capture.mkdir(parents=True)
    held = locked(places.capture / "lock")
    monkeypatch.delenv("KAIR_COORDINATOR", raising=False)
    start_coordinator(tmp_path, "job")
    assert capsys.readouterr().err == "kair: job job has a coordinator already\n"
    with pytest.raises(BusyError):
        locked(places.capture / "lock")
    os.close(held)
    monkeypatch.setenv("KAIR_COORDINATOR", "login-1:7433")
    start_coordinator(tmp_path, "job")
    assert "is watched by the coordinator at login-1:7433" in capsys.readouterr().err
