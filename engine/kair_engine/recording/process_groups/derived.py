"""Process groups for communication that names none, from the recordings of all ranks together.

gloo's recordings list a rank's groups, but not which of them an operation ran in. For collectives their threads and
times tell (unnamed_collectives.py). Sends and receives name a place in their group: in the right one every send has its
receive.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, order_by
from kair_engine.recording.process_groups.families import Family, families
from kair_engine.recording.process_groups.unnamed import groups_of_lanes
from kair_engine.trace.columns import Columns, joined, read_columns
from kair_engine.trace.model import DerivedGroups, KairWarning, ProcessGroup, Trace
from kair_engine.trace.steps.step_batches import step_batches
from kair_engine.trace.warning_texts import short_warning

_AGREEING: Final = 0.9
"""Share of (step, sender, receiver) in which the sends and the receives must be the same."""


def derive(trace: Trace, groups_of: Mapping[int, Sequence[ProcessGroup]]) -> tuple[DerivedGroups, list[KairWarning]]:
    """The groups of what names none on the ranks in `groups_of`, their lists; and warnings about what stays unknown."""
    rows = _rows(trace, groups_of)
    known = families(groups_of)
    of_lane, undecided = groups_of_lanes(rows, known, trace.job)
    transfers, unsettled = _groups_of_transfers(rows, known, trace.job.ranks)
    found = []
    if undecided:
        text = (
            f"{undecided} collectives do not say in which of the job's process groups they ran, and their times do not"
        )
        found.append(short_warning("unknown_process_group", f"{text} either; they are matched by their order alone"))
    if unsettled:
        text = f"{unsettled} sends and receives do not say in which of the job's process groups they count their peer"
        found.append(short_warning("unknown_peers", f"{text}, and not just one fits; they count as without a peer"))
    of_transfers = {rank: transfers.of_rank.get(rank) if transfers else None for rank in groups_of}
    return DerivedGroups(of_lane, of_transfers), found


def _rows(trace: Trace, ranks: Collection[int]) -> Columns:
    """Communication on threads that names no group, in order of (rank, step, start)."""
    rows = joined([_of_steps(trace, steps, ranks) for steps in step_batches(trace)] or [_of_steps(trace, [], ranks)])
    return rows.chosen(order_by(rows.of["rank"], rows.of["step"], rows.of["start_ns"]))


def _of_steps(trace: Trace, steps: Sequence[int], ranks: Collection[int]) -> Columns:
    rows = read_columns(trace, ("kind", "lane", "name", "group", "start_ns", "duration_ns", "bytes", "peer"), steps)
    threads = [lane for lane in rows.texts["lane"] if lane.startswith("thread ")]
    return rows.chosen(
        (rows.of["group"] == NONE)
        & rows.is_any("kind", ("collective", "send", "recv"))
        & rows.is_any("lane", threads)
        & np.isin(rows.of["rank"], list(ranks))
    )


def _groups_of_transfers(
    rows: Columns, known: Sequence[Family], recorded: Collection[int]
) -> tuple[Family | None, int]:
    """The family in whose groups the sends and receives count their peers, and how many of them have none."""
    rows = rows.chosen(rows.is_any("kind", ("send", "recv")))
    if not len(rows):
        return None, 0
    fitting = [family for family in known if _agree(rows, family, recorded)]
    return (fitting[0], 0) if len(fitting) == 1 else (None, len(rows))


def _agree(rows: Columns, family: Family, recorded: Collection[int]) -> bool:
    """Whether every send has its receive, counted in the family's groups: the same sizes in the same order."""
    sent: dict[tuple[int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int], list[int]] = {}
    columns = (rows.of[name].tolist() for name in ("rank", "step", "bytes", "peer"))
    for rank, step, size, peer, kind in zip(*columns, rows.text("kind"), strict=True):
        group = family.of_rank.get(rank)
        other = _member(group, peer) if group is not None else None
        if other is None or other == rank:
            return False
        if other in recorded:
            ends = (rank, other) if kind == "send" else (other, rank)
            (sent if kind == "send" else received).setdefault((step, *ends), []).append(size)
    links = sent.keys() | received.keys()
    return bool(links) and sum(sent.get(link) == received.get(link) for link in links) >= _AGREEING * len(links)


def _member(group: ProcessGroup, place: int) -> int | None:
    """The rank at `place` in the group; None where there is no such place."""
    return group.ranks[place] if 0 <= place < len(group.ranks) else None
