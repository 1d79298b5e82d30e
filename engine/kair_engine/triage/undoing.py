"""What undoes each finding, and which of them are undone at once: what pricing asks of a replay."""

from collections.abc import Mapping, Sequence
from typing import Final

from kair_engine.causes import CAUSES, CauseRow, FixKind
from kair_engine.frozen import dataclass
from kair_engine.localize.imbalance import UnevenStage
from kair_engine.localize.localization import Localization
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import Fix
from kair_engine.triage.past_prices import is_by_past
from kair_engine.triage.replays import fits
from kair_engine.triage.shared_costs import NOTABLE_SHARE, fix_of_all
from kair_engine.triage.slow_network import faster_transfers
from kair_engine.whatif.model import Model

MOST_FINDINGS, FEWEST_TOGETHER = 16, 2
"""So many findings, the costliest by their excess, are replayed one by one, as each takes a replay of the recording;
the others at once. From two on all are replayed together, too."""

OF_THREADS: Final[tuple[FixKind, ...]] = ("compute", "host", "input")
"""What a rank that lacks cores is late with besides the visible stops: on a core that it shares all takes longer."""

LAUNCHED_MORE = ("more_calls", "launches_more")
"""Evidence that a rank runs more operators than its peers, each of which its host launches."""


Places = tuple[int, ...]
"""Findings that are undone at once, by their places in the order of `priced`."""


@dataclass(frozen=True)
class Question:
    """The findings that a replay can price, by their positions, and what undoes each."""

    undone: Mapping[int, tuple[Fix, ...]]
    shared: Places
    """Of them those about what all ranks spend alike, the costliest first."""
    accused: Places
    """Of them those that accuse somebody."""

    @classmethod
    def about(cls, model: Model, ordered: Sequence[Finding], found: Localization) -> "Question":
        """Ask about those of the findings, the costliest first, that a replay can price."""
        shows_waiting, only_some = found.job.shows_waiting, len(model.job.ranks) < len(found.job.ranks)
        undone = {
            at: fixes
            for at, finding in enumerate(ordered)
            if (not finding.ranks or shows_waiting)
            and not is_by_past(finding)
            and (not only_some or _shown_by(model, finding))
            and (fixes := _undoing(model, finding, found))
        }
        shared = (at for at in undone if ordered[at].pattern == "job_wide" and ordered[at].cause in NOTABLE_SHARE)
        return cls(undone, tuple(shared), tuple(at for at in undone if ordered[at].pattern != "job_wide"))

    @property
    def every(self) -> Places:
        """All of them."""
        return tuple(self.undone)

    @property
    def singly(self) -> Places:
        """Those that are replayed one by one."""
        return tuple(at for at in self.undone if at < MOST_FINDINGS)

    @property
    def rest(self) -> Places:
        """The others, which are replayed at once."""
        return tuple(at for at in self.undone if at >= MOST_FINDINGS)

    @property
    def have_parts(self) -> bool:
        """Whether several are accused, who may hide one another."""
        return len(self.accused) >= FEWEST_TOGETHER

    @property
    def left(self) -> list[Places]:
        """All others undone, then one shared cost after the other; nothing where no other finding was before any."""
        if not self.shared or len(self.undone) < FEWEST_TOGETHER:
            return []
        done = tuple(at for at in self.undone if at not in self.shared)
        return [(*done, *self.shared[:number]) for number in range(len(self.shared) + 1)]

    @property
    def asked(self) -> list[Places]:
        """What is undone in each replay, each once."""
        asked: list[Places] = [(at,) for at in self.singly]
        asked += [self.rest] if self.rest else []
        if len(self.undone) >= FEWEST_TOGETHER:
            asked += [self.every, *(without(self.every, at) for at in self.singly)]
        if self.have_parts:
            asked += [self.accused, *(without(self.accused, at) for at in self.accused if at < MOST_FINDINGS)]
        return [places for places in dict.fromkeys([*asked, *self.left]) if places]

    def fixes(self, places: Places) -> tuple[Fix, ...]:
        """Return what undoes these."""
        return tuple(fix for at in places for fix in self.undone[at])


def without(places: Places, at: int) -> Places:
    """All but one."""
    return tuple(other for other in places if other != at)


def _undoing(model: Model, finding: Finding, found: Localization) -> tuple[Fix, ...]:
    """Return what undoes the finding; empty where nothing that a replay can change does, or a remedy does."""
    cause = CAUSES[finding.cause]
    if cause.remedy is not None:
        return () if cause.remedy in model.remedy_names else _evened_out(model, cause, found)
    if "exposed" in finding.shows:
        return ()  # of one rank alone no replay knows what it waits for
    if finding.pattern == "job_wide":
        of_all = _of_all(finding, found)
        return (of_all,) if of_all is not None and fits(model, of_all) else ()
    if cause.fix_kind is None or cause.fix_kind not in model.kinds:
        return ()
    return _of_ranks(model, finding, cause.fix_kind, found)


def _evened_out(model: Model, cause: CauseRow, found: Localization) -> tuple[Fix, ...]:
    """Return the fixes that put stages, or lengths, at their mean."""
    if cause.even_kind is not None:
        even = Fix(kinds=(cause.even_kind,), even=True)
        return (even,) if cause.even_kind in model.kinds and fits(model, even) else ()
    return _even(found.stage) if found.stage is not None else ()


def _of_all(finding: Finding, found: Localization) -> Fix | None:
    """Return the fix of a cost on all ranks; a kind of delay and the ordinary noise in it are one, unless measured."""
    if "network" in finding.shows:
        return Fix(kinds=("communication",), scale=faster_transfers(finding, found.job))
    return fix_of_all(finding.cause)


def _of_ranks(model: Model, finding: Finding, kind: FixKind, found: Localization) -> tuple[Fix, ...]:
    """Their part of a kind of time like their peers'; of a slow network that of all who communicate with them."""
    if "slow_network" in finding.shows:
        return (Fix(kinds=(kind,), scale=faster_transfers(finding, found.job)),)
    kinds: tuple[FixKind, ...] = (kind,)
    if model.job.has_device:
        # Where launching more keeps the device waiting, that time is the host's.
        kinds += () if finding.shows.isdisjoint(LAUNCHED_MORE) else ("host",)
    elif finding.cause == "contention":
        kinds += OF_THREADS
    return (Fix(ranks=tuple(sorted(finding.ranks)), kinds=kinds),)


def _shown_by(model: Model, finding: Finding) -> bool:
    """Whether a replay of some of the ranks shows what a finding costs: whose it is, or what hits all alike."""
    if "delays_on_changing_ranks" in finding.shows:
        return False  # all wait for whoever it hits: of fewer ranks it hits fewer
    return not finding.ranks or not set(finding.ranks).isdisjoint(model.job.ranks)


def _even(stage: UnevenStage) -> tuple[Fix, ...]:
    """Every stage's compute scaled to the stages' mean."""
    mean = sum(stage.of_role_ns.values()) / len(stage.of_role_ns)
    return tuple(
        Fix(stages=(role.stage,), kinds=("compute",), scale=round(mean / own, 4))
        for role, own in stage.of_role_ns.items()
        if own > 0 and role.stage is not None
    )
