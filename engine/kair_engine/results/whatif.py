"""The what-if analysis' answer: slowdown, waste, prices, causes and remedies.

Fixes: what a what-if analysis takes to be as it should be, or scales.
"""

import math
import re
from dataclasses import field
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from kair_engine.causes import FixKind, RemedyName
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.kinds import Kind
from kair_engine.trace.model import KairWarning

if TYPE_CHECKING:
    from collections.abc import Callable


SlowdownPattern = Literal["none", "one_worker", "few_workers", "one_stage", "diffuse", "unknown"]

HIGHEST_COST: Final = 1e12
"""Of a GPU hour: what a year of many costs is a number still."""
SLOW = 1.05
"""Jobs whose S is below lose too little to look for a cause."""
ERROR_GATE = 0.05
"""Of the measured step: the paper discards jobs whose simulation is further off [W]."""


class SlowdownCause(Kind, named="cause", kw_only=True):
    """What the figures speak for as a cause of the slowdown. Units are in the figures' names; shares are of 1."""

    # Templates may name the `cause` itself, and its `price`.
    cause: "CauseName" = field(init=False)
    """Why the time is lost."""
    ranks: tuple[int, ...] = ()
    """Where it is: of a slow stage none."""
    share: float | None = None
    """Of the slowdown, what goes away without it; null where no scenario removes it alone."""
    figures: dict[str, int | float] = field(init=False, hash=False)
    """What speaks for it besides."""
    host: str | None = None
    """Where all ranks of one are slow together."""
    operation_types: tuple[str, ...] = ()
    """Of the transfers that flap."""
    or_slow_ranks: tuple[int, ...] = ()
    """Who is slow instead, if too few steps are recorded to separate uneven sequences from slow workers."""
    text: str = ""
    """A sentence for people."""


class SlowWorkers(SlowdownCause):
    """Some ranks, or all of a host."""

    def wording(self) -> str:
        """Name the host, or the ranks."""
        if self.host is not None:
            return f"all delays of host {{cause.host}} cost {{price}}, its {len(self.ranks)} ranks together"
        return "all delays of {cause.ranks:?rank|ranks} {cause.ranks:first ranks} cost {price}"


class SequenceImbalance(SlowdownCause):
    """Microbatches of different length."""

    forward_backward_correlation: float
    forward_variation_share: float
    steps: int

    def wording(self) -> str:
        """Say which ranks may be slow instead, where steps are few."""
        few = "one step is" if self.steps == 1 else "{steps} steps are"
        instead = f"; or slow ranks {{cause.or_slow_ranks:first ranks}}: {few} too few to decide"
        return (
            "sequence-length imbalance (forward and backward correlate by {forward_backward_correlation:.2f} within a "
            "rank, the forward varies by {forward_variation_share:whole percent}"
            f"{instead if self.or_slow_ranks else ''})"
        )


class StageImbalance(SlowdownCause):
    """A last pipeline stage that computes longer than the others."""

    template = "stage imbalance (an ideal last stage saves {price})"


class GarbageCollection(SlowdownCause):
    """Forward computations that pause now and then."""

    paused_forwards: int
    steps: int

    def wording(self) -> str:
        """Say on how many ranks."""
        where = f"on {len(self.ranks)} ranks in {{steps}} steps"
        return (
            f"garbage collection ({{paused_forwards}} forward computations pause {where}, backward does not); it costs "
            "{price}"
        )


class CommunicationFlapping(SlowdownCause):
    """Transfers that take far longer now and then."""

    flapping_transfers: int
    steps: int
    over_median_ratio: float

    def wording(self) -> str:
        """Say on how many ranks, and which operations."""
        where = f"on {len(self.ranks)} ranks in {{steps}} steps: {', '.join(self.operation_types)}"
        return (
            "communication flapping ({flapping_transfers} transfers take over {over_median_ratio:.0f} times their "
            f"median {where}); it costs {{price}}"
        )


if TYPE_CHECKING:
    CauseName = str
else:
    CauseName = Literal[tuple(SlowdownCause.kinds)]


@dataclass(frozen=True)
class StepPrice:
    """One step under the main scenarios; attributions are S of that step alone."""

    step: int
    """Its number in the recording."""
    measured_us: float
    """As recorded."""
    replayed_us: float
    """Without launch delays."""
    ideal_us: float
    """Replayed without any straggler."""
    slowdown: float
    """S: step time over the ideal step time (1.0 = no effect)."""
    by_operator_type: dict[str, float] = field(default_factory=dict)
    """S of each kind of time or operation type, the largest first."""
    by_dp_rank: dict[int, float] = field(default_factory=dict)
    """S of each data-parallel rank, the largest first."""
    by_stage: dict[int, float] = field(default_factory=dict)
    """S of each pipeline stage, the largest first."""
    by_rank: dict[int, float] = field(default_factory=dict)
    """S of each rank, the largest first."""
    launch_by_operator_type: dict[str, float] | None = None
    """As of the whole job, whose launch delays decide whether they are taken apart."""
    launch_by_dp_rank: dict[int, float] | None = None
    """The same of each data-parallel rank."""
    launch_by_stage: dict[int, float] | None = None
    """The same of each pipeline stage."""
    saved_by_operator_type_us: dict[str, float] = field(default_factory=dict)
    """As of the whole job: what the fix of one part saves of this step alone."""
    saved_by_dp_rank_us: dict[int, float] = field(default_factory=dict)
    """Of a step, by the fix of one data-parallel rank."""
    saved_by_stage_us: dict[int, float] = field(default_factory=dict)
    """Of a step, by the fix of one pipeline stage."""
    saved_by_rank_us: dict[int, float] = field(default_factory=dict)
    """Of a step, by the fix of one rank."""


@dataclass(frozen=True)
class PartEffect:
    """What a part of the workers does to the mean step, seen from both sides [W].

    Shares are of T - T_ideal, what the job loses. The two differ where the rest hides the part, or needs it.
    """

    share_removed: float
    """(T - T_removed) / (T - T_ideal): only the part is ideal. May exceed 1."""
    share_alone: float
    """(T_alone - T_ideal) / (T - T_ideal): only the part is as recorded."""
    step_time_removed_us: float
    """T_removed."""
    step_time_alone_us: float
    """T_alone."""


@dataclass(frozen=True)
class FixPrice:
    """The job with something fixed, or scaled."""

    fix: str
    """What is taken to be as it should be, or scaled."""
    step_time_us: float
    """The mean over steps."""
    saved_us: float
    """Per step; negative where it would be slower."""
    saved_share: float
    """Of the replayed step."""
    throughput_gain: float
    """Steps per time, over those of the job as it is, less 1."""
    gpu_hours_per_day: float
    """Of all devices of the job, what it saves."""
    cost_per_day: float | None = None
    """In the currency of what a GPU hour costs; None where that was not given."""
    currency: str | None = None
    """Of `cost_per_day`, such as `USD`; null where none was given."""


@dataclass(frozen=True)
class AbsorbedFix:
    """A fix of what hosts do that saves nothing: they are ahead of their devices, which never wait for it."""

    fix: str
    """What is taken to be as it should be, or scaled."""
    ranks: tuple[Rank, ...]
    """Whose hosts it is about."""
    saved_us: float
    """Per step: next to nothing."""
    ahead_us: float | None
    """How long, at the least, what these hosts launch waits for their devices; null where that is no longer than a
    launch takes."""
    slack_us_per_step: float
    """So much longer these hosts could take in every step before their devices wait."""


@dataclass(frozen=True)
class LackOfCores:
    """What the kernel measured of the threads that train, per step; capture asks it in sampled steps."""

    ready_by_rank_us: dict[int, float]
    """Ready, and without a core."""
    computed_by_rank_us: dict[int, float]
    """CPU time."""
    lost_by_rank_us: dict[int, float]
    """That cores enough would give back, or nobody stopping the thread: what it was ready without one, and stops in
    which it did not compute."""
    communication_by_rank_us: dict[int, float]
    """Ready without a core, of the thread that communicates and lacked one longest."""
    helpers_by_rank_us: dict[int, float]
    """CPU time of the other threads of its process, without those that communicate; 0 where nobody asked."""
    throttled: float
    """How often a quota stopped the average rank's process; 0 without a quota."""
    halted: float
    """How often a signal did."""


@dataclass(frozen=True)
class HostStops:
    """Moments at which threads stood still: operations that took far longer than they do at other times."""

    per_step: float
    """Of one rank, on average."""
    median_us: float
    """Half of the stops are longer."""
    longest_us: float
    """The longest stop."""
    share_of_step: float
    """What they take of the mean rank's step."""
    slowest_rank_us: float
    """Per step, of the rank that stood still longest in it: the step is shorter by no more without them."""
    together: float
    """How much of a host's time they would take if each rank stood still independently, over what they take: 1 if they
    do, more if ranks stand still together, as a quota on all makes them."""
    by_rank_us: dict[int, float]
    """Per step."""
    inside_by_rank_us: dict[int, float]
    """Of it, in the middle of operators; the rest is between them, where Python runs, sleeps or collects garbage."""
    tick_us: float | None = None
    """The scheduler's tick, where operations end with it: their threads wait for others that have no core."""
    ticked_share: float = 0.0
    """What threads do that is as long as such a tick, of the mean rank's step; no stop, as it is so at all times."""
    cores: LackOfCores | None = None
    """None where nobody measured it of all ranks. Else stops are those that it bears out."""


@dataclass(frozen=True)
class CheckedRemedy:
    """Prices of a remedy compared with what others measured with it."""

    runs: int
    """Public runs, each with and without the remedy."""
    median_error: float
    """Of the predicted step time, |predicted / measured - 1|, the median of the runs."""
    rank_correlation: float
    """Spearman's, of predicted and measured savings over the runs; below 0.54 chance explains it."""


@dataclass(frozen=True)
class Remedy:
    """What would help, and the step time it leads to."""

    remedy: RemedyName
    """What to even out."""
    step_time_us: float
    """The mean over steps."""
    saved_us: float
    """Per step."""
    compute_change_by_stage: dict[int, float] = field(default_factory=dict)
    """Of what each stage computes, the share to add (or, negative, to take away); empty where layers stay."""
    dp_ranks: int | None = None
    """To how many data-parallel ranks microbatches are dealt; None where they stay."""
    collection_us: float | None = None
    """How long a planned garbage collection takes: as long as the longest recorded. None of other remedies."""
    every_steps: int | None = None
    """All ranks collect garbage once in so many steps. None of other remedies."""
    saved_range_us: tuple[float, float] | None = None
    """What it saves at least and at most, by what is assumed; None where nothing is, or by no more than a value."""
    source: str | None = None
    """Who published it."""
    assumed: tuple[str, ...] = ()
    """What the recording does not show and the price rests on."""
    checked: CheckedRemedy | None = None
    """How well its prices agree with public measurements; None where there are none."""
    text: str = ""
    """A sentence for people."""


@dataclass(frozen=True)
class PricedRanks:
    """What triage finds of ranks: what they cost, and in which steps."""

    ranks: tuple[int, ...]
    """Their numbers, sorted."""
    time_lost_us_per_step: float
    """As in `kair triage`."""
    since: int | None
    """The step in which it began; null where that was before the first."""
    until: int | None
    """The last step of what is over; null where it lasts."""


THE_SAME: Final = 0.01
"""Savings that differ by no more than this share are the same."""


@dataclass(frozen=True, kw_only=True)
class WhatifResult:
    """The job without its stragglers, and what each part of it costs [W].

    What a part costs is what its fix saves of the recorded job: the replayed step less that with this part like its
    peers, `saved_by_…_us`. It is the price of `kair whatif --fix` of the same part.

    S of a part, `by_…`, looks from the other side: the step time where only that part is as recorded and everything
    else ideal, over the ideal; 1.0 adds nothing. All are ratios of mean step times. What was not worked out is empty,
    or None.
    """

    slowdown: float
    """S: step time over the ideal step time (1.0 = no effect)."""
    waste: float
    """1 - 1/S."""
    step_time_us: float
    """Replayed, without launch delays: what S compares."""
    measured_step_time_us: float
    """As recorded, the mean over steps."""
    ideal_step_time_us: float
    """Of the published model [W] the ideal is the mean of all ranks, the slow ones among them."""
    peer_slowdown: float
    """Step time over that where nothing takes longer than on its peers, which leave the slow rank out. `slowdown` is
    the published figure. Of profiler recordings the two are the same."""
    peer_ideal_step_time_us: float
    """Replayed with nothing longer than on its peers, the mean over steps."""
    by_operator_type: dict[str, float] = field(default_factory=dict)
    """S of each kind of time or operation type, the largest first."""
    by_dp_rank: dict[int, float] = field(default_factory=dict)
    """S of each data-parallel rank, the largest first."""
    by_stage: dict[int, float] = field(default_factory=dict)
    """S of each pipeline stage, the largest first."""
    by_rank: dict[int, float] = field(default_factory=dict)
    """Exact, by a replay of each worker; empty or without the cheapest ones where that takes too long."""
    by_rank_approximate: dict[int, float] = field(default_factory=dict)
    """The published one: the lower of S of the rank's data-parallel rank and of its stage."""
    heatmap: tuple[tuple[float, ...], ...] = ()
    """(stages × dp ranks): every worker's S, exact where that was worked out, else more than that."""
    m_w: float | None = None
    """Share of the slowdown that goes away with the slowest 3 % of workers: their `share_removed`."""
    slowest_ranks: tuple[int, ...] = ()
    """Those workers."""
    slowest_workers: PartEffect | None = None
    """None, as M_W, where there is no slowdown."""
    m_s: float | None = None
    """Share that goes away with the last pipeline stage's: its `share_removed`."""
    last_stage: PartEffect | None = None
    """None, as M_S, where there is no slowdown or only one stage."""
    forward_backward_correlation: float | None = None
    """Pearson's, within a rank over microbatches; the median of ranks."""
    forward_variation: float | None = None
    """Coefficient of variation of the forward time, median of ranks."""
    host_stops: HostStops | None = None
    """None where no thread stood still, or threads were not recorded."""
    simulation_error: float
    """Of the mean step: replayed without any delay, all else as recorded, against measured [W]: |`delay_share`|."""
    delay_share: float
    """Of the measured mean step: what goes away when replayed without any delay, all else as recorded. A delay is the
    time between the end of all that an operation is known to wait for and its begin; no recorded operation explains it.
    """
    launch_slowdown: float
    """Measured over replayed: what launch delays cost."""
    launch_by_operator_type: dict[str, float] | None = None
    """Only where launch delays cost 3 % or more; the first operation of a stage counts as `first-op`."""
    launch_by_dp_rank: dict[int, float] | None = None
    """The same of each data-parallel rank."""
    launch_by_stage: dict[int, float] | None = None
    """The same of each pipeline stage."""
    pattern: SlowdownPattern
    """Of the workers' S."""
    causes: tuple[SlowdownCause, ...] = ()
    """Those worth naming, the first one first; empty where no figure speaks for one."""
    fixes: tuple[FixPrice, ...] = ()
    """The price of each fix that was asked for, then of all together."""
    remedies: tuple[Remedy, ...] = ()
    """What would help and is no fix of an operation."""
    per_step: tuple[StepPrice, ...]
    """Every step by itself."""
    steps: tuple[int, ...]
    """Those that were analysed."""
    warnings: tuple[KairWarning, ...]
    by_host: dict[str, float] = field(default_factory=dict)
    """Where several ranks share a host, and there are several hosts."""
    gpu_hours_per_day: float = 0.0
    """Of all devices of the job, what it would save without any straggler: more than any fix does."""
    cost_per_day: float | None = None
    """Of these, in the currency of what a GPU hour costs; None where that was not given."""
    currency: str | None = None
    """Of `cost_per_day`, such as `USD`; null where none was given."""
    saved_by_operator_type_us: dict[str, float] = field(default_factory=dict)
    """What a step saves with this kind of time, or operation type, like on peers; the largest first."""
    saved_by_dp_rank_us: dict[int, float] = field(default_factory=dict)
    """Of a step, by the fix of one data-parallel rank."""
    saved_by_stage_us: dict[int, float] = field(default_factory=dict)
    """Of a step, by the fix of one pipeline stage."""
    saved_by_host_us: dict[str, float] = field(default_factory=dict)
    """Of a step, by the fix of one host."""
    saved_by_rank_us: dict[int, float] = field(default_factory=dict)
    """Of very large jobs only of those ranks that can save most."""
    saved_by_rank_at_most_us: dict[int, float] = field(default_factory=dict)
    """Of the other ranks: the fix of each saves no more."""
    saved_heatmap_us: tuple[tuple[float, ...], ...] = ()
    """In the places of `heatmap`: what the fix of every worker saves, or at most saves."""
    only_fixes: bool = False
    """Fixes were priced and nothing else: that there are no causes says nothing."""
    measured: tuple[PricedRanks, ...] = ()
    """Ranks of a watched job whose fault its recorded steps, sampled or not, have a price of (`priced_by: growth`):
    what they cost, where replays say what sampled steps would save. Empty where fixes were asked for."""
    absorbed: tuple[AbsorbedFix, ...] = ()
    """Fixes of single ranks' hosts that save nothing, as these run ahead of their devices."""
    verdict: str = ""
    """The answer in one sentence."""

    @property
    def is_staged(self) -> bool:
        """Whether the heat map has stages as rows and data-parallel ranks as columns; else it is one row of ranks."""
        return len(self.by_dp_rank) == max(map(len, self.heatmap), default=0)

    @property
    def ranks_by_saving(self) -> tuple[tuple[Rank, ...], ...]:
        """Priced ranks, the costliest first; together are those that save the same, and no more than all transfers do.

        A rank's fix holds the transfers that it takes part in. What exceeds those is the rank's alone, even where
        another saves as much.
        """
        groups: list[tuple[Rank, ...]] = []
        least_us = math.inf
        of_transfers_us = self.saved_by_operator_type_us.get("communication", 0.0) * (1 + THE_SAME)
        for rank, saved_us in self.saved_by_rank_us.items():
            if groups and least_us <= saved_us <= of_transfers_us and saved_us > 0:
                groups[-1] = (*groups[-1], Rank(rank))
            else:
                groups.append((Rank(rank),))
                least_us = saved_us * (1 - THE_SAME)
        return tuple(groups)


FIX_KINDS: tuple[FixKind, ...] = ("compute", "input", "host", "communication", "gc")
"""What every part of a step's time is one of."""
STOPS: FixKind = "stops"
ASKED_KINDS: tuple[FixKind, ...] = (*FIX_KINDS, STOPS)
"""What a fix can name: stops are in the time of any kind that threads spend."""


@dataclass(frozen=True)
class Fix:
    """Which operations are changed: those that meet all that is given; an empty field stands for all."""

    ranks: tuple[int, ...] = ()
    """Empty for all."""
    hosts: tuple[str, ...] = ()
    """Empty for all."""
    stages: tuple[int, ...] = ()
    """Of the pipeline; empty for all."""
    kinds: tuple[FixKind, ...] = ()
    """Of operators `host` stands for garbage collection too, as in triage's classes."""
    operators: tuple[str, ...] = ()
    """Shell patterns (* ? []) of operators or operation types."""
    scopes: tuple[str, ...] = ()
    """Shell patterns of annotated scopes: what runs within one, and what that launches."""
    scale: float | None = None
    """Their durations times this; None brings them to their peers' ideal. Delays only where kinds name `host`."""
    even: bool = False
    """Whether each takes its mean instead, over the ranks of its role and the steps: as much work."""

    @property
    def is_scale(self) -> bool:
        """Whether it sets durations, and does not bring them to their peers' ideal."""
        return self.even or self.scale is not None

    def named(self, operator: str) -> bool:
        """Whether an operator's name fits a pattern."""
        return not self.operators or _fits(self.operators, operator)

    def within(self, scope: str) -> bool:
        """Whether a scope's name fits one of the patterns of scopes."""
        return _fits(self.scopes, scope)


def _fits(patterns: tuple[str, ...], name: str) -> bool:
    return any(_matcher(one)(name) for one in patterns)


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> "Callable[[str], re.Match[str] | None]":
    """Of a shell pattern, which is asked of every operator's name."""
    return re.compile(translate(pattern)).match
