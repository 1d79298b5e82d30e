"""What policies would have saved a recorded job: `kair mitigate simulate JOB`, Python's `mitigation`, and histories."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_samples import assert_valid, kair, store_variables
from support.places import MEGATRON, SAMPLES

import kair as python
from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.step_log import StepLog
from kair_engine.results.mitigate import SimulatedPolicy
from kair_mitigate.policy.replay import IN_ORDER, replay
from kair_mitigate.policy.units import Units

pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]
RECOMMENDED = ("continuous", "continuous-deadline", "deterministic")
"""Policies that can be the one which saves most."""
ALONE = Units(((0,), (1,), (2,), (3,)), "assumed")


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def simulated(*words: str) -> dict[str, Any]:
    said = kair("mitigate", "simulate", *words, "--json")
    assert said.status == 0, said.err
    told = json.loads(said.out)
    assert_valid(told, "mitigate")
    answer: dict[str, Any] = told["data"]
    return answer


def asked_for(policies: tuple[str, ...]) -> list[str]:
    return [word for policy in policies for word in ("--policy", policy)]


def test_where_all_ranks_meet_in_every_micro_batch_nothing_can_be_resized() -> None:
    if not MEGATRON.exists():
        pytest.skip("the real recording is absent")
    words = [str(MEGATRON), *asked_for(RECOMMENDED)]
    answer = simulated(*words)
    assert answer["replay"]["units"] == [list(range(8))]
    assert not answer["replay"]["is_assumed"]
    assert answer["replay"]["saves"] is None
    said = kair("mitigate", "simulate", *words).out
    assert said.startswith("nothing to save by resizing: all 8 ranks meet in every micro-batch")


@pytest.mark.parametrize(
    ("sample", "policies", "slow"),
    [("slow_operator", (), [2]), ("job123", (*RECOMMENDED, "backup-workers"), [17])],
)
def test_a_slow_rank_is_given_less_and_the_saving_has_a_range(
    sample: str, policies: tuple[str, ...], slow: list[int]
) -> None:
    answer = simulated(str(SAMPLES / sample), *asked_for(policies))
    rows = {row["policy"]: row for row in answer["simulated"]}
    best = rows[answer["replay"]["saves"]]
    assert answer["replay"]["saves"] == "continuous"
    assert 0.1 < best["saved_us"] / answer["replay"]["step_us"] < 0.16
    assert best["least_saved_us"] <= best["saved_us"] <= best["most_saved_us"]
    assert best["step_us"] == pytest.approx(answer["replay"]["step_us"] - best["saved_us"])
    assert [rank for rank, size in enumerate(best["sizes"]) if size < 95] == slow
    assert answer["replay"]["is_in_per_cent"]
    assert rows["backup-workers"]["spare"] == 1


@pytest.mark.parametrize("sample", ["healthy", "two_hosts_healthy"])
def test_of_a_healthy_job_there_is_nothing_to_save(sample: str) -> None:
    words = [str(SAMPLES / sample), *asked_for(RECOMMENDED)]
    assert kair("mitigate", "simulate", *words).out.startswith("nothing to save: steps of ")
    answer = simulated(*words)
    assert answer["replay"]["saves"] is None
    assert {row["saved_us"] for row in answer["simulated"] if row["policy"].startswith("continuous")} == {0}


def test_python_gives_the_same_answer() -> None:
    path = str(SAMPLES / "slow_operator")
    answer = python.open(path, progress=False).mitigation(policy=["deterministic"], sizes=[16] * 4, most=24)
    asked = simulated(path, "--policy", "deterministic", "--sizes", "16,16,16,16", "--most", "24")
    assert json.loads(answer.to_json())["data"]["simulated"] == asked["simulated"]
    assert sum(answer.simulated[0].sizes) == 64
    assert answer.replay is not None
    assert not answer.replay.is_in_per_cent
    assert answer.text().startswith("deterministic would save about ")


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--sizes", "16,16"], 2, "--sizes has 2 sizes: the recording has 4 ranks"),
        (["--sizes", "16,16,16,0"], 2, "with 1 sample at least"),
        (["--most", "20"], 2, "--most needs the samples that ranks take now"),
        (["--fixed-share", "1"], 2, "is no share from 0 to 0.9"),
        (["--policy", "fastest"], 2, "no policy 'fastest': continuous"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(options: list[str], status: int, text: str) -> None:
    said = kair("mitigate", "simulate", str(SAMPLES / "slow_operator"), *options)
    assert (said.status, text in said.err) == (status, True), said.err


def test_an_unknown_job_is_refused() -> None:
    assert kair("mitigate", "simulate", "nowhere").status == 3


def rows_of(own_s: Any, **how: Any) -> tuple[Any, dict[str, SimulatedPolicy]]:  # noqa: ANN401
    given = {"fixed_shares": (0.0, 0.4), "most": None, "larger": 1.25} | how
    found, rows = replay(own_s, own_s.max(axis=1) + 0.02, (16,) * 4, ALONE, ["continuous"], **given)
    return found, {row.policy: row for row in rows}


def test_long_recordings_are_replayed_in_order() -> None:
    own_s = np.full((IN_ORDER, 4), 0.08)
    own_s[200:, 3] = 0.16
    found, rows = rows_of(own_s)
    assert (found.steps, found.played) == (IN_ORDER, IN_ORDER)
    assert rows["continuous"].first_after is not None
    assert rows["continuous"].first_after > 200


def test_a_rank_takes_no_more_than_it_has_memory_for() -> None:
    own_s = np.tile([0.08, 0.08, 0.08, 0.16], (40, 1))
    assert max(rows_of(own_s)[1]["continuous"].sizes) <= 20
    assert max(rows_of(own_s, most=17)[1]["continuous"].sizes) <= 17


def test_a_watched_job_is_replayed_by_its_history(own_store: Path) -> None:
    """400 steps of 4 ranks with 16 samples each, rank 3 twice as slow; nothing of them was sampled but 12 others."""
    assert kair("import", str(SAMPLES / "slow_operator"), "--job", "job7").status == 0
    rows = np.zeros(4 * 400, ROW)
    rows["rank"], rows["step"] = np.tile(np.arange(4), 400), np.repeat(np.arange(400), 4)
    rows["self_us"] = np.where(rows["rank"] == 3, 160_000, 80_000)
    rows["step_us"], rows["waited_us"], rows["samples"] = 180_000, 180_000 - rows["self_us"], 16
    rows["begin_us"] = 1_000_000 + 180_000 * rows["step"]
    StepLog(own_store / "job7" / "steps").append(rows)
    answer = simulated("job7")
    assert (answer["replay"]["sizes"], answer["replay"]["is_in_per_cent"]) == ([16] * 4, False)
    assert answer["replay"]["played"] == answer["replay"]["steps"] == 360
    sizes = answer["simulated"][0]["sizes"]
    assert sum(sizes) == 64
    assert sizes[3] < 12
