"""The accuracy benchmark: what it counts as right, the rules of others, and a small slice of what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import peer_rules
import pytest
import report
import run
from fault_model import Truth
from host_faults import ProfilerOnOneRank
from kept_trials import KeptTrials
from layouts import STANDARD
from recording import Columns
from scenarios import Scenario, scenarios
from scoring import Answer, Claim, Score, guilty_of, lowest_p, same_claims, score, struck
from trials import Batch, Trial, run_batch

from kair_engine.causes import Cause
from kair_engine.results.localize import LinkScore, LocalizeResult, RankScore
from kair_engine.stats import wilson
from kair_engine.whatif.operators import model

GPU = Truth("slow_gpu", "compute", (3,))
EVERYTHING_HEALTHY: Sequence[Truth] = ()


def said(*claims: Claim, first: int = 0) -> Answer:
    return Answer("straggler" if claims else "no_straggler", first, claims)


def claim(cause: Cause | None, *ranks: int, operator: str | None = None, cost_us: float | None = None) -> Claim:
    return Claim(cause, frozenset(ranks), operator, cost_us)


def verdicts(result: Score) -> tuple[bool | None, bool | None, bool]:
    return result.right, result.exact, result.innocent


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said(claim("compute", 3)), (True, True, False)),
        (said(claim("input", 3)), (False, False, False)),
        (said(claim("compute", 4)), (False, False, True)),
        (said(claim("compute", 3, 4)), (False, False, True)),
        (said(claim("compute", 3), claim("host", 5)), (True, False, True)),
        (said(claim("compute", 3), claim("stage_imbalance")), (True, True, False)),
        (said(), (False, False, False)),
    ],
)
def test_right_is_the_guilty_rank_with_its_cause_and_exact_nobody_else(
    answer: Answer, expected: tuple[bool, bool, bool]
) -> None:
    assert verdicts(score([GPU], answer)) == expected


def test_of_a_healthy_job_no_answer_is_right_and_everyone_is_innocent() -> None:
    quiet, loud = score(EVERYTHING_HEALTHY, said()), score(EVERYTHING_HEALTHY, said(claim("compute", 1)))
    assert (quiet.claims, quiet.accuses, *verdicts(quiet)) == (False, False, None, None, False)
    assert (loud.claims, loud.accuses, *verdicts(loud)) == (True, True, None, None, True)
    assert quiet.first is quiet.ranks is None


def test_the_first_rank_counts_even_where_nobody_is_accused() -> None:
    assert score([GPU], said(first=3)).first is True
    assert score([GPU], said(first=4)).first is False


@pytest.mark.parametrize(("cause", "right"), [("garbage_collection", True), ("host", False)])
def test_of_what_is_nobodys_fault_the_cause_must_be_named(cause: Cause, right: bool) -> None:
    pauses = Truth("garbage_collection", "garbage_collection", (1, 2), by_step=((1,), (2,)))
    assert guilty_of(pauses) == frozenset()
    assert verdicts(score([pauses], said(claim(cause)))) == (right, right, False)


def test_of_what_is_nobodys_fault_accusing_somebody_is_wrong() -> None:
    pauses = Truth("garbage_collection", "garbage_collection", (1, 2), by_step=((1,), (2,)))
    assert verdicts(score([pauses], said(claim("garbage_collection", 1)))) == (False, False, True)


def test_a_slow_group_is_accused_as_a_whole_and_a_slow_edge_by_its_ends() -> None:
    link = Truth("slow_link", "communication", (2,), group=(0, 2, 4, 6))
    assert score([link], said(claim("communication", 0, 2, 4, 6))).right
    assert not score([link], said(claim("communication", 2))).right
    edge = Truth("slow_edge", "communication", (1, 5), edge=(1, 5))
    assert score([edge], said(claim("communication", 1, 5))).right


def test_of_two_faults_both_must_be_told_together_or_apart() -> None:
    truths = [GPU, Truth("slow_gpu", "compute", (5,))]
    assert score(truths, said(claim("compute", 3), claim("compute", 5))).exact
    assert score(truths, said(claim("compute", 3, 5))).exact
    assert not score(truths, said(claim("compute", 3))).right
    assert not score(truths, said(claim("compute", 3, 5), claim("host", 6))).right
    mixed = [GPU, Truth("slow_input", "input", (5,))]
    assert score(mixed, said(claim("compute", 3), claim("input", 5))).exact
    assert not score(mixed, said(claim("compute", 3, 5))).right


def test_an_operator_is_asked_for_where_the_truth_has_one_and_refused_where_all_are_slow() -> None:
    kernel = Truth("slow_kernel", "compute", (3,), operator="attention")
    assert score([kernel], said(claim("compute", 3, operator="attention"))).operator is True
    assert score([kernel], said(claim("compute", 3))).operator is False
    assert score([kernel], said()).operator is None
    assert score([GPU], said(claim("compute", 3, operator="attention"))).operator is False
    late = Truth("slow_input", "input", (3,))
    assert score([late], said(claim("input", 3, operator="fetch"))).operator is None


def test_only_a_right_answer_has_a_price() -> None:
    assert score([GPU], said(claim("compute", 3, cost_us=8.0))).cost_us == 8.0
    assert score([GPU], said(claim("compute", 4, cost_us=8.0))).cost_us is None


def test_a_fault_that_never_came_did_not_strike() -> None:
    assert struck(GPU)
    assert struck(Truth("stall", "host", (1,), by_step=((), (1,))))
    assert not struck(Truth("stall", "host", by_step=((), ())))


def test_answers_are_alike_by_verdict_ranks_and_causes() -> None:
    one = said(claim("compute", 3, cost_us=1.0), claim("input", 4))
    assert same_claims(one, said(claim("input", 4), claim("compute", 3, cost_us=2.0), first=7))
    assert not same_claims(one, said(claim("compute", 3)))
    assert not same_claims(said(), Answer("inconclusive", 0, ()))


def test_the_lowest_p_is_over_ranks_and_links() -> None:
    ranks = tuple(RankScore(rank, None, "all", 0.0, p, False, {}) for rank, p in enumerate((0.5, None, 0.2)))
    link = LinkScore("dp", (0, 1), "all_reduce", 2.0, 1.0, 3, 0.04)
    result = LocalizeResult("robust", ranks, (), (), (), None, (0,), ())
    assert lowest_p(result) == 0.2
    assert lowest_p(LocalizeResult("robust", ranks, (), (link,), (), None, (0,), ())) == 0.04
    assert lowest_p(LocalizeResult("robust", (), (), (), (), None, (0,), ())) == 1.0


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"), [(0, 300, 0.0, 0.0126), (5, 10, 0.2366, 0.7634), (0, 0, 0.0, 1.0)]
)
def test_wilson_intervals(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson(hits, trials) == pytest.approx((low, high), abs=1e-4)


def columns(*rows: tuple[int, str, str, int]) -> Columns:
    """Rows of (rank, kind, name, duration)."""
    ranks, kinds, names, durations = zip(*rows, strict=True)
    texts = {"kind": tuple(dict.fromkeys(kinds)), "name": tuple(dict.fromkeys(names))}
    codes = {"rank": ranks, "kind": map(texts["kind"].index, kinds), "name": map(texts["name"].index, names)}
    arrays = {name: np.array(list(values), np.int32) for name, values in codes.items()}
    duration = np.array(durations, np.int64)
    return Columns(arrays, np.zeros_like(duration), duration, texts, None)


def waiting(*times: int) -> Columns:
    rows = [(rank, "collective", "all_reduce", time) for rank, time in enumerate(times)]
    return columns(*rows, *((rank, "compute", "gemm", 50) for rank in range(len(times))))


def test_least_waiting_accuses_who_is_waited_for_and_somebody_always() -> None:
    assert peer_rules.least_waiting(waiting(90, 100, 20, 95)) == said(claim(None, 2), first=2)
    assert peer_rules.least_waiting(waiting(100, 99, 100, 100)).claims == (claim(None, 1),)


@pytest.mark.slow
def test_least_waiting_with_a_test_spares_ranks_that_chance_explains() -> None:
    rule = peer_rules.least_waiting_beyond_chance
    assert rule(waiting(90, 100, 20, 95, 97, 93)) == said(claim(None, 2), first=2)
    assert rule(waiting(90, 100, 88, 95, 97, 93)) == said(first=2)
    assert rule(waiting(100, 100, 100)).verdict == "no_straggler"


@pytest.mark.slow
def test_grubbs_test_rejects_at_its_rate() -> None:
    random = np.random.default_rng(7)
    rejected = sum(bool(peer_rules._lowest_is_outlier(random.normal(size=8))) for _ in range(4000))
    assert rejected == pytest.approx(40, abs=20)


@pytest.mark.slow
def test_slow_kernels_weighs_kernels_by_time_and_leaves_communication_out() -> None:
    rows = [(rank, "compute", "gemm", 100) for rank in (0, 1, 2)] + [(3, "compute", "gemm", 150)]
    rows += [(rank, "compute", "norm", 10 if rank != 1 else 40) for rank in range(4)]
    rows += [(rank, "collective", "all_reduce", 100 * (rank + 1)) for rank in range(4)]
    # Rank 3: (2/3 · 150 + 10) / 160 = 0.69; rank 1: (100 + 0.25 · 40) / 140 = 0.79.
    assert peer_rules.slow_kernels(columns(*rows)) == said(claim("compute", 3), first=3)


def test_slow_kernels_skips_what_not_all_ranks_run() -> None:
    rows = [(rank, "compute", "gemm", 100) for rank in range(3)]
    assert peer_rules.slow_kernels(columns(*rows, (0, "compute", "loss", 5), (1, "compute", "loss", 50))).claims == ()


def trial(seed: int, result: Score) -> Trial:
    return Trial("key", seed, {"robust": result}, 1000.0, 100.0, None, None, "said")


def test_tables_count_the_trials_they_are_about() -> None:
    scenario = next(one for one in scenarios() if one.name == "slow GPU ×1.1" and one.layout == "dp8")
    right, missed = score([GPU], said(claim("compute", 3, cost_us=80.0), first=3)), score([GPU], said(first=3))
    results = [(scenario, [trial(0, right), trial(1, missed)])]
    made = [*report.tables(results), *report.costs(results)]
    assert [table.title for table in made] == ["Faults", "What a fault costs"]
    faults, costs = (table.rows[0] for table in made)
    assert (str(faults["top-1"]), str(faults["right"])) == ("100%", "50% (9.5–90.5)")
    assert (costs["true, of the step"], costs["said, of the step"], costs["error"]) == ("10.0%", "8.0%", "20%")
    assert "| slow GPU ×1.1 | dp8" in report.markdown(made)
    assert report.misses([(scenario, [trial(0, right), trial(1, missed)])]) == [
        "slow GPU ×1.1 | dp8 | 20 steps, spread 0.5% | seed 1 | said"
    ]


def tables_of_two_layouts() -> list[report.Table]:
    right, wrong = score([GPU], said(claim("compute", 3), first=3)), score([GPU], said(claim("compute", 4)))
    quiet, loud = score(EVERYTHING_HEALTHY, said()), score(EVERYTHING_HEALTHY, said(claim("compute", 1)))
    answers = {("slow GPU ×1.1", "dp8"): right, ("slow GPU ×1.1", "dp64"): wrong, ("healthy", "dp8"): quiet}
    found = [
        (one, [trial(0, right if one.name != "healthy" else quiet), trial(1, answers[one.name, one.layout])])
        for one in scenarios()
        if (one.name, one.layout) in answers and one.steps == 20
    ]
    healthy = [result for result in found if result[0].name == "healthy"]
    healthy[-1][1][1] = trial(1, loud)
    return report.tables(found)


def test_the_overview_puts_all_layouts_together_and_names_the_worst() -> None:
    lines = report.overview(tables_of_two_layouts(), "26 jobs.").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert lines[0] == "26 jobs."
    assert rows[0] == ["what is wrong", "layouts", "jobs", "right", "lowest", "innocent accused"]
    assert rows[2][:3] == ["nothing", "1", "12"]
    assert rows[2][4:] == ["50% (dp8, 20 steps, spread 0.5%, noise 10%)", "8%"]
    assert rows[3] == ["slow GPU ×1.1", "2", "4", "75% (30.1–95.4)", "50% (dp64)", "25%"]


def test_a_run_writes_the_summary_between_the_markers_and_a_page_for_every_table(tmp_path: Path) -> None:
    page = tmp_path / "simulated.md"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    (tmp_path / "costs.md").write_text("of another run")
    made = tables_of_two_layouts()
    run.write(page, made, [], "26 jobs.")
    assert page.read_text() == f"before\n{run.BEGIN}\n{report.overview(made, '26 jobs.')}\n{run.END}\nafter\n"
    pages = {path.name: path.read_text() for path in tmp_path.iterdir() if path != page}
    assert sorted(pages) == ["costs.md", "faults.md", "healthy.md"]
    assert pages["costs.md"] == "of another run"
    assert pages["faults.md"].startswith("# Faults\n\n26 jobs. Written by")
    assert "| slow GPU ×1.1 | dp64   | 2    | 50%   | 50% (9.5–90.5) " in pages["faults.md"]


def test_costs_alone_leave_the_summary_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "simulated.md"
    page.write_text(f"{run.BEGIN}\nold\n{run.END}\n")
    run.write(page, [], [report.Table("What a fault costs", "costs", "note", [{"fault": "slow GPU"}])], "1 job.")
    assert page.read_text() == f"{run.BEGIN}\nold\n{run.END}\n"
    assert "| slow GPU |" in (tmp_path / "costs.md").read_text()


def test_what_lacks_the_markers_is_not_written(tmp_path: Path) -> None:
    page = tmp_path / "simulated.md"
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="lacks the lines"):
        run.write(page, tables_of_two_layouts(), [], "26 jobs.")
    assert list(tmp_path.iterdir()) == [page]


def test_scenarios_have_names_of_their_own_and_faults_that_their_layouts_allow() -> None:
    keys = [scenario.key for scenario in scenarios()]
    assert len(set(keys)) == len(keys)
    for scenario in scenarios():
        assert scenario.layout in STANDARD
        harmless = all(isinstance(fault, ProfilerOnOneRank) for fault in scenario.faults(1))
        assert harmless == (scenario.kind == "healthy")


@pytest.fixture
def _priced_by_excess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a triage is what a finding costs, which test_simulated_prices.py and test_triage.py are about."""
    monkeypatch.setattr(model, "MOST_OPERATIONS", 0)


def robust(name: str, layout: str, seeds: int) -> list[Score]:
    """The robust answers to the first jobs of a scenario, with held-out seeds."""
    wanted = (name, layout, 20, 0.005, 0.03)
    scenario = next(one for one in scenarios() if _outline(one) == wanted)
    found = run_batch(Batch(scenario.key, tuple(range(1000, 1000 + seeds)), frozenset(), frozenset()))
    return [one.scores["robust"] for one in found]


def _outline(scenario: Scenario) -> tuple[str, str, int, float, float]:
    return scenario.name, scenario.layout, scenario.steps, scenario.noise.spread, scenario.noise.operation


# A few jobs of each kind; the rates, of hundreds, are in validation/reports, which validation/accuracy/run.py writes.


@pytest.mark.slow
def test_a_run_that_was_killed_while_it_wrote_goes_on_after_its_last_whole_answer(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    scenario = next(one for one in scenarios() if one.layout == "dp8" and one.kind == "guilty")
    first = Batch(scenario.key, (1000,), frozenset({1000}), frozenset())
    second = Batch(scenario.key, (1001,), frozenset(), frozenset())
    trials = run_batch(first)
    KeptTrials(file).keep(first, trials)
    whole = file.read_bytes()
    KeptTrials(file).keep(second, trials)
    file.write_bytes(file.read_bytes()[:-20])

    kept = KeptTrials(file)
    assert kept.get(first) == trials
    assert kept.get(second) is None
    assert file.read_bytes() == whole
    assert KeptTrials(None).get(first) is None


@pytest.mark.slow
@pytest.mark.usefixtures("_priced_by_excess")
def test_healthy_jobs_are_left_alone() -> None:
    answers = [
        one for layout, jobs in (("dp8", 6), ("dp64", 1), ("3d64", 1)) for one in robust("healthy", layout, jobs)
    ]
    # Each is accused with 2 % at most: two of eight are in one of a hundred runs with other seeds.
    assert sum(answer.accuses for answer in answers) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "seeds"),
    [
        ("slow GPU ×1.1", "dp8", 4),
        ("slow GPU ×1.1", "3d64", 1),
        ("slow pipeline edge +8 ms", "3d64", 1),
        ("stage imbalance ×1.3", "3d64", 1),
        ("sequence imbalance 0.2", "3d64", 1),
    ],
)
@pytest.mark.usefixtures("_priced_by_excess")
def test_faults_are_found_with_their_cause(name: str, layout: str, seeds: int) -> None:
    assert all(answer.exact for answer in robust(name, layout, seeds))
