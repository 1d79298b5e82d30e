"""Scores of ranks put together by host or role."""

from collections.abc import Sequence

from kair_engine.results.localize import GroupBy, GroupScore, RankScore


def grouped(scores: Sequence[RankScore], by: GroupBy) -> tuple[GroupScore, ...]:
    """Return the scores put together by host or role, the highest mean first; empty for `rank`."""
    if by == "rank":
        return ()
    groups: dict[str, list[RankScore]] = {}
    for score in scores:
        groups.setdefault((score.host or "unknown") if by == "host" else score.role, []).append(score)
    result = [
        GroupScore(
            group=name,
            ranks=tuple(sorted(score.rank for score in members)),
            mean_score=sum(score.score for score in members) / len(members),
            max_score=max(score.score for score in members),
            flagged=sum(score.flagged for score in members),
        )
        for name, members in groups.items()
    ]
    return tuple(sorted(result, key=lambda group: (-group.mean_score, group.group)))
