"""The sentences of a what-if answer, of every cause and pattern."""

from dataclasses import replace

import pytest
from support.cli_samples import whatif

from kair_engine.results.whatif import (
    CheckedRemedy,
    CommunicationFlapping,
    GarbageCollection,
    Remedy,
    SequenceImbalance,
    SlowdownPattern,
    SlowWorkers,
    StageImbalance,
)
from kair_tui.render.whatif import cause_in_words, price_in_words, remedy_in_words, verdict_in_words

UNEVEN = SequenceImbalance(forward_backward_correlation=0.987, forward_variation_share=0.219, steps=2)
CAUSES = {
    "all delays of rank 3 cost 18.0 ms a step, 90 % of the slowdown": SlowWorkers(ranks=(3,), share=0.9),
    "all delays of ranks 7, 3 cost 10.4 ms a step, 52 % of the slowdown": SlowWorkers(ranks=(7, 3), share=0.521),
    "all delays of ranks 0, 1, 2, 3, 4, 5, 6, 7 … cost 10.4 ms a step, 52 % of the slowdown": SlowWorkers(
        ranks=tuple(range(9)), share=0.521
    ),
    "all delays of host a cost 12.0 ms a step, 60 % of the slowdown, its 8 ranks together": SlowWorkers(
        ranks=tuple(range(8)), share=0.6, host="a"
    ),
    "sequence-length imbalance (forward and backward correlate by 0.99 within a rank, the forward varies by 22 %)": (
        UNEVEN
    ),
    "sequence-length imbalance (forward and backward correlate by 0.99 within a rank, the forward varies by 22 %; or "
    "slow ranks 2: 2 steps are too few to decide)": (UNEVEN.changed(or_slow_ranks=(2,))),
    "stage imbalance (an ideal last stage saves 14.0 ms a step, 70 % of the slowdown)": (StageImbalance(share=0.7)),
    "garbage collection (5 forward computations pause on 2 ranks in 3 steps, backward does not); it costs 22.0 ms a "
    "step, all of the slowdown": (GarbageCollection(ranks=(0, 4), share=1.1, paused_forwards=5, steps=3)),
    "communication flapping (9 transfers take over 3 times their median on 1 ranks in 3 steps: a, b); it costs 6.00 "
    "ms a step, 30 % of the slowdown": (
        CommunicationFlapping(
            ranks=(0,),
            share=0.3,
            flapping_transfers=9,
            steps=3,
            over_median_ratio=3.0,
            operation_types=("a", "b"),
        )
    ),
}
SLOWER = "1.25 times slower than without any straggler"
LOST_US = 20_000.0
"""Of the sample's step, to all stragglers together."""
PATTERNS: dict[SlowdownPattern, str] = {
    "none": "stragglers cost little: the job is 25.0 % slower than without any",
    "one_worker": f"{SLOWER}: no single cause; one worker, rank 1, is slower than all others",
    "few_workers": f"{SLOWER}: no single cause; a few workers are slower than others, rank 1 most",
    "one_stage": f"{SLOWER}: no single cause; stage 0, the last row, is slower than others",
    "diffuse": f"{SLOWER}: no single cause; the cost is spread over all workers",
    "unknown": f"{SLOWER}: no single cause; workers were not priced one by one",
}


@pytest.mark.parametrize("text", CAUSES)
def test_a_cause_is_told_with_its_figures(text: str) -> None:
    assert cause_in_words(CAUSES[text], LOST_US) == text


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_verdict_tells_the_pattern(pattern: SlowdownPattern) -> None:
    even = replace(whatif(), pattern=pattern, causes=(), saved_by_operator_type_us={"forward-compute": 9_000.0})
    assert verdict_in_words(even) == PATTERNS[pattern]


def test_where_no_cause_has_a_name_the_kind_of_time_is_told_that_costs_most() -> None:
    told = replace(
        whatif(),
        pattern="diffuse",
        causes=(),
        saved_by_operator_type_us={"communication": 16_000.0, "host": 8_000.0},
        saved_by_rank_us={1: 1_600.0},
    )
    assert verdict_in_words(told) == (
        f"{SLOWER}: no single cause, mostly communication (80 % of the slowdown); no worker by itself costs much"
    )


def test_the_verdict_tells_all_causes() -> None:
    causes = (SlowWorkers(ranks=(1,), share=0.9), StageImbalance(share=0.5))
    first, second = (cause_in_words(one, LOST_US) for one in causes)
    assert f": {first}, and second {second}; one worker" in verdict_in_words(replace(whatif(), causes=causes))


def test_where_only_fixes_were_priced_there_is_no_cause_to_tell() -> None:
    verdict = verdict_in_words(replace(whatif(), pattern="unknown", causes=(), only_fixes=True))
    assert verdict == "1.25 times slower than without any straggler; only fixes were priced"


@pytest.mark.parametrize(
    ("checked", "words"),
    [
        (None, "never compared with measurements"),
        (
            CheckedRemedy(11, 0.06, 0.94),
            "predicted steps were 6 % off on 11 public runs, rank correlation of savings +0.94",
        ),
        (
            CheckedRemedy(11, 0.16, 0.32),
            "not to be trusted: predicted steps were 16 % off on 11 public runs, rank correlation of savings +0.32",
        ),
    ],
)
def test_a_published_remedy_says_how_far_to_trust_it(checked: CheckedRemedy | None, words: str) -> None:
    priced = Remedy(
        "zb_2p", 1.0, 2_000.0, saved_range_us=(1_000.0, 3_000.0), source="a paper", assumed=("half",), checked=checked
    )
    assert price_in_words(priced) == [
        f"zb-2p: saves +1.00 ms to +3.00 ms a step; {words}",
        "  assumed: half",
        "  source: a paper",
    ]


def test_a_remedy_is_told_with_its_figures() -> None:
    even = Remedy("even_stages", 1.0, 1.0, {0: 0.104, 1: 0.002, 2: -0.331})
    assert remedy_in_words(even) == (
        "even out what the stages compute, by moving layers: stage 0 +10 %, stage 2 -33 % of its compute"
    )
    assert remedy_in_words(Remedy("planned_gc", 1.0, 1.0, collection_us=42_000.0, every_steps=500)) == (
        "plan garbage collection: all ranks collect at one common step, every 500 steps (assumed), 42.0 ms each"
    )
    assert remedy_in_words(Remedy("sorted_microbatches", 1.0, 1.0, dp_ranks=4)) == (
        "deal the microbatches of a step to the 4 data-parallel ranks by their length, longest first"
    )


def test_a_replay_that_is_far_off_does_not_say_that_stragglers_cost_little() -> None:
    off = replace(whatif(), simulation_error=0.54, causes=(), pattern="none")
    assert verdict_in_words(off) == ("no straggler shows, but the replay is 54.0 % off the recording and may miss some")
