"""What changes between two runs cost: all of the step's change where only durations changed, and the same both ways."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.changed_jobs import CALLS, Longer, job

from kair_engine.comparison.analysis import compare, differences_of
from kair_engine.comparison.profile import profile_and_steps
from kair_engine.results.compare import CompareResult
from kair_engine.trace.model import Trace
from kair_tui.render.changes import left_in_words, summary

pytestmark = pytest.mark.slow

Told = set[tuple[str | None, tuple[int, ...]]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return job(tmp_path_factory.mktemp("base"), seed=1)


def one_call(name: str, call: int, by: float, *ranks: int) -> Longer:
    def longer(operation: str, at: int, rank: int) -> float:
        return by * (operation == name and at == call and (not ranks or rank in ranks))

    return longer


def every_call(name: str, by: float, *ranks: int) -> Longer:
    return lambda operation, _, rank: by * (operation == name and (not ranks or rank in ranks))


def both(one: Longer, other: Longer) -> Longer:
    return lambda *of: one(*of) + other(*of)


def told(result: CompareResult) -> Told:
    return {(one.operator, tuple(one.ranks)) for one in result.changes}


def both_ways(base: Trace, new: Trace) -> CompareResult:
    """The comparison, once it is seen that the other way round it is the same with the sign turned."""
    found, back = compare(base, new), compare(new, base)
    priced, returned = (
        sorted((str(one.operator), tuple(one.ranks), sign * (one.step_us or 0.0)) for one in result.changes)
        for result, sign in ((found, 1), (back, -1))
    )
    assert [one[:2] for one in priced] == [one[:2] for one in returned]
    assert [one[2] for one in priced] == pytest.approx([one[2] for one in returned])
    assert found.step_change_us == pytest.approx(-back.step_change_us)
    return found


@pytest.mark.parametrize(
    ("longer", "expected"),
    [
        pytest.param(one_call("gemm", 0, 990, 2), {("gemm", (2,))}, id="the first call on one rank"),
        pytest.param(one_call("gemm", 5, 700, 1), {("gemm", (1,))}, id="the last call, half of it behind others"),
        pytest.param(every_call("gemm", 100), {("gemm", ())}, id="every call on all ranks"),
        pytest.param(every_call("gemm", -200), {("gemm", ())}, id="every call, shorter"),
        pytest.param(every_call("gemm", 200, 0, 3), {("gemm", (0, 3))}, id="two ranks"),
        pytest.param(every_call("launch", 150), {(None, ())}, id="launches, behind which devices idle"),
        pytest.param(every_call("fetch", 900, 1), {("fetch", (1,))}, id="the input of one rank"),
        pytest.param(every_call("reduce", 300), {("reduce", ())}, id="the payload of collectives"),
        pytest.param(one_call("reduce", 1, 500), {("reduce", ())}, id="the payload of one collective"),
        pytest.param(
            both(every_call("gelu", 300, 2), one_call("gemm", 0, -200)),
            {("gelu", (2,)), ("gemm", ())},
            id="one operator slower, another faster",
        ),
    ],
)
def test_changed_durations_explain_the_step(base: Trace, longer: Longer, expected: Told, tmp_path: Path) -> None:
    found = both_ways(base, job(tmp_path, longer, seed=2))
    assert told(found) == expected
    assert found.explained_us == pytest.approx(found.step_change_us, abs=10)
    assert "within the ±" in left_in_words(found)


@pytest.mark.parametrize(
    ("calls", "sort"),
    [
        (tuple(one for one in CALLS if one != "gelu"), "gone"),
        ((*CALLS[:4], "rope", "rope", *CALLS[4:]), "added"),
    ],
)
def test_operators_that_one_run_alone_has_cost_what_they_take(
    base: Trace, calls: tuple[str, ...], sort: str, tmp_path: Path
) -> None:
    found = both_ways(base, job(tmp_path, seed=2, calls=calls))
    assert [one.change for one in found.changes] == [sort]
    assert found.explained_us == pytest.approx(found.step_change_us, abs=10)


def test_what_changes_hide_for_each_other_all_have_a_part_of(base: Trace, tmp_path: Path) -> None:
    """Either alone would make the step as long: two ranks are late for the same collective."""
    longer = both(one_call("gemm", 1, 600, 0), one_call("gelu", 0, 600, 3))
    found = both_ways(base, job(tmp_path, longer, seed=2))
    assert found.explained_us == pytest.approx(found.step_change_us, abs=10)
    assert [one.step_us for one in found.changes] == pytest.approx([300, 300], rel=0.1)


def test_what_some_ranks_take_on_top_of_all_is_told_beside_it(base: Trace, tmp_path: Path) -> None:
    longer = both(every_call("gemm", 100), one_call("gemm", 0, 900, 2))
    found = both_ways(base, job(tmp_path, longer, seed=2))
    priced = {tuple(one.ranks): one.step_us for one in found.changes}
    # Of six calls one is on top of a collective that all ranks reach later by then.
    assert priced[()] == pytest.approx(600, rel=0.03)
    assert priced[2,] == pytest.approx(found.step_change_us - 600, rel=0.03)


def test_runs_of_other_sizes_are_priced_call_by_call_too(base: Trace, tmp_path: Path) -> None:
    found = both_ways(base, job(tmp_path, one_call("gemm", 0, 990), seed=2, ranks=8))
    assert told(found) == {("gemm", ())}
    assert found.explained_us == pytest.approx(found.step_change_us, abs=15)


SMALL = tuple(f"small{at}" for at in range(20))


@pytest.mark.parametrize("by", [5, -5])
def test_what_is_sure_of_many_operators_together_is_a_pool(by: float, tmp_path: Path) -> None:
    """Each of twenty operators changes by less than is reported of one; together they are all of the step's change."""
    longer: Longer = lambda operation, *_: by * operation.startswith("small")  # noqa: E731
    base = job(tmp_path / "base", seed=1, calls=SMALL)
    found = compare(base, job(tmp_path / "new", longer, seed=2, calls=SMALL))
    assert (found.verdict, found.changes) == ("changed", ())
    (pool,) = found.pools
    assert (pool.kind, pool.operators) == ("compute", len(SMALL))
    assert pool.step_us == pytest.approx(found.step_change_us, abs=10)
    assert found.explained_us == pool.step_us
    back = compare(job(tmp_path / "again", longer, seed=2, calls=SMALL), base)
    assert [one.step_us for one in back.pools] == pytest.approx([-(pool.step_us or 0.0)])
    assert "20 other compute operators together" in summary(found)


def test_runs_that_differ_by_noise_alone_have_no_pool(tmp_path: Path) -> None:
    runs = [job(tmp_path / str(seed), seed=seed, jitter=0.03, calls=SMALL) for seed in range(7)]
    profiles = [profile_and_steps(run) for run in runs]
    for (base, base_steps), (new, new_steps) in combinations(profiles, 2):
        assert not differences_of(base, new, (base_steps, new_steps)).pools


def test_what_begins_late_is_taken_from_the_steps_that_have_it(base: Trace, tmp_path: Path) -> None:
    found = both_ways(base, job(tmp_path, one_call("gemm", 0, 900, 2), seed=2, steps=range(1, 8)))
    assert found.explained_us == pytest.approx(found.step_change_us, abs=20)


def test_what_no_operator_explains_is_said(base: Trace, tmp_path: Path) -> None:
    """Every call a little longer, less than is told of any."""
    found = compare(base, job(tmp_path, lambda name, *_: 5.0 * (name != "gemm") + 200.0 * (name == "gelu"), seed=2))
    left = found.unexplained_us or 0.0
    assert abs(left) > (found.noise_us or 0.0)
    assert "no operator that surely changed explains it" in left_in_words(found)


def test_runs_that_differ_by_noise_alone_have_no_change(base: Trace, tmp_path: Path) -> None:
    found = both_ways(base, job(tmp_path, seed=2))
    assert (found.verdict, found.changes) == ("no_change", ())
    assert abs(found.step_change_us) <= (found.noise_us or 0.0)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Longer, float]:
    """(some calls of an operator longer or shorter on some ranks, the noise)."""
    name = draw(st.sampled_from(["gemm", "gelu", "norm", "update", "reduce", "fetch"]))
    ranks = draw(st.sets(st.integers(0, 3), min_size=1))
    calls = draw(st.sets(st.integers(0, 5), min_size=1))
    by = draw(st.one_of(st.floats(200, 900), st.floats(-60, -40)))
    if name == "reduce":
        ranks = {0, 1, 2, 3}
    return (
        lambda operation, call, rank: by * (operation == name and call in calls and rank in ranks),
        draw(st.sampled_from([0.001, 0.003, 0.01])),
    )


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=changes(), seed=st.integers(10, 99))
def test_any_change_of_durations_is_told_alike_both_ways(
    change: tuple[Longer, float], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    longer, jitter = change
    folder = tmp_path_factory.mktemp("pair")
    old = job(folder / "old", seed=seed, jitter=jitter)
    found = both_ways(old, job(folder / "new", longer, seed=seed + 1, jitter=jitter))
    if found.changes:
        left = abs(found.unexplained_us or 0.0)
        assert left <= max(
            0.05 * abs(found.step_change_us), 3 * (found.noise_us or 0.0), 0.01 * found.base.step_time_us
        )
