"""Claims of real ranks: each place is taken once in any order of claims, and gradients are one process' own."""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks

from kair_mitigate.guide import Guide, evened, next_speeds
from kair_mitigate.plans import Plan, Share, State, divided

if TYPE_CHECKING:
    from kair_mitigate.claiming import ClaimedStep, Claims

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
JOB = Path(__file__).parent / "jobs" / "claims.py"
SPEEDS = st.floats(1e-3, 1e6) | st.just(0.0)


class Store:
    """The process group's, in one process."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, key: str, count: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + count
        return self.counts[key]

    def delete_key(self, key: str) -> bool:
        return self.counts.pop(key, None) is not None


class Asked:
    """What a rank asked its store for: the answer is made at once, or as late as it is needed."""

    def __init__(self, *call: Any) -> None:  # noqa: ANN401
        self.call = call

    def result(self) -> int:
        add, *arguments = self.call
        return int(add(*arguments))


class AtOnce(Asked):
    def __init__(self, *call: Any) -> None:  # noqa: ANN401
        super().__init__(*call)
        self.value = super().result()

    def result(self) -> int:
        return self.value


class Asking:
    def __init__(self, kinds: list[bool]) -> None:
        self.kinds = cycle(kinds)

    def submit(self, *call: Any) -> Asked:  # noqa: ANN401
        return AtOnce(*call) if next(self.kinds) else Asked(*call)


def claims_of(ranks: int, most: int, store: Store, at_once: list[bool] | None = None) -> list[Claims]:
    from kair_mitigate.claiming import Claims

    every = [Claims(rank, ranks, most, store, "claims") for rank in range(ranks)]  # type: ignore[arg-type]
    for claims in every:
        claims._asking = Asking(at_once or [True])  # type: ignore[assignment]
        claims.begin(0)
    return every


def share_of(step: int, offset: int, samples: int, ranks: int) -> Share:
    return Share(step, 0, ((offset, offset + samples),), divided(samples, (1,) * ranks))


def take_all(steps: list[ClaimedStep], every: list[Claims], order: list[int], own: list[float]) -> None:
    """Train one batch after another, of ranks in some order; `own` are the speeds that they show."""
    batches, going = [0] * len(steps), list(range(len(steps)))
    for turn in range(steps[0].share.samples + len(steps)):
        if not going:
            return
        rank = going[order[turn % len(order)] % len(going)]
        every[rank].shown = own[rank]
        batches[rank] += 1
        steps[rank].claim(batches[rank])
        if len(steps[rank].parts) == batches[rank]:
            going.remove(rank)
    assert not going


@pytest.mark.slow
@settings(derandomize=True, max_examples=300)
@given(
    st.integers(1, 6),
    st.integers(1, 16),
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
    st.lists(st.integers(0, 99), min_size=1, max_size=30),
    st.lists(SPEEDS, min_size=24, max_size=24),
    st.lists(st.booleans(), min_size=1, max_size=10),
)
def test_each_place_is_taken_once_in_any_order(
    ranks: int, most: int, samples: list[int], order: list[int], drawn: list[float], at_once: list[bool]
) -> None:
    store, offset = Store(), 0
    every = claims_of(ranks, most, store, at_once)
    following = [claims.step(share_of(0, 0, samples[0], ranks)) for claims in every]
    for number, (count, after) in enumerate(pairwise([*samples, samples[0]])):
        steps, own = following, [max(one, 1e-3) for one in drawn[6 * number :][:ranks]]
        take_all(steps, every, order, own)
        taken = sorted(place for step in steps for begin, end in step.parts for place in range(begin, end))
        assert taken == list(range(count))
        assert all(0 <= end - begin <= most for step in steps for begin, end in step.parts)
        # Some ranks fetch their first part of the next step before all have told how fast they are, others after it.
        share, offset = share_of(number + 1, offset, after, ranks), offset + after
        early = {rank: every[rank].step(share) for rank in range(order[0] % (ranks + 1))}
        told, counters = drawn[6 * (3 - number) :][:ranks], [claims.counter for claims in every]
        for claims in every:
            claims.end(number, told, counters)
        following = [early.get(rank) or every[rank].step(share) for rank in range(ranks)]
    for claims in every:
        claims.begin(0)
    assert store.counts == {}


@pytest.mark.slow
def test_parts_by_hand() -> None:
    # 32 samples, equal ranks: the first two parts of each, of the job's batch of 4, are known to both.
    one, other = claims_of(2, 4, Store())
    of_one, of_other = (claims.step(share_of(0, 0, 32, 2)) for claims in (one, other))
    assert (of_one.parts, of_other.parts) == ([(0, 4), (8, 12)], [(4, 8), (12, 16)])
    of_one.claim(1)  # as its first batch begins: half of the 16 left is its own, 4 at most
    of_other.claim(1)
    of_one.claim(2)  # as its second one begins
    of_one.claim(2)  # is claimed already
    assert of_one.parts[2:] == [(16, 20)]
    of_other.claim(2)
    of_one.claim(3)
    assert (of_other.parts[2:], of_one.parts[3:]) == ([(20, 24)], [(24, 28)])
    # A slow rank asks for half of its share, and leaves off where its sample would end after the others' last ones.
    slow = Guide([8.0, 1.0], 32, 4)
    assert [slow.next(1, left, 1, 1.0) for left in (32, 4)] == [1, 0]


def test_a_slow_rank_is_given_less_from_the_start() -> None:
    assert Guide([8.0, 1.0], 32, 4).forecast() == ([[(0, 4), (6, 10)], [(4, 6), (10, 11)]], 11)
    assert Guide([1.0] * 3, 2, 4).forecast() == ([[(0, 1)], [(1, 2)], [(2, 2)]], 2)  # an epoch's last step


def test_first_parts_are_of_the_speeds_before_the_last_step() -> None:
    from kair_mitigate.claiming import Claims

    slow = Claims(1, 2, 8, Store(), "claims")  # type: ignore[arg-type]
    slow.begin(7)
    slow.end(7, [30.0, 10.0], [0, 0])
    assert [slow.step(share_of(step, 0, 16, 2)).parts[0] for step in (8, 9)] == [(4, 8), (6, 8)]


def test_a_rank_whose_only_batch_shows_no_speed_is_tried_again() -> None:
    assert next_speeds(None, [0.0, 0.0]) is None
    assert next_speeds(None, [100.0, 0.0]) == [100.0, 100.0]
    speeds = next_speeds(None, [100.0, 10.0])
    for _ in range(100):
        speeds = next_speeds(speeds, [100.0, 0.0])
    assert speeds == [100.0, 100.0]
    assert next_speeds([100.0, 50.0], [0.0, 0.0]) == [100.0, 50.0]
    assert next_speeds([100.0, 100.0], [90.0, 50.0]) == [97.0, 50.0]  # noise, and a spell
    assert evened([102.0, 98.0, 150.0, 50.0]) == [100.0, 100.0, 150.0, 50.0]


def test_a_plan_with_claims_is_what_was_written() -> None:
    plan = Plan(3, 5, (8, 8), claims=True)
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    assert State(1, 0, 0, 0, plan).for_ranks(4).plan.claims
    with pytest.raises(ValueError, match="claims is neither"):
        Plan.from_json({**plan.as_json(), "claims": 1})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks has found."""
    out = tmp_path_factory.mktemp("claims") / "found.json"
    run_ranks(JOB, 4, str(out))
    every: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return every


@pytest.mark.live
@pytest.mark.parametrize("way", ["0 workers", "1 workers", "2 workers"])
def test_claimed_samples_are_trained_once_with_exact_gradients(found: list[dict[str, Any]], way: str) -> None:
    assert max(rank[way]["gradient"] for rank in found) < 1e-12
    assert all(rank[way]["exactly_once"] and rank[way]["claims"] for rank in found)
    assert not any(rank[way]["short"] for rank in found)
    assert any(len({*rank[way]["batches"]}) > 2 for rank in found)


@pytest.mark.live
def test_old_counters_are_removed_from_the_store(found: list[dict[str, Any]]) -> None:
    assert all(0 < len(rank[way]["keys"]) < 3 for rank in found for way in ("0 workers", "1 workers"))


@pytest.mark.live
def test_where_claims_fail_sizes_are_the_plans_again(found: list[dict[str, Any]]) -> None:
    for way in ("no store", "no store on rank 2"):
        failed = [rank[way] for rank in found]
        assert max(rank["gradient"] for rank in failed) < 1e-12
        assert all(rank["exactly_once"] and not rank["claims"] for rank in failed)
    # Where nobody can claim, each rank has its forecast parts alone; what is left comes in a later step.
    assert {rank["no store"]["short"] > 0 for rank in found} == {True}
