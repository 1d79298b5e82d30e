"""Compares one part on one rank of a finding with the rank's peers, in windows of time."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.evidence.contrasts import ESTIMATED, Looked
from kair_engine.evidence.course import Course
from kair_engine.evidence.joining import Joins
from kair_engine.evidence.parts import Part
from kair_engine.evidence.series import Event, Readings, Series, combined
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Explanation, Word
from kair_engine.results.triage import Finding
from kair_engine.stats import known_median, median
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.measures import MEASURES

CLOSE: Final = 2.0
"""A prediction must be within this factor of the measured excess."""
LEVEL: Final = 0.05
"""If more than this share of healthy ranks and windows show the same, it explains nothing."""
FEWEST_PLACEBOS: Final = 20
"""With fewer control windows no share is printed, and the word is `consistent` at most."""
ORDER: Final[tuple[Word, ...]] = ("explains", "consistent", "seen", "excluded", "not_tied", "not_observed")
"""Words from the strongest to the weakest."""
AROUND_NS: Final = 600 * 10**9
"""Time before and after the recorded steps in which events count, and in which short recordings look for control
samples.
"""
_MOST_WINDOWS: Final = 400
_MOST_PEERS: Final = 256
_STEPS_A_WINDOW: Final = 10
_READINGS_A_WINDOW: Final = 3
_COVERED: Final = 0.9
"""Share of the finding's time that must be sampled before a part can be excluded."""
_SEES_ALL_S: Final = 10.0
"""A gauge that is read less often excludes nothing: exporters are scraped every 30 s, and lag."""


@dataclass(frozen=True)
class Known:
    """All the evidence that findings are compared with."""

    evidence: EvidenceFile
    joins: Joins
    course: Course
    identities: Mapping[int, RankIdentity]
    has_device: bool
    untied: Mapping[int, Collection[str]] = field(default_factory=dict)
    """rank → measures read from devices that could not be tied to the rank, though one may be its own."""


@dataclass(frozen=True)
class Case:
    """One part and one rank of a finding."""

    known: Known
    readings: Readings
    events: Sequence[Event]
    accused: Collection[int]
    role: Mapping[int, str]
    step_us: float
    finding: Finding
    rank: int
    measured_us: float
    """Excess of the rank's own time, per step."""
    name: str
    part: Part

    def blank(self) -> Explanation:
        """Return the explanation before anything is known: "not_tied" if the measures exist for untied devices only,
        else "not_observed".
        """
        identity = self.known.identities.get(self.rank)
        of_device = identity is not None and self.part.kind == "device"
        elsewhere = self.part.measures.intersection(self.known.untied.get(self.rank, ()))
        is_untied = any(not self.readings.tells(name, (self.rank,)) for name in elsewhere)
        return Explanation(
            part=self.name,
            word="not_tied" if is_untied else "not_observed",
            rank=Rank(self.rank),
            device=identity.device_in_words() if identity is not None and of_device else None,
            measured_us=self.measured_us,
            since_ns=self.onset_ns(),
            command=None if is_untied else self.part.observe or None,
        )

    def explanation(self, measure: str, series: Sequence[Series]) -> Explanation:
        """Return an explanation, not judged yet, with the names and units of a measure that was read; counters are per
        second.
        """
        of, blank = MEASURES[measure], self.blank()
        return replace(
            blank,
            entity=series[0].entity,
            device=blank.device or (device_in_words(series[0]) if self.part.kind == "device" else None),
            measure=measure,
            unit=f"{of.unit}/s" if of.kind == "counter" else of.unit,
            joined_by=series[0].joined_by,
            sources=tuple(sorted({one.source.name for one in series})),
            proofs=(series[0].raw,) if series[0].raw else (),
        )

    def onset_ns(self) -> int | None:
        """Return when the finding began (Unix ns); None if it showed from the first step."""
        since = self.finding.since
        return None if since is None else self.known.course.onset_ns(since)

    def innocents(self) -> tuple[int, ...]:
        """Return the peers that no finding accuses, at most 256: those of the rank's role if there are any."""
        others = [one for one in self.known.course.ranks.tolist() if one not in self.accused]
        chosen = [one for one in others if self.role.get(one) == self.role.get(self.rank)] or others
        every = max(len(chosen) // _MOST_PEERS, 1)
        return tuple(chosen[::every][:_MOST_PEERS])

    def mine(self, looked: Looked) -> Bools:
        """Return which windows are within the finding, and hold its steps if it recurs by a schedule."""
        course, onset, finding = self.known.course, self.onset_ns(), self.finding
        begin, end = int(course.begin_ns.min()) if onset is None else onset, int(course.end_ns.max())
        if finding.until is not None and (before := course.steps <= finding.until).any():
            end = int(course.end_ns[before].max())
        edges = looked.edges_ns
        within = np.asarray((edges[1:] > begin) & (edges[:-1] < end))
        if finding.every is None:
            return within
        slow = np.isin(course.steps, finding.steps)
        first = np.searchsorted(edges, course.begin_ns[slow], side="right") - 1
        last = np.searchsorted(edges, course.end_ns[slow], side="left") - 1
        at = np.arange(len(within))[:, None]
        return np.asarray(within & ((at >= first) & (at <= last)).any(axis=1))

    def looked(
        self, series: Sequence[Series], others: Sequence[str] = (), *, readings: int = _READINGS_A_WINDOW
    ) -> Looked:
        """Return the rank and its healthy peers in windows of several steps and several readings each.

        `others` are measures that are read in the same windows; `readings` is how many readings each window must hold.
        """
        course = self.known.course
        signs = [one for name in others for one in self.readings.of(name, self.rank)[:1]]
        # A source that reports changes only is known at any time; looks at waits are averaged in `holds`.
        several = [one.source.interval_s or 0.0 for one in (*series, *(one for one in signs if not one.source.holds_s))]
        once = [one.source.interval_s or 0.0 for one in signs if one.name == ESTIMATED]
        begin, end = int(course.begin_ns.min()), int(course.end_ns.max())
        intervals = (readings * max(several), max(once, default=0.0))
        length = max(max(intervals) * 1e9, _STEPS_A_WINDOW * course.step_us * 1e3, 1.0)
        if not any(one.length_ns is not None for one in series):
            first, last = min(int(one.time_ns[0]) for one in series), max(int(one.time_ns[-1]) for one in series)
            # Short recordings: readings around them show how healthy ranks behave.
            if (end - begin) / length < FEWEST_PLACEBOS:
                begin, end = min(begin, max(first, begin - AROUND_NS)), max(end, min(last, end + AROUND_NS))
        windows = int(min(max((end - begin) // length, 1), _MOST_WINDOWS))
        edges = np.linspace(begin, end, windows + 1).astype(np.int64)
        ranks = (self.rank, *self.innocents())
        return Looked(ranks, edges, self.step_us, self._peers_own_us(ranks[1:]), self.readings, self.onset_ns())

    def _peers_own_us(self, peers: Sequence[int]) -> float:
        course = self.known.course
        of = np.isin(course.ranks, peers)
        if course.own_us is None or not of.any():
            return max(self.step_us - self.measured_us, 0.0) or self.step_us
        return float(median(np.nan_to_num(known_median(course.own_us[:, of]))))

    def sampled(self, series: Sequence[Series], looked: Looked) -> bool:
        """Return whether the measure was read well enough during the finding to exclude the part."""
        covered = ~np.isnan(combined(series, looked.edges_ns, "sum")[self.mine(looked)])
        of = series[0]
        often = of.length_ns is not None or MEASURES[of.name].kind == "counter"
        often = often or (of.source.interval_s or math.inf) <= _SEES_ALL_S
        return often and bool(len(covered)) and float(covered.mean()) >= _COVERED


def device_in_words(series: Series) -> str | None:
    """Return a device's name from its series, for ranks whose identity lacks one: `node-7, GPU-5f3e…`."""
    kind, _, name = series.entity.partition(":")
    words = {"gpu": name, "pci": name, "gpu index": f"GPU {name}"}.get(kind)
    return None if words is None else ", ".join(one for one in (series.host, words) if one)


def mean_of(values: Floats) -> float | None:
    """Return the mean of the known values; None if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
