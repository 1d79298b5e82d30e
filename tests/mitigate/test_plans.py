"""Which rank trains which samples: every sample once an epoch, whatever is resized, killed and started anew."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_mitigate.permutation import Permutation
from kair_mitigate.plans import Plan, Share, State, divided


def begun(*sizes: int, seed: int = 7) -> State:
    return State(seed, 0, 0, 0, Plan(0, 0, sizes))


def test_the_order_of_an_epoch_is_the_same_in_every_release() -> None:
    """Recorded: a checkpoint of an older Kair has to go on with the same order."""
    assert Permutation(1000, seed=7, epoch=0).of(range(8)) == [921, 271, 355, 694, 652, 877, 123, 15]
    assert Permutation(1000, seed=7, epoch=1).of(range(8)) == [640, 81, 474, 292, 433, 483, 773, 742]
    assert Permutation(1000, seed=8, epoch=0).of(range(8)) == [946, 328, 57, 555, 865, 501, 593, 182]
    assert Permutation(10**12, seed=7, epoch=3).of(range(5, 8)) == [775485565607, 760546557661, 326029882319]


@given(samples=st.integers(1, 3000), seed=st.integers(-5, 2**70), epoch=st.integers(0, 10**6))
def test_it_is_a_permutation(samples: int, seed: int, epoch: int) -> None:
    assert sorted(Permutation(samples, seed, epoch).of(range(samples))) == list(range(samples))


def test_neighbours_and_epochs_have_nothing_in_common() -> None:
    one, other = (np.array(Permutation(100_003, 1, epoch).of(range(100_003))) for epoch in (0, 1))
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(one, np.arange(100_003))[0, 1]) < 0.02
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02


def test_a_step_takes_the_next_places_and_divides_them_by_the_plan() -> None:
    share, after = begun(3, 0, 5).next(20)
    assert [share.places(rank) for rank in range(3)] == [(range(3),), (), (range(3, 8),)]
    assert [share.weight(rank) for rank in range(3)] == [9 / 8, 0, 15 / 8]
    assert (after.offset, after.step, after.epoch) == (8, 1, 0)


def test_the_last_step_of_an_epoch_has_what_is_left() -> None:
    state = begun(4, 2, 2)
    for _ in range(2):
        _, state = state.next(19)
    share, after = state.next(19)
    assert (share.spans, share.sizes) == (((16, 19),), (1, 1, 1))
    assert (after.epoch, after.offset) == (1, 0)


def test_a_plan_holds_from_its_step_on_and_a_newer_one_replaces_what_was_to_come() -> None:
    state = begun(4, 4).heard(Plan(1, 2, (6, 2))).heard(Plan(2, 5, (7, 1))).heard(Plan(3, 3, (2, 6)))
    sizes = []
    for _ in range(6):
        share, state = state.next(10**6)
        sizes.append(share.sizes)
    assert sizes == [(4, 4), (4, 4), (6, 2), (2, 6), (2, 6), (2, 6)]
    # What was heard before is not heard again: an order that is repeated is carried out once.
    assert state.heard(Plan(3, 9, (1, 7))) == state


def test_an_order_to_leave_is_for_one_step() -> None:
    state = begun(4, 4).heard(Plan(1, 2, (4, 4), "leave"))
    assert [step for step in range(10) if state.leaves_after(step)] == [2]
    for _ in range(3):
        _, state = state.next(100)
    again = State.from_json(json.loads(json.dumps(state.as_json())))
    assert not any(again.leaves_after(step) for step in range(again.step, 20))


@given(total=st.integers(0, 10**6), shares=st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(any))
def test_parts_add_up_and_are_in_proportion(total: int, shares: list[int]) -> None:
    parts = divided(total, shares)
    assert sum(parts) == total
    assert all(abs(part - total * share / sum(shares)) < 1 for part, share in zip(parts, shares, strict=True))


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(
    samples=st.integers(1, 90),
    seed=st.integers(0, 9),
    events=st.lists(
        st.one_of(
            st.tuples(st.just("plan"), st.integers(0, 6), st.lists(st.integers(0, 9), min_size=3, max_size=3)),
            st.tuples(st.just("checkpoint"), st.just(0), st.just([])),
            st.tuples(st.just("kill"), st.integers(1, 4), st.just([])),
        ),
        max_size=25,
    ),
)
def test_every_sample_is_trained_once_an_epoch(
    samples: int, seed: int, events: list[tuple[str, int, list[int]]]
) -> None:
    """What was trained after the checkpoint that a killed job goes on from does not count."""
    state = kept = begun(4, 4, 4, seed=seed)
    trained: list[tuple[Share, ...]] = []
    counted: list[Share] = []
    for number, (event, value, sizes) in enumerate(events, 1):
        for _ in range(2):
            share, state = state.next(samples)
            counted.append(share)
        if event == "plan" and any(sizes) and len(state.plan.sizes) == 3:
            state = state.heard(Plan(number, state.step + value, tuple(sizes)))
        elif event == "checkpoint":
            trained.append(tuple(counted))
            counted, kept = [], State.from_json(json.loads(json.dumps(state.as_json())))
        elif event == "kill":
            counted, state = [], kept.for_ranks(value)
    while state.offset or not counted:
        share, state = state.next(samples)
        counted.append(share)
    shares = [*(share for part in trained for share in part), *counted]
    orders = {epoch: Permutation(samples, seed, epoch) for epoch in range(state.epoch)}
    seen = Counter(
        (share.epoch, sample)
        for share in shares
        for rank in range(len(share.sizes))
        for sample in orders[share.epoch].of(*share.places(rank) or (range(0),))
    )
    assert seen == Counter((epoch, sample) for epoch in range(state.epoch) for sample in range(samples))


NO_SIZES: list[object] = [[], [0, 0], [-1, 2], [1.5], [True], "12", [2**40], [1] * 70_000]


@pytest.mark.parametrize(
    "document",
    [
        *(None, [], {}, "plan", {"version": 1}, {"version": True, "from_step": 0, "kind": "sizes", "sizes": [1]}),
        *({"version": 1, "from_step": 0, "kind": kind, "sizes": [1]} for kind in ("stop", 3, None)),
        *({"version": 1, "from_step": 0, "kind": "sizes", "sizes": sizes} for sizes in NO_SIZES),
    ],
)
def test_what_is_no_plan_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="no plan"):
        Plan.from_json(document)
