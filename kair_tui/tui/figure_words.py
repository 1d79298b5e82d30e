"""Explanations of each screen's figures, a sentence each, and ranks' figures compared with their peers'."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kair_engine.results.rank import RankProfileResult
from kair_engine.results.triage import RankedRank, TriageResult
from kair_tui.render.triage import has_scores
from kair_tui.render.units import duration, plural, score, signed_duration

Figures = Sequence[tuple[str, str]]
"""Names of figures with their explanations."""

_SCORE: Final = (
    "score",
    "how many standard errors a rank's excess lies above its peers'; it ranks, and accuses nobody: ▲ does",
)
_SELF_TIME: Final = (
    "self time",
    "a rank's own time in a step beyond the median of its role, without waiting for others",
)
_IMPOSED: Final = ("others wait", "how long other ranks waited for this one in total, per step")
_SLOWDOWN: Final = (
    "S",
    "slowdown: the step time over the step time without any straggler, both replayed: 1.1 is a step a tenth longer",
)

OF_SCREEN: Final[Mapping[str, Figures]] = {
    "overview": (
        _SCORE,
        _SELF_TIME,
        _IMPOSED,
        ("slow step", "a step in which the slowest rank takes 1.1 times as long as in the median step"),
        ("late", "self time of a rank in one step beyond the median of its role in that step, as a share of the step"),
    ),
    "rank": (
        _SCORE,
        ("differs", "what a part of the step takes beyond the median of the rank's role"),
        (
            "Δ from rank",
            "the largest distance at any moment between two ranks' completion curves, which show how much of the "
            "step's operations had ended",
        ),
        ("outlier", "an operation that takes longer than the same one among peers, beyond chance"),
        ("lost", "what the outliers of a row take longer than among peers, summed"),
        ("score of an outlier", "its share of the step"),
    ),
    "blame": (
        ("waiting", "how long ranks waited in collectives for the one that arrived last, summed"),
        ("late", "how much later than the median of its peers an operation began"),
        ("share", "the share of all waiting that is traced back to this cause"),
    ),
    "whatif": (
        _SLOWDOWN,
        ("M_W", "the share of the waste that goes when only the slowest 3 % of workers are as fast as the others"),
        ("costs", "how much longer the step is because of this part, and that as a share of it"),
        ("saves", "how much shorter the step is with this fix, replayed"),
    ),
    "matrix": (
        (
            "distance",
            "Kolmogorov-Smirnov: the largest difference at any moment between two ranks' completion curves; it ranks, "
            "and accuses nobody",
        ),
        ("mean", "of the distances of a rank from all others"),
    ),
    "frequency": (
        ("degraded", "△: an operator ran less than half as often as on its peers in this window"),
        ("missing", "▲: it hardly ran there"),
    ),
    "timeline": (("waited", "how long all others waited in a collective for the rank that arrived last (◆)"),),
}


def compared_with_peers(row: RankedRank, triage: TriageResult) -> Figures:
    """Return each figure of a rank, with the median and range of ranks with its role; empty without scores."""
    if not has_scores(triage):
        return ()
    peers = [one for one in triage.ranking if one.role == row.role and one.rank != row.rank]

    def compared(of: Callable[[RankedRank], float], text: Callable[[float], str]) -> str:
        if not peers:
            return f"{text(of(row))}; it has no peers"
        values = sorted(of(one) for one in peers)
        middle = len(values) // 2
        median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
        return (
            f"{text(of(row))}; of {plural(len(peers), 'peer')} the median is {text(median)}, "
            f"from {text(values[0])} to {text(values[-1])}"
        )

    waits = []
    if all(one.wait_imposed_us is not None for one in (row, *peers)):
        waits = [("others wait", compared(lambda one: one.wait_imposed_us or 0.0, duration) + ", per step")]
    return [
        ("score", compared(lambda one: one.score, score)),
        ("self time", compared(lambda one: one.self_time_excess_us, signed_duration) + ", per step"),
        *waits,
    ]


def parts_in_sum(profile: RankProfileResult) -> Figures:
    """Return the parts of a rank's step, each compared with the median of its role, and their sum."""
    parts = [(one.part, duration(one.own_us), one.typical_us) for one in profile.parts if one.own_us > 0]
    figures = [
        (name, time if typical is None else f"{time}; the role's median is {duration(typical)}")
        for name, time, typical in parts
    ]
    total = " + ".join(time for _, time, _ in parts)
    return [*figures, ("step time", f"{total} = {duration(profile.step_time_us)}" if parts else "not known")]
