"""Requirements of analyses: a step to look at, a rank that was recorded."""

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace


def require_steps(trace: Trace) -> None:
    """Raises UsageError where the selection holds no step."""
    if trace.job.progress:
        text = "these recordings tell which collectives were called, and no steps"
        raise UsageError(text, "kair triage says who has not arrived at which")
    if not trace.steps:
        raise UsageError("no complete step to analyse")


def require_rank(trace: Trace, rank: int) -> None:
    """Raises UsageError where the rank is not among those recorded."""
    ranks = trace.job.ranks
    if rank not in ranks:
        listed = ", ".join(map(str, ranks[:8])) + (f", … {ranks[-1]}" if len(ranks) > 8 else "")
        raise UsageError(f"rank {rank} left no trace in this job (ranks: {listed})")
