"""Plans that change the global batch change the learning rate with it, each step exactly once, and give it back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.cli_samples import kair, store_variables
from support.ranks import run_ranks

from kair_mitigate import orders
from kair_mitigate.job_state import StateWriter
from kair_mitigate.plans import RULES, Plan, Rule, State
from kair_mitigate.records import Records

JOB = Path(__file__).parent / "jobs" / "learning_rate.py"


@pytest.mark.live
def test_each_step_takes_the_rate_of_its_batch_and_the_job_sees_its_own(tmp_path: Path) -> None:
    """Through four plans, a scheduler and a restart from a checkpoint."""
    pytest.importorskip("torch")
    run_ranks(JOB, 2, str(tmp_path))
    steps = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    factors = [(16, 1.0), (12, 12 / 16), (4, (4 / 16) ** 0.5), (16, 1.0), (12, 1.0)]
    seen = [(steps[0]["samples"], steps[0]["took"] / steps[0]["own"])]
    for number, step in enumerate(steps):
        assert step["own"] == step["after"] == pytest.approx(0.08 * 0.9 ** (number // 10))
        now = step["samples"], step["took"] / step["own"]
        if now[0] != seen[-1][0]:
            seen.append(now)
    assert [samples for samples, _ in seen] == [samples for samples, _ in factors]
    assert [factor for _, factor in seen] == pytest.approx([factor for _, factor in factors])


def state(*sizes: int, rule: Rule = "linear") -> State:
    """That of a job of 24 samples a step, later of these."""
    return State(1, 0, 0, 40, Plan(0, 0, (8, 8, 8))).heard(Plan(1, 0, sizes, learning_rate=rule)).next(2000)[1]


@pytest.mark.parametrize(
    ("rule", "factor"), [("linear", 0.5), ("sqrt", 0.5**0.5), ("keep", 1.0)], ids=["linear", "sqrt", "keep"]
)
def test_the_factor_is_kept_in_checkpoints_and_is_of_the_jobs_own_batch(rule: Rule, factor: float) -> None:
    now = State.from_json(json.loads(json.dumps(state(4, 4, 4, rule=rule).as_json())))
    assert now.batch == 24
    assert now.rate_factor(now.plan) == factor
    assert now.for_ranks(2).rate_factor(now.for_ranks(2).plan) == factor
    assert now.rate_factor(Plan(2, 0, (9, 8, 7), learning_rate=rule)) == 1


def test_a_plan_with_another_rule_is_refused() -> None:
    document = Plan(1, 0, (4, 4)).as_json()
    for rule in ("cubic", None, ["linear"], 1):
        with pytest.raises(ValueError, match="no plan"):
            Plan.from_json(document | {"learning_rate": rule})
    assert {Plan.from_json(document | {"learning_rate": rule}).learning_rate for rule in RULES} == set(RULES)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """That of a job of three ranks with 8 samples each, whose loader knows the optimizer."""
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    made = tmp_path / "store" / "job7" / "mitigate"
    Records(made)
    StateWriter(made, 0, has_rate=True).write(State(1, 0, 960, 40, Plan(0, 0, (8, 8, 8))), 2000, 2)
    return made


def test_another_batch_is_ordered_with_its_rate_shown_and_undone(folder: Path) -> None:
    assert kair("mitigate", "plan", "job7", "--sizes", "8,8,2").status == 2
    assert kair("mitigate", "plan", "job7", "--sizes", "8,8,2", "--learning-rate", "sqrt").status == 0
    plan = orders.read_plan(folder, orders.read_key(folder))
    assert plan == Plan(1, 0, (8, 8, 2), learning_rate="sqrt")
    [ordered] = json.loads(kair("mitigate", "history", "job7", "--json").out)["data"]["history"]
    assert ordered["learning_rate"] == pytest.approx((18 / 24) ** 0.5)
    assert "8,8,2 samples a step, learning rate × 0.866" in kair("mitigate", "history", "job7").out
    StateWriter(folder, 0, has_rate=True).write(State(1, 0, 1200, 50, replace(plan, from_step=48), batch=24), 2000, 2)
    assert kair("mitigate", "undo", "job7").status == 0
    assert orders.read_plan(folder, orders.read_key(folder)) == Plan(2, 0, (8, 8, 8))


def test_a_proposal_of_another_batch_is_approved_with_its_rule(folder: Path) -> None:
    records = Records(folder)
    number = records.propose("adjust_lr", (8, 8, 2), {"learning_rate": 0.75}, learning_rate="linear")
    assert "batch" in kair("mitigate", "status", "job7").out
    assert kair("mitigate", "approve", "job7", str(number)).status == 0
    assert orders.read_plan(folder, orders.read_key(folder)).sizes == (8, 8, 2)


def test_a_loader_without_the_optimizer_keeps_its_batch(folder: Path) -> None:
    StateWriter(folder, 0).write(State(1, 0, 960, 40, Plan(0, 0, (8, 8, 8))), 2000, 2)
    said = kair("mitigate", "plan", "job7", "--sizes", "8,8,2", "--learning-rate", "linear")
    assert (said.status, "optimizer=optimizer" in said.err) == (3, True)
