"""Warnings: what is said of their figures."""

import pytest

from kair_engine.ranks import Rank
from kair_engine.results.warning_kinds import (
    InexactReplay,
    NobodyWaits,
    ReplayInDoubt,
    SlowMoment,
    TooManyWorkers,
    UnknownMembers,
)
from kair_engine.trace.model import KairWarning
from kair_tui.render.warnings import warning_in_words, warnings_in_words

_RANK = (Rank(3),)


@pytest.mark.parametrize(
    ("warning", "sentence"),
    [
        (
            SlowMoment(share_of_step=0.1234, steps=1, fewest_steps=3, ranks=_RANK, about="compute"),
            "rank 3 took 12.3 % of the step longer than its peers (compute), but in 1 step a slow rank looks like a "
            "slow moment: record at least 3 steps, better 10",
        ),
        (
            UnknownMembers(share_of_step=0.5, ranks=_RANK, about="the rest"),
            "50.0 % of rank 3's step was communication with unknown members; how much of it was waiting is unknown, "
            "and it counts as the rest",
        ),
        (
            NobodyWaits(share_of_step=0.12, waited_share=0.002, ranks=_RANK),
            "rank 3 is slower than its peers by 12.0 % of the step, but they wait only 0.2 % of it for it: no "
            "straggler",
        ),
        (
            ReplayInDoubt(share_of_step=0.0, waited_share=0.217, ranks=_RANK),
            "rank 3 comes last to nearly all collectives, with kernels of its own that take 21.7 % of the step longer, "
            "but a replay prices that at 0.0 %: the price is what its kernels take longer, the replay is in doubt",
        ),
        (
            InexactReplay(off=0.12, worst_step=1200, replayed_us=1240.0, recorded_us=990.0),
            "the replay is 12 % off the recording, most in step 1200 (1.24 ms instead of 990 µs): read the figures "
            "with care",
        ),
        (
            TooManyWorkers(among=16384, priced=900, others_at_most=0.0111),
            "of 16,384 ranks the 900 that exceed their peers most are priced one by one; none of the others makes a "
            "step more than 1.2 % longer",
        ),
    ],
)
def test_a_warning_with_figures_is_told_in_their_units(warning: KairWarning, sentence: str) -> None:
    assert warning_in_words(warning).message == sentence


def test_each_warning_is_told_once() -> None:
    twice = [UnknownMembers(share_of_step=0.5, ranks=(Rank(rank),), about="the rest") for rank in (3, 3, 4)]
    assert len(warnings_in_words(twice[:2], twice[2:])) == 2
