"""Which recordings of calls are of this hang; dumps of another run or of another rank are set aside."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.calls import NOT_NUMBERED, GroupProgress
from kair_engine.trace.model import Job, KairWarning, listed, short_warning
from kair_engine.triage.hangs.groups import ENDS_ALONE, Group, Progress, groups_of

RUNS_APART_NS: Final = 600 * 10**9
"""Newest calls of one run are closer: who makes none holds up the others within a step. Those of an earlier run are
older by its time-out at least, which is 10 minutes for NCCL."""
_DAMAGED: Final = ("unreadable_file", "truncated_file", "mixed_world_sizes")


@dataclass(frozen=True)
class Sound:
    """The process groups of the ranks whose recordings are of this hang."""

    groups: tuple[Group, ...]
    progress: Mapping[int, tuple[GroupProgress, ...]]
    unread: frozenset[int]
    """Ranks whose recording is damaged or not of this hang; some of them show a part."""
    warnings: tuple[KairWarning, ...]


def sound_recordings(job: Job) -> Sound:
    """Return what is left without recordings that do not belong to the others.

    Their ranks are unread, and not silent.
    """
    strange = _not_of_their_rank(job)
    fitting = {rank: one for rank, one in job.progress.items() if rank not in strange}
    older = _of_other_runs(fitting) | _of_other_worlds(fitting)
    aside = {*strange, *older}
    unread = {*aside, *job.truncated, *(rank for one in job.warnings if one.code in _DAMAGED for rank in one.ranks)}
    if any(one.kind == "folded" for one in job.said):
        # Whoever is not named may have said the same.
        unread |= {*range(job.world_size)} - job.progress.keys()
    progress = {rank: groups for rank, groups in sorted(job.progress.items()) if rank not in aside}
    groups = groups_of(job, progress, unread)
    contrary = _contrary(groups, progress)
    if contrary:
        progress = {rank: one for rank, one in progress.items() if rank not in contrary}
        unread |= contrary
        groups = groups_of(job, progress, unread)
    told = (
        (strange, "is in none of the process groups that its own dump lists: the file is another rank's"),
        (older | contrary, "has a recording of another run: the others' calls fit together without it"),
    )
    warnings = tuple(_warning(ranks, text) for ranks, text in told if ranks)
    return Sound(tuple(groups), progress, frozenset(unread), warnings)


def _warning(ranks: set[int], text: str) -> KairWarning:
    word = "rank" if len(ranks) == 1 else "each of ranks"
    return short_warning("other_run", f"{word} {listed(sorted(ranks))} {text}; it is set aside", ranks)


def _not_of_their_rank(job: Job) -> set[int]:
    """Ranks of dumps that list members, and never them."""
    listing = {rank: [one for one in groups if one.ranks] for rank, groups in job.progress.items()}
    return {rank for rank, groups in listing.items() if groups and not any(rank in one.ranks for one in groups)}


def _of_other_runs(progress: Mapping[int, Sequence[GroupProgress]]) -> set[int]:
    """Ranks whose newest call is far from those of most ranks, or far before them where there are as many."""
    newest = {
        rank: max((one.latest.created_ns for one in of if one.latest), default=0) for rank, of in progress.items()
    }
    runs: list[list[int]] = []
    for rank in sorted((rank for rank, time in newest.items() if time), key=lambda rank: newest[rank]):
        if runs and newest[rank] - newest[runs[-1][-1]] < RUNS_APART_NS:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    kept = max(reversed(runs), key=len, default=[])
    return {rank for run in runs if run is not kept for rank in run}


def _of_other_worlds(progress: Progress) -> set[int]:
    """Ranks that list other members of the group of all ranks than most do."""
    worlds = {rank: one.ranks for rank, of in progress.items() for one in of if one.ranks and one.is_of_all}
    counts = Counter(worlds.values())
    usual = max(counts, key=lambda ranks: counts[ranks], default=())
    return {rank for rank, ranks in worlds.items() if ranks != usual}


def _contrary(groups: Sequence[Group], progress: Progress) -> set[int]:
    """Ranks that have not called what others are through with, and could not have been without them.

    Of those that say so and those it is said of, the fewer are set aside, of as many both.
    """
    found: set[int] = set()
    # What is over on a rank that has nothing open may be so by an abort.
    alive = {rank for rank, of in progress.items() if any(one.transfers or one.open_calls for one in of)}
    for group in groups:
        through = {rank: _through(one) for rank, one in group.of_rank.items() if rank in alive}
        behind = {rank for rank, one in group.of_rank.items() if one.enqueued < max(through.values(), default=-1)}
        least = min((group.of_rank[rank].enqueued for rank in behind), default=-1)
        ahead = {rank for rank in through if behind and through[rank] > least}
        found |= {*(behind if len(behind) <= len(ahead) else ()), *(ahead if len(ahead) <= len(behind) else ())}
    return found


def _through(one: GroupProgress) -> int:
    """Return the last call that ended with all members in it."""
    until = one.open_calls[0].sequence if one.open_calls else one.enqueued + 1
    done = (call for call in one.calls if call.state == "done" and call.operation not in ENDS_ALONE)
    return max((call.sequence for call in done if call.sequence < until), default=NOT_NUMBERED)
