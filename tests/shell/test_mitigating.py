"""Runbooks about a job that is run under `kair mitigate`: they look, and change what is written out in them alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli_samples import Outcome, kair, store_variables

from kair_mitigate.job_state import StateWriter
from kair_mitigate.plans import Plan, State
from kair_mitigate.records import Records

Run = Callable[..., Outcome]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """That of a job of three ranks of which nothing was recorded yet."""
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    Records(tmp_path / "store" / "job7" / "mitigate")
    StateWriter(tmp_path / "store" / "job7" / "mitigate", 0).write(State(1, 0, 960, 40, Plan(0, 0, (8, 8, 8))), 2000, 2)
    return tmp_path / "store" / "job7" / "mitigate"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(text: str, *arguments: str) -> Outcome:
        (tmp_path / "book.kair").write_text(text)
        return kair("run", str(tmp_path / "book.kair"), "job7", *arguments)

    return run


APPROVES = """\
m = mitigate status
when $m.proposals.count > 0 and $m.proposals[0].decision == open:
    mitigate approve $m.proposals[0].number
after = mitigate status
expect not $after.proposals contains 1 or $after.proposals[0].decision == approved
"""


def test_a_runbook_approves_what_is_written_out_in_it(folder: Path, run: Run) -> None:
    assert run(APPROVES).status == 0
    number = Records(folder).propose("adjust_bs", (10, 4, 10), {"now_s": 0.129, "after_s": 0.107})
    assert run(APPROVES, "--dry-run").status == 0
    assert not (folder / "plan.json").exists()
    said = run(APPROVES)
    assert (said.status, said.err.count("error")) == (0, 0)
    assert [(one.number, one.decision) for one in Records(folder).proposals()] == [(number, "approved")]
    assert Records(folder).history()[0].plan.sizes == (10, 4, 10)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("default what = status\nmitigate $what", "what is to be done is written out"),
        ("default what = undo\nmitigate --job job7 $what", "what is to be done is written out"),
        ("default host = --yes\nmitigate drain $host", "options are written out"),
        ("mitigate run -- true", "mitigate run goes on next to the job"),
        ("mitigate control job7 --auto", "mitigate control goes on next to the job"),
        ("m = mitigate status\nexpect $m.proposal.count == 0", "did you mean proposals?"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_a_value_would_do_to_a_job_is_refused(text: str, says: str, run: Run) -> None:
    said = run(text)
    assert (said.status, says in said.err) == (2, True), said.err


def test_a_value_from_outside_orders_nothing(folder: Path, run: Run) -> None:
    StateWriter(folder, 0).write(State(1, 0, 1200, 50, Plan(4, 48, (12, 0, 12))), 2000, 2)
    assert run("default what = status\nmitigate $what", "--set", "what=undo").status == 2
    assert not (folder / "plan.json").exists()


def test_the_bundled_one_finds_a_proposal_that_waits(folder: Path) -> None:
    assert kair("run", "proposals", "job7").status == 0
    number = Records(folder).propose("adjust_bs", (10, 4, 10), {})
    said = kair("run", "proposals", "job7")
    assert (said.status, "10,4,10" in said.out) == (10, True)
    Records(folder).decide(number, "denied", "me")
    assert kair("run", "proposals", "job7").status == 0


@pytest.mark.usefixtures("folder")
def test_other_commands_say_that_nothing_is_recorded(run: Run) -> None:
    said = run("localize")
    assert (said.status, "no job job7 in the store" in said.err) == (2, True)
    assert run("mitigate status job8").status == 3
