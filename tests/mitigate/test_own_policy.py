"""`--policy module:class`: a user's own policy is found, its mistakes are reported, and the job goes on."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.cli_samples import kair, store_variables

from kair_mitigate.policy.loading import Guarded
from kair_mitigate.policy.policies import NOTHING, Action, View
from kair_mitigate.policy.rates import Rates

DOCS = Path(__file__).parents[2] / "docs" / "mitigation.md"
BROKEN = """
from kair_mitigate.policy.policies import Action

class Raises:
    def decide(self, view):
        return 1 / 0

class Nonsense:
    def decide(self, view):
        return "resize"

class NeedsArguments:
    def __init__(self, factor): ...
    def decide(self, view): ...

class Nothing: ...
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The current folder, with modules of policies in it."""
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_policies.py").write_text(BROKEN)
    (tmp_path / "bad_syntax.py").write_text("class (")
    (tmp_path / "bad_import.py").write_text("import no_such_package_of_ours")
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.slow
def test_the_documented_example_saves_time_in_simulated_jobs(folder: Path) -> None:
    [example] = re.findall(r"```python\n(import numpy.*?)```", DOCS.read_text(), re.DOTALL)
    (folder / "my_policies.py").write_text(example)
    asked = "--policy", "my_policies:HalveTheSlowest", "--ranks", "8", "--draws", "1", "--json"
    said = kair("mitigate", "simulate", *asked)
    assert (said.status, said.err) == (0, "")
    speed_ups = [row["speed_up"] for row in json.loads(said.out)["data"]["simulated"]]
    assert max(speed_ups) > 1.5
    assert min(speed_ups) > 0.99


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("no_such_module:Policy", 2, "there is no module no_such_module"),
        ("no_such.module:Policy", 2, "there is no module no_such.module"),
        ("broken_policies:Missing", 2, "module broken_policies has no Missing"),
        ("broken_policies:Nothing", 2, "it has no method decide(view)"),
        ("broken_policies:NeedsArguments", 2, "made without arguments"),
        ("broken_policies:", 2, "name it as module:class"),
        (":Policy", 2, "name it as module:class"),
        ("broken_policies", 2, "no policy 'broken_policies'"),
        ("bad_syntax:Policy", 3, "cannot import bad_syntax: SyntaxError"),
        ("bad_import:Policy", 3, "cannot import bad_import: ModuleNotFoundError"),
        ("broken_policies:Raises", 3, "failed: ZeroDivisionError: division by zero (broken_policies.py:6)"),
        ("broken_policies:Nonsense", 3, "answered str, which is no Action"),
    ],
)
def test_what_is_no_policy_is_refused_in_a_line(name: str, status: int, text: str) -> None:
    said = kair("mitigate", "simulate", "--policy", name, "--ranks", "2", "--draws", "1")
    assert said.status == status
    assert text in said.err
    assert said.err.startswith("kair: error: ")
    assert "Traceback" not in said.err


def view(**changes: object) -> View:
    """Four units of 16 samples, which have computed 80 ms for 40 steps."""
    rates, sizes = Rates(4), np.full(4, 16)
    for step in range(40):
        rates.add(step, np.full(4, 0.08), sizes)
    lowest, highest = np.full(4, 2), np.full(4, 32)
    about = {"step": 39, "steps_left": 100, "sizes": sizes, "pending": False, "lowest": lowest, "highest": highest}
    about |= {"rates": rates, "compute_s": np.full(4, 0.08), "done": sizes}
    return View(**about | changes)  # type: ignore[arg-type]


class Answers:
    """A policy that answers this."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def decide(self, view: View) -> Action:
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer == "changes the view":
            view.sizes[0] = 0
        return self.answer  # type: ignore[return-value]


SIZES = np.array([20, 12, 16, 16])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ValueError("no\nidea"), "failed: ValueError: no idea"),
        (SystemExit(3), "failed: SystemExit: 3"),
        (None, "answered NoneType, which is no Action"),
        ("changes the view", "failed: ValueError: assignment destination is read-only"),
        (Action("resize"), "answered kind 'resize'"),  # type: ignore[arg-type]
        (Action("adjust_bs"), "without sizes"),
        (Action("adjust_bs", sizes=[20, 12, 16, 16]), "no array of 4 integers"),  # type: ignore[arg-type]
        (Action("adjust_bs", sizes=SIZES[:3]), "no array of 4 integers"),
        (Action("adjust_bs", sizes=SIZES / 1), "no array of 4 integers"),  # type: ignore[arg-type]
        (Action("adjust_bs", sizes=SIZES + 1), "do not add up to 64"),
        (Action("adjust_bs", sizes=np.array([40, 8, 8, 8])), "leave their bounds (2 to 32)"),
        (Action("adjust_lr"), "adjust_lr without sizes"),
        (Action("adjust_lr", sizes=SIZES - 2), "the job's loader was given no optimizer="),
        (Action("adjust_bs", sizes=SIZES, learning_rate="cubic"), "learning_rate 'cubic'"),  # type: ignore[arg-type]
        (Action("adjust_bs", sizes=SIZES, micro_batches=SIZES - 16), "fewer than 1 micro-batch"),
        (Action("backup_workers"), "neither a deadline above 0 nor spare units"),
        (Action("backup_workers", deadline=float("nan")), "neither a deadline above 0 nor spare units"),
        (Action("backup_workers", spare=1), "a real job waits for all"),
        (Action("kill_restart", units=np.array([4])), "units that are not there"),
        (Action("adjust_bs", sizes=SIZES, reason={"why": "slow"}), "no number"),  # type: ignore[dict-item]
    ],
    ids=str,
)
def test_what_the_job_cannot_do_is_reported_once_and_is_no_action(answer: object, text: str) -> None:
    reports: list[str] = []
    policy = Guarded(Answers(answer), "my:Policy", reports.append)
    assert [policy.decide(view()), policy.decide(view(step=40))] == [NOTHING, NOTHING]
    [report] = reports
    assert report.startswith("policy my:Policy ")
    assert text in report
    assert report.endswith("nothing is planned (step 39)")


def test_another_batch_is_for_jobs_that_can_follow_it() -> None:
    action = Action("adjust_lr", sizes=SIZES - 2, learning_rate="sqrt")
    assert Guarded(Answers(action), "my:Policy", print).decide(view(can_adjust_lr=True)) is action


def test_while_a_plan_is_to_come_only_a_restart_counts() -> None:
    resize, restart = Action("adjust_bs", sizes=SIZES), Action("kill_restart", units=np.array([1]))
    assert Guarded(Answers(resize), "my:Policy", print).decide(view()) is resize
    assert Guarded(Answers(resize), "my:Policy", print).decide(view(pending=True)) is NOTHING
    assert Guarded(Answers(restart), "my:Policy", print).decide(view(pending=True)) is restart
