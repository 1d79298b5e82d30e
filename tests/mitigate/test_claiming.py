"""Claims of real ranks: each place is taken once in any order of claims, and gradients are one process' own."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks

pytest.importorskip("torch")
from kair_mitigate.claiming import ClaimedStep, Claims
from kair_mitigate.plans import Plan, Share, State, divided

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


def claims_of(ranks: int, most: int, store: Store) -> list[Claims]:
    every = [Claims(rank, ranks, most, store, "claims") for rank in range(ranks)]  # type: ignore[arg-type]
    for claims in every:
        claims.begin(0)
    return every


def share_of(step: int, offset: int, samples: int, ranks: int) -> Share:
    return Share(step, 0, ((offset, offset + samples),), divided(samples, (1,) * ranks))


def take_all(steps: list[ClaimedStep], every: list[Claims], order: list[int], own: list[float]) -> None:
    """Claim in some order until each rank has left off; `own` are the speeds that they show."""
    going = list(range(len(steps)))
    for turn in range(steps[0].share.samples + len(steps) + 1):
        if not going:
            return
        rank = going[order[turn % len(order)] % len(going)]
        every[rank].shown, before = own[rank], len(steps[rank].parts)
        steps[rank].claim(before)
        if len(steps[rank].parts) == before:
            going.remove(rank)
    raise AssertionError(f"ranks {going} go on claiming")


@settings(derandomize=True, max_examples=300)
@given(
    st.integers(1, 6),
    st.integers(1, 16),
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
    st.lists(st.integers(0, 99), min_size=1, max_size=30),
    st.lists(SPEEDS, min_size=24, max_size=24),
)
def test_each_place_is_taken_once_in_any_order(
    ranks: int, most: int, samples: list[int], order: list[int], drawn: list[float]
) -> None:
    store, offset = Store(), 0
    every = claims_of(ranks, most, store)
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
        told = drawn[6 * (3 - number) :][:ranks]
        for claims in every:
            claims.end(number, told)
        following = [early.get(rank) or every[rank].step(share) for rank in range(ranks)]
        assert store.counts == {}


def test_parts_by_hand() -> None:
    # 16 samples, equal ranks: half of each one's 8 is one part of the micro-batch of 4.
    one, other = claims_of(2, 4, Store())
    share = Share(0, 0, ((0, 16),), (8, 8))
    of_one, of_other = one.step(share), other.step(share)
    assert (of_one.parts, of_other.parts) == ([(0, 4)], [(4, 8)])
    of_one.claim(1)  # half of what it should still do, 4 of the 8 left
    of_other.claim(1)
    assert (of_one.parts[1:], of_other.parts[1:]) == ([(8, 10)], [(10, 12)])
    of_one.claim(1)  # is claimed already
    of_one.claim(2)  # a quarter of the 6 that it knows of
    assert of_one.parts[2:] == [(12, 13)]


def test_the_first_part_is_of_the_speeds_before_the_last_step() -> None:
    (one,) = claims_of(1, 8, Store())
    assert one.speeds is None
    slow = Claims(1, 2, 8, Store(), "claims")  # type: ignore[arg-type]
    slow.begin(7)
    slow.end(7, [30.0, 10.0])
    shares = [Share(step, 0, ((0, 16),), (8, 8)) for step in (8, 9)]
    assert [slow.step(share).parts for share in shares] == [[(4, 8)], [(6, 8)]]


def test_a_rank_whose_only_batch_shows_no_speed_is_tried_again() -> None:
    (claims,) = claims_of(1, 8, Store())
    claims.rank, claims.ranks = 1, 2
    claims.end(0, [100.0, 10.0])
    for step in range(1, 100):
        claims.end(step, [100.0, 0.0])
    assert claims.speeds == [100.0, 100.0]
    claims.end(100, [0.0, 0.0])
    assert claims.speeds == [100.0, 100.0]


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
    assert not any(rank[way]["short"] or rank[way]["keys"] for rank in found)
    assert any(len({*rank[way]["batches"]}) > 2 for rank in found)


@pytest.mark.live
def test_where_claims_fail_sizes_are_the_plans_again(found: list[dict[str, Any]]) -> None:
    for way in ("no store", "no store on rank 2"):
        failed = [rank[way] for rank in found]
        assert max(rank["gradient"] for rank in failed) < 1e-12
        assert all(rank["exactly_once"] and not rank["claims"] for rank in failed)
    # In step 3 each rank has its first part alone; what is left comes in a later step.
    # So it is in step 5, where the loader is made anew.
    assert all(rank["no store"]["short"] == 2 and rank["no store"]["batches"][3] == 1 for rank in found)
