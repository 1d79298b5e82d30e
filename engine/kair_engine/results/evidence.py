"""Evidence: what speaks for a finding, as figures, and the analysis that shows the same ones."""

from dataclasses import field
from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.blame import RootCause
from kair_engine.results.fix import Fix

EvidenceKind = Literal[
    "excess",
    "slow_operator",
    "large_delays",
    "periodic",
    "host_pauses",
    "came_last",
    "made_late",
    "operator_behind",
    "slow_link",
    "links_in_common",
    "group_not_rank",
    "uneven_stages",
    "uneven_batches",
    "longest_batch",
    "delays_on_changing_ranks",
    "longest_delays",
    "host_stops",
    "ticks",
    "no_core",
    "throttled",
    "halted",
    "lower_priority",
    "smaller_quota",
    "fewer_cores",
    "crowded",
    "own_threads",
    "slow_network",
    "network",
    "computes_more",
    "asleep",
    "more_calls",
    "launches_more",
    "slower_launches",
    "unmarked_input",
    "longer_batches",
    "larger_inputs",
    "larger_batch",
    "same_inputs",
    "stopped",
    "profiler",
    "device_idle",
    "one_by_one",
    "device_taken",
    "price_range",
    "exposed",
    "since",
    "rank_by_order",
    "replayed",
    "others_nearly_as_late",
    "estimated",
    "not_arrived",
    "no_dump",
    "other_call",
    "all_arrived",
    "last_completed",
    "waits_elsewhere",
    "held_up",
    "in_no_call",
    "called_at",
    "waits_for",
    "wait_circle",
    "transfers_met",
    "no_majority",
    "called",
    "no_report",
    "unreachable",
]
Analysis = Literal["localize", "pinpoint", "blame", "whatif"]


@dataclass(frozen=True)
class ShownBy:
    """The analysis whose answer shows the figures, and what it has to be asked about."""

    analysis: Analysis
    rank: Rank | None = None
    fixes: tuple[Fix, ...] = ()
    """Of `whatif`, made together; none for its answer without any."""


@dataclass(frozen=True)
class Evidence:
    """One thing that speaks for a finding. Units are in the figures' names; shares are of 1."""

    kind: EvidenceKind
    figures: dict[str, float] = field(default_factory=dict)
    shown_by: ShownBy | None = None
    """None where there is no figure to look up."""
    ranks: tuple[Rank, ...] = ()
    """Who it is about; empty where that is nobody."""
    about: str | None = None
    """The cause, operator, process group, pipeline edge, stage, two hosts or file that it is of."""
    root_causes: tuple[RootCause, ...] = ()
    """What made the ranks late, of the kind `made_late`."""
