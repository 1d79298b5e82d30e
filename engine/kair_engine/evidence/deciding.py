"""Decides which part explains a finding: contrast with peers, size, time, and how often healthy ranks show the same.

Nothing here accuses a rank: only ranks that the recording's own tests found are examined.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.evidence.by_counts import by_counts, by_growth
from kair_engine.evidence.by_events import by_events
from kair_engine.evidence.by_silence import by_silence
from kair_engine.evidence.by_size import by_signs, by_size
from kair_engine.evidence.case import ORDER, Case, Known, mean_of
from kair_engine.evidence.joining import ASSUMED
from kair_engine.evidence.parts import PARTS, Part
from kair_engine.evidence.series import Event, Readings, events_of
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Explanation
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.stats import known_median

_MOST_RANKS: Final = 8
"""Ranks of a finding that are examined."""
_CONTEXT: Final = frozenset(
    {
        "gpu_throttle_reasons", "gpu_utilization", "gpu_pcie_sent", "gpu_pcie_received", "gpu_pcie_width",
        "gpu_pcie_generation", "nic_sent", "nic_received",
    }
)  # fmt: skip
"""Measures that others are interpreted with."""
_OF_CLOCKS: Final = ("thermal", "power_brake", "power_cap", "locked_clock", "low_clock", "other_process_on_device")
"""If all of these are excluded, a slow device is slow by itself."""


def with_explanations(result: TriageResult, known: Known) -> TriageResult:
    """Return the same verdict; each finding has what speaks for and against the parts that could cause it."""
    names = {name for part in PARTS.values() for name in part.measures} | _CONTEXT
    readings = Readings(known.evidence, known.joins, names, known.course.spent)
    events = events_of(known.evidence, known.joins, {name for part in PARTS.values() for name in part.events})
    findings = (replace(one, explanations=_explained(one, result, known, readings, events)) for one in result.findings)
    return replace(result, findings=tuple(findings))


def _explained(
    finding: Finding, result: TriageResult, known: Known, readings: Readings, events: Sequence[Event]
) -> tuple[Explanation, ...]:
    """Return one explanation per part, from the finding's rank that it fits best."""
    if finding.pattern == "job_wide":
        return ()
    best: dict[str, Explanation] = {}
    for case in _cases(finding, result, known, readings, events):
        one, before = _decided(case), best.get(case.name)
        if case.part.vanishes and one.word == "not_observed":
            continue  # it did not stop, or was never read; other parts report that
        if before is None or ORDER.index(one.word) < ORDER.index(before.word):
            best[case.name] = one
    found = _each_once(list(best.values()))
    found += _by_exclusion(finding, best)
    return tuple(sorted(found, key=lambda one: ORDER.index(one.word)))


def _cases(
    finding: Finding, result: TriageResult, known: Known, readings: Readings, events: Sequence[Event]
) -> Iterator[Case]:
    accused = frozenset(rank for one in result.findings for rank in one.ranks)
    excess = {row.rank: row.self_time_excess_us for row in result.ranking}
    role: Mapping[int, str] = {int(row.rank): row.role for row in result.ranking}
    for rank in finding.ranks[:_MOST_RANKS]:
        measured = max(_since_onset(finding, rank, role, accused, known), 0.0)
        measured = measured or max(excess.get(rank, 0.0), 0.0) or finding.time_lost_us_per_step
        for name, part in PARTS.items():
            if finding.cause in part.causes and _can_be(part, finding, has_device=known.has_device):
                yield Case(
                    known,
                    readings,
                    events,
                    accused,
                    role,
                    result.step_time_us,
                    finding,
                    int(rank),
                    measured,
                    name,
                    part,
                )


def _since_onset(finding: Finding, rank: int, role: Mapping[int, str], accused: Collection[int], known: Known) -> float:
    """Return by how many µs the rank's steps grew beyond its peers' at the onset, on average; 0 if not known.

    The ranking's excess covers all steps, also those before the onset, but parts are sized since then. An excess that
    the rank had before must have another cause, and is subtracted.
    """
    course = known.course
    if finding.since is None or course.own_us is None:
        return 0.0
    others = [one for one in course.ranks.tolist() if one not in accused]
    alike = [one for one in others if role.get(one) == role.get(rank)] or others
    own, peers = course.own_us[:, course.ranks == rank], course.own_us[:, np.isin(course.ranks, alike)]
    if not own.size or not peers.size:
        return 0.0
    over, later = own[:, 0] - known_median(peers.T), course.steps >= finding.since
    if finding.until is not None:
        later &= course.steps <= finding.until
    return (mean_of(over[later]) or 0.0) - max(mean_of(over[~later]) or 0.0, 0.0)


def _can_be(part: Part, finding: Finding, *, has_device: bool) -> bool:
    """Return whether the part can cause the finding: device parts need a device, and a host does not slow computation
    on one.
    """
    if part.kind == "device":
        return has_device
    return part.kind == "link" or part.vanishes or not has_device or finding.cause != "compute"


def _decided(case: Case) -> Explanation:
    """Return the strongest of the part's tests; "excluded" needs every one of them to exclude it."""
    part = case.part
    looked = (by_size(case), by_signs(case), by_events(case), by_counts(case), by_growth(case), by_silence(case))
    found = [one for one in looked if one is not None]
    if not found:
        return case.blank()
    best = min(found, key=lambda one: ORDER.index(one.word))
    ways = sum((bool(part.sizes or part.signs), bool(part.events), bool(part.counts), part.grows is not None))
    if best.word == "excluded" and (len(found) < ways or any(one.word != "excluded" for one in found)):
        return replace(case.blank(), sources=best.sources)
    if best.word == "explains" and best.joined_by in ASSUMED:
        return replace(best, word="consistent", command=None)
    if best.word == "excluded":
        return replace(best, command=None, p_value=None, fired=0, tried=0)
    return best if best.word in ("not_tied", "not_observed") else replace(best, command=None)


def _each_once(found: list[Explanation]) -> list[Explanation]:
    """Drop explanations that repeat a measure or an event of a stronger part; parts with a sign come before others."""
    kept, spoken = [], set[object]()
    for one in sorted(found, key=lambda one: (ORDER.index(one.word), not PARTS[one.part].signs)):
        explanation = one
        if one.word in ("explains", "consistent", "seen"):
            by = (one.measure, one.at_ns) if one.at_ns is not None else (PARTS[one.part].sizes[:1], one.measure)
            if by in spoken and (one.at_ns is not None or not PARTS[one.part].signs):
                continue
            if by in spoken and one.word == "explains":
                explanation = replace(one, word="consistent")
            spoken.add(by)
        kept.append(explanation)
    return kept


def _by_exclusion(finding: Finding, found: Mapping[str, Explanation]) -> list[Explanation]:
    """Return "device_itself" if every cause that telemetry could show is excluded; only another measurement can confirm
    it.
    """
    clocks = [found[name] for name in _OF_CLOCKS if name in found]
    if finding.cause != "compute" or len(clocks) < len(_OF_CLOCKS) or any(one.word != "excluded" for one in clocks):
        return []
    first = clocks[0]
    rank = Rank(first.rank)
    probe = f"kair probe --rank {rank} --out rank{rank}.json on its node, and the same on a healthy peer"
    return [
        Explanation(
            part="device_itself",
            word="consistent",
            rank=rank,
            entity=first.entity,
            device=first.device,
            measured_us=first.measured_us,
            since_ns=first.since_ns,
            joined_by=first.joined_by,
            sources=first.sources,
            command=probe,
        )
    ]
