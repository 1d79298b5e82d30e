"""Two runs compared: what really changed is named, on whom and at what price; what did not change is not."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from compare_runs import FACTOR, healthy, upgraded
from support.answers import recorded
from support.places import SAMPLES
from support.trace_builder import Row, build

from kair_engine.comparison.analysis import compare
from kair_engine.errors import UsageError
from kair_engine.results.compare import CompareResult
from kair_engine.trace.model import Layout, Trace
from kair_tui.render.changes import change_in_words

pytestmark = pytest.mark.slow

STEPS = 6


@pytest.fixture(scope="module")
def upgrade() -> CompareResult:
    """The pair that was really recorded: a framework upgrade."""
    return compare(recorded(SAMPLES / "two_hosts_healthy"), recorded(SAMPLES / "two_hosts_upgrade"))


def test_an_upgrade_is_told_as_it_was(upgrade: CompareResult) -> None:
    truth = json.loads((SAMPLES / "two_hosts_upgrade" / "truth.json").read_text())
    everywhere, on_host = truth["changes"]
    found = {one.operator: one for one in upgrade.changes}
    assert upgrade.verdict == "changed"
    assert set(found) == {everywhere["operator"], on_host["operator"]}
    slower, host = found[everywhere["operator"]], found[on_host["operator"]]
    assert (slower.scope, slower.ranks, slower.change) == ("all_ranks", (), "slower")
    assert slower.ratio == pytest.approx(everywhere["factor"], abs=0.03)
    assert (host.scope, host.host, list(host.ranks)) == ("host", "node1", on_host["ranks"])
    assert host.new_us - host.base_us == pytest.approx(on_host["added_us"], rel=0.05)
    assert {one.rank for one in upgrade.standing if one.new_flagged} == set(on_host["ranks"])


def test_the_changes_are_priced_and_add_up(upgrade: CompareResult) -> None:
    priced = {one.operator: one.step_us or 0.0 for one in upgrade.changes}
    assert priced["kair_sample::mlp"] == pytest.approx(13_500, rel=0.1)
    assert priced["kair_sample::attention_backward"] == pytest.approx(6_000, rel=0.15)
    assert [(one.kind, one.operators) for one in upgrade.pools] == [("compute", 53), ("hosts", 2)]
    pooled = sum(one.step_us or 0.0 for one in upgrade.pools)
    assert upgrade.explained_us == pytest.approx(sum(priced.values()) + pooled)
    assert (upgrade.explained_us or 0.0) >= 0.8 * upgrade.step_change_us
    assert (upgrade.explained_us or 0.0) + (upgrade.unexplained_us or 0.0) == pytest.approx(upgrade.step_change_us)


@pytest.mark.parametrize("turned", [False, True])
def test_a_rank_that_compiles_in_some_steps_is_named_with_its_price(turned: bool) -> None:
    """The healthy sample is of a smaller model: other operators changed on all ranks, too."""
    sample = SAMPLES / "recompilation"
    truth = json.loads((sample / "truth.json").read_text())
    runs = [recorded(SAMPLES / "healthy"), recorded(sample)]
    found = compare(*(runs[::-1] if turned else runs))
    (change,) = (one for one in found.changes if one.kind == "compilation")
    assert (change.operator, change.change) == (None, "gone" if turned else "added")
    assert list(change.ranks) == truth["ranks"]
    lost = truth["lost_us"] * len(truth["affected_steps"]) / len(truth["steps"])
    assert change.step_us == pytest.approx(-lost if turned else lost, rel=0.15)
    assert "compilation" in change_in_words(change)


def test_a_run_does_not_differ_from_itself() -> None:
    run = recorded(SAMPLES / "slow_operator")
    found = compare(run, run)
    assert (found.verdict, found.changes, found.standing, found.step_change_us) == ("no_change", (), (), 0.0)


def test_runs_of_one_job_on_other_devices_have_no_change() -> None:
    assert healthy("dp4", 12, same_devices=False, seed=3) is None


def test_a_slower_kernel_is_named_with_its_share_of_the_step() -> None:
    found = upgraded("dp4", 12, seed=1)
    assert found.named
    assert found.ratio == pytest.approx(FACTOR, abs=0.01)
    assert found.share == pytest.approx(found.true_share, abs=0.01)


def rows(*, ranks: int = 4, steps: int = STEPS, **took: float) -> Iterator[Row]:
    """Ranks that run operators one after another on their main thread; `gemm` is there whatever else is."""
    for step in range(steps):
        for rank in range(ranks):
            at = 1000.0 * step
            # A little of noise, so that there is something to be beyond.
            jitter = 1 + 0.002 * ((7 * step + 3 * rank) % 5 - 2)
            for name, duration in ({"gemm": 500.0} | took).items():
                yield Row(rank, "main", name, at, duration * jitter, step)
                at += duration * jitter


def run(folder: Path, *, ranks: int = 4, steps: int = STEPS, layout: Layout | None = None, **took: float) -> Trace:
    # The step is over when the last operator is, give or take the noise.
    length = 1.01 * sum(({"gemm": 500.0} | took).values())
    spans = {(rank, step): (1000.0 * step, length) for rank in range(ranks) for step in range(steps)}
    return build(folder, list(rows(ranks=ranks, steps=steps, **took)), spans, layout=layout)


def test_operators_that_come_go_and_change_their_name(tmp_path: Path) -> None:
    base = run(tmp_path / "base", flash_fwd_v2=100.0, dropout=50.0)
    new = run(tmp_path / "new", flash_fwd_v3=130.0, rope=80.0)
    found = {one.operator: one for one in compare(base, new).changes}
    assert (found["flash_fwd_v3"].change, found["flash_fwd_v3"].was) == ("slower", "flash_fwd_v2")
    assert found["flash_fwd_v3"].ratio == pytest.approx(1.3, abs=0.01)
    assert (found["dropout"].change, found["dropout"].new_us) == ("gone", 0.0)
    assert (found["rope"].change, found["rope"].ratio) == ("added", None)


def test_runs_of_different_size_and_length_are_compared_by_their_means(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "base", softmax=100.0), run(tmp_path / "new", ranks=8, steps=9, softmax=150.0))
    assert [(one.operator, one.scope) for one in found.changes] == [("softmax", "all_ranks")]
    assert [one.code for one in found.warnings] == ["other_world_size"]


def test_too_few_steps_are_inconclusive(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "base"), run(tmp_path / "new", steps=2))
    assert (found.verdict, [one.code for one in found.warnings]) == ("inconclusive", ["few_steps"])


def test_what_cannot_be_compared_is_turned_down(tmp_path: Path) -> None:
    base = run(tmp_path / "base", layout=Layout(pp=2, pipeline_stage=dict.fromkeys(range(4), 0)))
    with pytest.raises(UsageError, match=r"2 pipeline stages, .* has 4"):
        compare(base, run(tmp_path / "new", layout=Layout(pp=4, pipeline_stage=dict.fromkeys(range(4), 0))))
    other = run(tmp_path / "other", gemm=1.0, convolution=600.0)
    with pytest.raises(UsageError, match="different programs"):
        compare(run(tmp_path / "plain"), other)
    with pytest.raises(UsageError, match="different kinds"):
        compare(base, replace(other, job=replace(other.job, has_device=True)))
