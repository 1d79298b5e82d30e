"""A what-if analysis in words: the verdict, its causes and the remedies as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.results.whatif import CauseName, Remedy, SlowdownCause, WhatifResult
from kair_tui.render.text import spaced
from kair_tui.render.units import first_ranks, percent, signed_whole_percent, whole_percent

_WORTH_MOVING = 0.01
"""Of what a stage computes: smaller changes of it are not worth a word."""
_MOST = 0.5
"""Of the slowdown: one kind of time that costs as much is told where no cause has a name."""
_MUCH = 0.1
"""Of the slowdown, for one worker."""


@dataclass(frozen=True, kw_only=True)
class SlowdownCauseInWords(SlowdownCause):
    """What the figures speak for as a cause of the slowdown."""

    text: str


@dataclass(frozen=True, kw_only=True)
class RemedyInWords(Remedy):
    """What would help, and the step time it leads to."""

    text: str


@dataclass(frozen=True, kw_only=True)
class WhatifInWords(WhatifResult):
    """The job without its stragglers, and what each part of it costs."""

    causes: tuple[SlowdownCauseInWords, ...]
    remedies: tuple[RemedyInWords, ...]
    verdict: str
    """The answer in one sentence."""


def whatif_in_words(result: WhatifResult) -> WhatifInWords:
    """The same answer, told."""
    causes = tuple(SlowdownCauseInWords(**vars(one), text=cause_in_words(one)) for one in result.causes)
    remedies = tuple(RemedyInWords(**vars(one), text=remedy_in_words(one)) for one in result.remedies)
    told = {**vars(result), "causes": causes, "remedies": remedies}
    return WhatifInWords(**told, verdict=verdict_in_words(result))


def verdict_in_words(result: WhatifResult) -> str:
    """One sentence: the causes, and the heatmap's pattern; of prices the largest is first."""
    if result.pattern == "none":
        return f"stragglers cost little: the job is {percent(result.slowdown - 1)} slower than without any"
    slower = f"{result.slowdown:.2f} times slower than without stragglers"
    if result.only_fixes:
        return f"{slower}; only fixes were priced"
    causes = ", and second ".join(map(cause_in_words, result.causes)) or f"no single cause{_mostly(result)}"
    return f"{slower}: {causes}; {_pattern(result)}"


def cause_in_words(cause: SlowdownCause) -> str:
    """What it is, where, and what speaks for it."""
    return _CAUSES[cause.cause](cause)


def remedy_in_words(remedy: Remedy) -> str:
    """What to do."""
    if remedy.remedy == "sorted_microbatches":
        ranks = f"the {remedy.dp_ranks} data-parallel ranks"
        return f"deal the microbatches of a step to {ranks} by their length, longest first"
    changes = [of_stage for of_stage in remedy.compute_change_by_stage.items() if abs(of_stage[1]) >= _WORTH_MOVING]
    moves = ", ".join(f"stage {stage} {signed_whole_percent(change)}" for stage, change in changes)
    return f"even out what the stages compute, by moving layers: {moves} of its compute"


def _mostly(result: WhatifResult) -> str:
    kind, alone = next(iter(result.by_operator_type.items()), ("", 1.0))
    share = (alone - 1) / (result.slowdown - 1)
    return f", mostly {spaced(kind)} ({whole_percent(share)} of the slowdown)" if share >= _MOST else ""


def _pattern(result: WhatifResult) -> str:
    rank = next(iter(result.by_rank or result.by_rank_approximate), None)
    stage = next(iter(result.by_stage), None)
    last = ", the last row," if result.by_stage and stage == max(result.by_stage) else ""
    return {
        "one_worker": f"one worker, rank {rank}, costs more than all others",
        "few_workers": f"a few workers cost more than others, rank {rank} most",
        "one_stage": f"stage {stage}{last} costs more than others",
        "diffuse": _spread(result),
        "unknown": "workers were not priced one by one",
    }[result.pattern]


def _spread(result: WhatifResult) -> str:
    largest = max((result.by_rank or result.by_rank_approximate).values(), default=1.0)
    if largest - 1 < _MUCH * (result.slowdown - 1):
        return "no worker by itself costs much"
    return "the cost is spread over all workers"


def _slow_workers(cause: SlowdownCause) -> str:
    if cause.host is not None:
        return f"host {cause.host} costs {_of_slowdown(cause)}, its {len(cause.ranks)} ranks together"
    if len(cause.ranks) == 1:
        return f"rank {cause.ranks[0]} costs {_of_slowdown(cause)}"
    return f"ranks {first_ranks(cause.ranks)} cost {_of_slowdown(cause)}"


def _sequence_imbalance(cause: SlowdownCause) -> str:
    correlation, variation = cause.figures["forward_backward_correlation"], cause.figures["forward_variation_share"]
    uneven = (
        f"forward and backward correlate by {correlation:.2f} within a rank, "
        f"the forward varies by {whole_percent(variation)}"
    )
    return f"sequence-length imbalance ({uneven}{_or_slow_ranks(cause)})"


def _or_slow_ranks(cause: SlowdownCause) -> str:
    if not cause.or_slow_ranks:
        return ""
    steps = int(cause.figures["steps"])
    few = "one step is" if steps == 1 else f"{steps} steps are"
    return f"; or slow ranks {first_ranks(cause.or_slow_ranks)}: {few} too few to tell"


def _stage_imbalance(cause: SlowdownCause) -> str:
    return f"stage imbalance (an ideal last stage takes {_of_slowdown(cause)} away)"


def _garbage_collection(cause: SlowdownCause) -> str:
    pauses = f"{int(cause.figures['paused_forwards'])} forward computations pause {_where(cause)}"
    return f"garbage collection ({pauses}, backward does not); {_without(cause)}"


def _communication_flapping(cause: SlowdownCause) -> str:
    transfers, times = int(cause.figures["flapping_transfers"]), cause.figures["over_median_ratio"]
    flaps = f"{transfers} transfers take over {times:.0f} times their median {_where(cause)}"
    return f"communication flapping ({flaps}: {', '.join(cause.operation_types)}); {_without(cause)}"


def _where(cause: SlowdownCause) -> str:
    return f"on {len(cause.ranks)} ranks in {int(cause.figures['steps'])} steps"


def _without(cause: SlowdownCause) -> str:
    return f"without it {_of_slowdown(cause)} goes away"


def _of_slowdown(cause: SlowdownCause) -> str:
    return f"{whole_percent(cause.share or 0.0)} of the slowdown"


_CAUSES: Final[Mapping[CauseName, Callable[[SlowdownCause], str]]] = {
    "slow_workers": _slow_workers,
    "sequence_imbalance": _sequence_imbalance,
    "stage_imbalance": _stage_imbalance,
    "garbage_collection": _garbage_collection,
    "communication_flapping": _communication_flapping,
}
