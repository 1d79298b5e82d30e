"""Runbooks: what they answer, when they fail, and with which exit status."""

import gzip
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.answers import recorded
from support.cli_samples import Outcome, assert_valid, kair
from support.kept_cases import KeptCase, kept_cases
from support.places import SAMPLES

from kair_engine.triage import analysis
from kair_tui.shell.recorder import Recorder, from_anywhere
from kair_tui.shell.runbooks import bundled_names

SAMPLE = SAMPLES / "slow_operator"
HEALTHY = SAMPLES / "healthy"

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "book.kair"


def run(book: Path, text: str, *arguments: str) -> Outcome:
    book.write_text(text)
    return kair("run", str(book), str(SAMPLE), *arguments)


TEN = """\
default limit = 1.05
info --quiet
steps
worst = localize
use rank $worst.rank
pinpoint
rank
use step last
when $worst.flagged:
    blame
    blame --operator "$worst.host"
use rank all
when not $worst.flagged: fail "never"
use step all
localize --by host
frequency
localize
expect $worst.score < $limit
"""


@pytest.mark.slow
def test_a_runbook_reads_the_job_once_and_tells_all_in_one_document(
    book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def counted(source: Any, **_: Any) -> Any:  # noqa: ANN401
        opened.append(source.path)
        return recorded(source.path)

    monkeypatch.setattr("kair.app.jobs.open_source", counted)
    outcome = run(book, TEN, "-o", "json")
    document = json.loads(outcome.out)
    assert_valid(document, "run")
    data = document["data"]
    assert (outcome.status, data["status"], data["jobs_read"], opened) == (10, 10, 1, [SAMPLE])
    commands = [one["command"].removeprefix("kair ") for one in data["statements"] if one["command"]]
    assert commands == [
        f"info {SAMPLE} --quiet",
        f"steps {SAMPLE}",
        f"localize {SAMPLE}",
        f"pinpoint {SAMPLE} --rank 2",
        f"rank {SAMPLE} --rank 2",
        f"blame {SAMPLE} --rank 2 --step last",
        f"blame {SAMPLE} --operator node0 --rank 2 --step last",
        f"localize {SAMPLE} --by host",
        f"frequency {SAMPLE}",
        f"localize {SAMPLE}",
    ]
    states = {one["statement"]: one["state"] for one in data["statements"]}
    assert states['fail "never"'] == "skipped"
    assert states["when $worst.flagged:"] == "met"
    assert states["expect $worst.score < $limit"] == "not_met"
    (pinpoint,) = (one["result"] for one in data["statements"] if one["statement"] == "pinpoint")
    assert_valid(pinpoint, "pinpoint")
    assert pinpoint == json.loads(kair("pinpoint", str(SAMPLE), "--rank", "2", "--json").out)


def test_people_read_each_statement_above_its_answer(book: Path) -> None:
    text = "w = localize\nwhen $w.flagged: use rank $w.rank\npinpoint\nexpect not $w.flagged\nexpect $w.rank == 1\n"
    outcome = run(book, text)
    assert outcome.status == 10
    pinpoint = kair("pinpoint", str(SAMPLE), "--rank", "2").out
    assert outcome.out.startswith(f"1: w = localize\n{kair('localize', str(SAMPLE)).out}\n2: when $w.flagged: yes\n")
    assert f"3: pinpoint\n{pinpoint}\n4: expect not $w.flagged: does not hold, $w.flagged is true\n" in outcome.out
    assert outcome.err.endswith(" s\n") and "2 commands, 1 recording read" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("case", kept_cases("runbook_endings"))
def test_it_ends_with_the_verdict_and_what_was_found(book: Path, case: KeptCase) -> None:
    outcome, document = (run(book, case.given["text"], *look) for look in (["--quiet"], ["-o", "json"]))
    summary = json.loads(document.out)["data"]["summary"]
    assert outcome.out.splitlines()[-1] == f"{book}: {summary}"
    assert document.err.splitlines()[-1] == f"kair: {book}: {summary}"
    assert summary.endswith(f"; exit status {outcome.status}")
    case.assert_said(summary)


def test_an_answer_without_rows_says_so(book: Path) -> None:
    text = "whatif --fix kind=input --only-fixes\nlocalize --step 4 -o csv\npinpoint --rank 1 --step 6 -o csv\n"
    outcome = run(book, text)
    header = kair("pinpoint", str(SAMPLE), "--rank", "1", "--step", "6", "-o", "csv").out
    assert header.count("\n") == 1
    assert f"3: pinpoint --rank 1 --step 6 -o csv\n{header}no outliers\n" in outcome.out
    assert "no scores" not in outcome.out


def refused(book: Path, outcome: Outcome) -> list[int | str]:
    """Its status, and what it says of that."""
    return [outcome.status, *outcome.err.replace(str(book), "BOOK").splitlines()]


@pytest.mark.parametrize("case", kept_cases("runbooks_that_cannot_work"))
def test_what_cannot_work_is_told_before_anything_runs(book: Path, case: KeptCase) -> None:
    outcome = run(book, case.given["text"])
    assert outcome.out == ""
    case.assert_said(refused(book, outcome))


@pytest.mark.parametrize("case", kept_cases("runbooks_that_fail"))
def test_what_fails_ends_the_run_with_its_line_and_status(book: Path, case: KeptCase) -> None:
    outcome = run(book, case.given["text"], "-o", "json", "--quiet")
    last = json.loads(outcome.out)["data"]["statements"][-1]
    assert (last["state"], last["status"]) == ("failed", outcome.status)
    case.assert_said(refused(book, outcome))


def test_a_failure_outranks_a_finding(book: Path) -> None:
    assert run(book, "expect 1 == 2\nlocalize --fail-on straggler", "--quiet").status == 10
    assert run(book, "expect 1 == 2\nuse rank 99", "--quiet").status == 2


def test_values_are_set_from_outside_and_only_those_that_are_asked_for(book: Path) -> None:
    text = "default limit = 1\nexpect 5 < $limit\n"
    assert run(book, text).status == 10
    assert run(book, text, "--set", "limit=7.5").status == 0
    wrong = run(book, text, "--set", "limt=7")
    assert (wrong.status, wrong.err) == (
        2,
        "kair: error: --set limt: nothing here asks for $limt\nhint: did you mean $limit?\n",
    )
    assert run(book, text, "--set", "limit").err.startswith("kair: error: --set 'limit' sets nothing")


def test_only_a_line_that_begins_with_a_bang_reaches_a_shell(
    book: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "default name = '$(touch hacked); `touch hacked`; ; touch hacked'\nblame --operator $name\n!echo $KAIR_JOB\n"
    outcome = run(book, text, "--allow-shell", "-q")
    assert (outcome.status, [*tmp_path.iterdir()]) == (0, [book])
    assert capfd.readouterr().out == f"{SAMPLE}\n"
    assert run(book, "!exit 7\ninfo", "--allow-shell").status == 7


def test_a_dry_run_prints_the_plan_and_opens_nothing(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kair_tui.shell.session.open_session", None)
    text = "w = localize\nwhen $w.flagged:\n    pinpoint --rank $w.rank\n"
    planned = run(book, text, "--dry-run").out.splitlines()
    assert planned[2:] == ["   1  w = localize", "   2  when $w.flagged:", "   3      pinpoint --rank $w.rank"]
    document = json.loads(run(book, text, "--dry-run", "--json").out)
    assert [one["state"] for one in document["data"]["statements"]] == ["planned"] * 3


def test_runbooks_are_listed_with_what_they_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.kair").write_text("#!/usr/bin/env -S kair run\n# Is \x1b[31mit slow?\nlocalize\n")
    (tmp_path / "bare.kair").write_bytes(b"localize # \xff\n")
    shown = kair("run", "--list")
    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines if "  Kair  " in line] == [*bundled_names()]
    assert "\x1b" not in shown.out
    assert re.search(r"^mine\.kair +this folder +Is .*it slow\?$", shown.out, re.MULTILINE)
    listed = json.loads(kair("run", "--list", "--json").out)["data"]["runbooks"]
    assert [one["name"] for one in listed] == [*bundled_names(), "bare.kair", "mine.kair"]
    assert all(one["about"] for one in listed if one["is_bundled"]) and listed[-2]["about"] is None
    assert kair("run", "--list", "-o", "csv").status == kair("run").status == 2


def test_a_wrong_name_of_a_runbook_is_answered_with_the_nearest() -> None:
    wrong = kair("run", "nighty")
    assert (wrong.status, wrong.err) == (
        3,
        "kair: error: no runbook 'nighty', and no such file\nhint: did you mean nightly?\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "job", "status"),
    [
        ("first-look", SAMPLE, 10),
        ("slow-node", SAMPLE, 10),
        ("slow-network", SAMPLE, 0),
        ("input-bound", SAMPLE, 0),
        ("regression", SAMPLE, 10),
        ("regression", SAMPLES / "two_hosts_upgrade", 10),
        ("nightly", SAMPLE, 10),
        ("nightly", HEALTHY, 0),
        ("first-look", HEALTHY, 0),
    ],
)
def test_the_bundled_ones_find_what_there_is(name: str, job: Path, status: int) -> None:
    before = f"base={SAMPLES / 'two_hosts_healthy'}" if "upgrade" in job.name else "step_us=7e4"
    settings = ["--set", before] if name == "regression" else []
    outcome = kair("run", name, str(job), *settings, "--quiet")
    assert outcome.status == status, outcome.err + outcome.out[-900:]


@pytest.mark.slow
def test_a_slow_network_is_found_behind_a_costlier_finding(tmp_path: Path) -> None:
    """Of two hosts node1 sends 50 times slower, which takes 10 ms a step; input that is slow on a rank takes 28."""
    for path in (SAMPLES / "two_hosts_slow_input").glob("*.json.gz"):
        content = json.loads(gzip.decompress(path.read_bytes()))
        ends = [["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"]]
        slow = content["host_name"] == "node1"
        rate = 10**8 if slow else 5 * 10**9
        content["kair"] = {"sent": [[step, *ends[slow], 250_000, rate, 0] for step in range(4, 14)]}
        (tmp_path / path.stem).write_text(json.dumps(content))
    found = json.loads(kair("triage", str(tmp_path), "-o", "json").out)["data"]["findings"]
    assert [(one["cause"], one["hosts"]) for one in found] == [("input", ["node1"]), ("communication", ["node1"])]
    assert kair("run", "slow-network", str(tmp_path), "--quiet").status == 10


def test_a_regression_is_told_what_was_before() -> None:
    outcome = kair("run", "regression", str(SAMPLE), "--quiet")
    assert outcome.status == 1
    assert "--set base=JOB" in outcome.err


@pytest.mark.slow
def test_a_recording_runs_from_anywhere_and_asks_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").symlink_to(SAMPLE)
    recorder = Recorder()
    recorder.start(Path("night.kair"), "traces")
    for command in ("steps", "triage", "info", "triage"):
        recorder.add(f"kair {command} traces")
    recorder.add("kair triage traces --json")
    book = recorder.stop()
    assert book is not None
    assert os.access(book, os.X_OK)
    first, _, *lines = book.read_text().splitlines()
    assert first == "#!/usr/bin/env -S kair run"
    assert lines[:3] == [f"kair {command} {tmp_path}/traces" for command in ("steps", "triage", "info")]
    asked = []
    real = analysis.triage
    monkeypatch.setattr(analysis, "triage", lambda *of, **how: asked.append(of) or real(*of, **how))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    outcome = kair("run", str(book))
    assert (outcome.status, len(asked)) == (0, 1)
    text, _, document = outcome.out.partition("{\n")
    assert f"4: kair triage {tmp_path}/traces\n" in text
    assert "straggler: rank 2 (compute, 22.3 of the 95.0 ms step)" in text
    assert json.loads("{" + document.rpartition("}\n")[0] + "}")["data"]["verdict"] == "straggler"


def test_names_of_stored_jobs_stay_and_other_places_become_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kair("import", str(SAMPLE), "--job", "night").status == 0
    (tmp_path / "night").mkdir()
    assert from_anywhere("kair triage night") == "kair triage night"
    assert from_anywhere("kair blame night --rank 2 --store other") == (
        f"kair blame {tmp_path}/night --rank 2 --store {tmp_path}/other"
    )
    assert from_anywhere("kair import night --job x") == f"kair import {tmp_path}/night --job x"


def test_it_goes_on_where_that_is_wanted_but_not_after_fail(book: Path) -> None:
    text = "schema nothing\nuse rank 99\nschema blame\nfail enough\nschema triage\n"
    assert '"kair blame --json"' not in run(book, text).out
    outcome = run(book, text, "-k", "-q")
    assert outcome.status == 2
    assert '"kair blame --json"' in outcome.out
    assert '"kair triage --json"' not in outcome.out


def test_a_runbook_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"kair localize {SAMPLE} --fail-on straggler --fields rank\n"))
    assert kair("run", "-").status == 10


@pytest.mark.slow
def test_files_are_written_the_store_is_asked_and_answers_follow_its_baseline(book: Path, tmp_path: Path) -> None:
    text = f"""\
export -o "{tmp_path}/all.json"
baseline save calm {SAMPLES}/two_hosts_healthy
use job {SAMPLES}/two_hosts_upgrade
before = localize
baseline use calm
after = localize
expect $before.against_baseline == null and $after.against_baseline.baseline == calm
cache
"""
    outcome = run(book, text)
    assert outcome.status == 0, outcome.err
    assert (tmp_path / "all.json").stat().st_size > 0
