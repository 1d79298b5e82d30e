"""What blame says of whom ranks wait for."""

from support.excess_builder import STEP_NS

from kair_engine.results.blame import BlameResult, RankBlame


def waiting_for(rank: int, share: float, *, ranks: int, steps: int, percent: float = 30) -> BlameResult:
    """`share` of all waiting is for one rank, so many percent of the step by each peer; the rest is for rank 0.

    Or for rank 1 where that is rank 0.
    """
    mine = percent / 100 * STEP_NS / 1e3 * (ranks - 1) * steps
    other = 1 if rank == 0 else 0
    rows = RankBlame(rank, mine, share, steps), RankBlame(other, mine * (1 - share) / share, 1 - share, 1)
    total = mine / share
    return BlameResult(None, tuple(range(steps)), "robust", (), (), rows, (), (), total, total, 0.0, steps, ())
