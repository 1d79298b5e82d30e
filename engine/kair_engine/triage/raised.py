"""The arrow from slow ranks, and from what all ranks share, to findings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.localization import Localization, job_patterns, step_time_ns
from kair_engine.ranks import Position
from kair_engine.results.blame import BlameResult
from kair_engine.results.rank import PartOfStep
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import Fix, HostStops
from kair_engine.trace.large_steps import large_steps
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.triage.findings import KernelEvidence, rank_finding
from kair_engine.triage.job_wide import (
    exposed,
    job_wide_findings,
    link_findings,
    parts_of_step,
    role_findings,
    without_late_ends,
    without_shared_cores,
    without_stopped_waits,
)
from kair_engine.triage.look import Looked
from kair_engine.triage.pricing import scenarios
from kair_engine.triage.ranks.kernel_times import asleep_beyond_peers_ns
from kair_engine.triage.ranks.suspects import Suspect, suspects
from kair_engine.triage.replays import sample_of
from kair_engine.triage.shared_costs import SharedCosts
from kair_engine.triage.slow_network import slow_networks, without_slow_networks
from kair_engine.triage.unrecorded_graphs import without_unknown_inside
from kair_engine.whatif.analysis import as_replayed
from kair_engine.whatif.model import Model


@dataclass(frozen=True)
class Raised:
    """Candidates for findings, before they are priced and compared with what else is known."""

    findings: tuple[Finding, ...]
    warnings: tuple[KairWarning, ...]
    """Warnings for findings that cannot be made, because what they need was not recorded."""
    parts: tuple[PartOfStep, ...]
    """Where the step of one rank alone goes."""


def raise_findings(seen: Looked, blamed: BlameResult) -> Raised:
    """Of whoever failed a test why it is slow, by what was measured; of all ranks what nobody is to blame for.

    It is also chosen here which steps and ranks are replayed, since those that are accused must be among them.
    """
    trace, found, tables, step_time = seen.trace, seen.found, seen.tables, seen.step_time_ns
    asleep_ns = asleep_beyond_peers_ns(tables.excess, seen.kernel.processor, found.anomalies)
    networks = tuple(slow_networks(trace, tables.excess, step_time, asleep_ns, seen.kernel.processor))
    suspected = suspects(found)
    _choose_replayed(seen, suspected, blamed)
    about = _findings_of(seen, blamed, suspected, replace(seen.kernel, networks=networks))

    def likely(model: Model, stops: HostStops | None, of_all: Sequence[Finding]) -> list[tuple[Fix, ...]]:
        return scenarios(model, about(stops, of_all), found)

    accused = frozenset(place for suspect in suspected for place in suspect.positions)
    shared = SharedCosts(
        trace, seen.replays, tables.parts, step_time, likely, counted=seen.kernel.counted, accused=accused
    )
    parts = parts_of_step(trace)
    wide = _of_all(trace, found, shared, (*networks, *exposed(trace, parts, step_time)), step_time_ns=step_time)
    every = about(shared.stops, wide)
    findings, warnings = without_unknown_inside(every, tables.parts, step_time, waits_known=bool(blamed.collectives))
    return Raised(tuple(findings), tuple(warnings), parts)


def _of_all(
    trace: Trace,
    found: Localization,
    shared: SharedCosts,
    more: Sequence[Finding],
    *,
    step_time_ns: float,
) -> tuple[Finding, ...]:
    """Return what nobody is to blame for; of `more` what accuses no rank, and is reported by nothing else."""
    patterns = tuple(job_patterns(found, to_be_priced=True))
    shares = tuple(shared.findings(found.job))
    known = {finding.cause for finding in shares}
    # A pause of all ranks is reported by its cause, if that is known.
    patterns = tuple(one for one in patterns if "every" not in one.figures or one.cause not in known)
    wide = (*job_wide_findings(trace, patterns, step_time_ns), *shares)
    known = {finding.cause for finding in wide}
    others = [one for one in more if not one.ranks and one.cause not in known]
    return *wide, *without_stopped_waits(others, wide, step_time_ns)


def _findings_of(
    seen: Looked, blamed: BlameResult, suspected: Sequence[Suspect], measured: KernelEvidence
) -> Callable[[HostStops | None, Sequence[Finding]], tuple[Finding, ...]]:
    """Return the findings about suspects and links, given how threads stop and what was found on all
    ranks.
    """
    trace, found = seen.trace, seen.found
    of_links = link_findings(trace, found, step_time_ns(trace, found.job))
    of_hosts = [one for one in measured.networks if one.ranks]
    links = (*of_hosts, *without_slow_networks(of_links, of_hosts))
    of_roles = tuple(role_findings(trace, found, step_time_ns(trace, found.job)))
    accused = frozenset(place for suspect in suspected for place in suspect.positions)
    finding = partial(rank_finding, trace, found, blamed, parts=seen.tables.parts, measured=measured, accused=accused)

    def about(stops: HostStops | None, of_all: Sequence[Finding]) -> tuple[Finding, ...]:
        of_ranks = [finding(suspect, stops=stops) for suspect in suspected]
        of_links = without_late_ends(links, of_ranks)
        return *without_shared_cores(trace.job, of_ranks, {one.cause for one in of_all}), *of_links, *of_roles, *of_all

    return about


def _choose_replayed(seen: Looked, suspected: Sequence[Suspect], blamed: BlameResult) -> None:
    trace, accused = seen.trace, _costliest_first(suspected, seen.found)
    replayed = _of_some_ranks(trace, seen.tables.together, accused, blamed) if large_steps(trace) else trace
    seen.replays.choose(sample_of(replayed or trace, seen.found.job, sorted({*accused})), replayed)


def _costliest_first(suspected: Sequence[Suspect], found: Localization) -> list[int]:
    """Return the suspects' places.

    One of each, then another, since of many there may not be room for all in a replay.
    """

    def places(one: Suspect) -> list[Position]:
        excess = found.mean_ns[one.largest.class_index]
        return sorted(one.positions, key=lambda place: -excess[place])

    turns = zip_longest(*map(places, sorted(suspected, key=lambda one: -one.largest.excess_ns)))
    return [place for turn in turns for place in turn if place is not None]


def _of_some_ranks(trace: Trace, unit: Ints | None, accused: Sequence[int], blamed: BlameResult) -> Trace | None:
    """Return what is replayed in place of steps that are too large for it; None if ranks cannot be separated."""
    if unit is None:
        return None
    imposed = {row.rank: row.blamed_us for row in blamed.by_rank}
    awaited = np.array([imposed.get(rank, 0.0) for rank in trace.job.ranks])
    return as_replayed(trace, unit, accused, awaited)
