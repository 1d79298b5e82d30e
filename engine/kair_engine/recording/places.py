"""Joins the places in the job's parallel dimensions from its fragments, and corrects them by observed behaviour.

Groups list their ranks in order, so a rank's place in its pipeline group is its stage only if ranks are numbered along
the pipeline; the same holds for its data-parallel group. The true places show otherwise, too: a rank's first send in a
step goes to the next stage, and ranks that share pipeline or tensor groups run the same batches.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kair_engine.trace.group_names import listed_ranks
from kair_engine.trace.model import FirstSend, FragmentInfo, Layout


def joined_layout(infos: Sequence[FragmentInfo], as_ranks: Collection[int]) -> Layout | None:
    """Return the fragments' combined places; a size is the first that any of them states.

    `as_ranks` are the ranks whose peers were taken for places, and are ranks.
    """
    layouts = [info.layout for info in infos if info.layout is not None]
    if not layouts:
        return None
    stated = Layout(
        dp=next((layout.dp for layout in layouts if layout.dp is not None), None),
        pp=next((layout.pp for layout in layouts if layout.pp is not None), None),
        tp=next((layout.tp for layout in layouts if layout.tp is not None), None),
        pipeline_stage={rank: place for layout in layouts for rank, place in layout.pipeline_stage.items()},
        dp_rank={rank: place for layout in layouts for rank, place in layout.dp_rank.items()},
    )
    sends = {rank: one for info in infos for rank, one in info.first_send.items()}
    following = {rank: _receiver(one, as_ranks=rank in as_ranks) for rank, one in sends.items()}
    starts = {rank for rank, one in sends.items() if one.begins}
    alike = {rank: members for info in infos for rank, members in info.same_batches.items()}
    return replace(
        stated,
        pipeline_stage=_stages(following, starts, stated) or stated.pipeline_stage,
        dp_rank=_replicas(alike, stated) or stated.dp_rank,
    )


def _receiver(one: FirstSend, *, as_ranks: bool) -> int:
    ranks = listed_ranks(one.group)
    return ranks.index(one.peer) if as_ranks and one.peer in ranks else one.peer


def _stages(following: Mapping[int, int], starts: Collection[int], stated: Layout) -> dict[int, int]:
    """Return every rank's stage, along chains of first sends; empty if these are not pipelines of the stated length."""
    stages: dict[int, int] = {}
    for start in sorted(starts):
        rank: int | None = start
        stage = 0
        while rank is not None and rank not in stages:
            stages[rank] = stage
            rank, stage = following.get(rank), stage + 1
        if stage != stated.pp:
            return {}
    complete = stages.keys() == stated.pipeline_stage.keys()
    return dict(sorted(stages.items())) if complete else {}


def _replicas(alike: Mapping[int, Collection[int]], stated: Layout) -> dict[int, int]:
    """Return every rank's replica, numbered by lowest ranks; empty unless number and sizes are as stated."""
    leader: dict[int, int] = {}

    def find(rank: int) -> int:
        while (above := leader.setdefault(rank, rank)) != rank:
            leader[rank] = leader[above]
            rank = above
        return rank

    for rank, members in alike.items():
        for member in members:
            one, other = sorted((find(rank), find(member)))
            leader[other] = one
    replicas: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(leader):
        replicas[find(rank)].append(rank)
    if len(replicas) != stated.dp or len({len(ranks) for ranks in replicas.values()}) > 1:
        return {}
    numbers = {rank: at for at, lowest in enumerate(sorted(replicas)) for rank in replicas[lowest]}
    return {rank: numbers[rank] for rank in stated.dp_rank if rank in numbers}
