"""Job-wide patterns as stage 1 reports them: what slows a job though no rank is at fault."""

from collections.abc import Iterator

from kair_engine.causes import Cause
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.imbalance import Scattered
from kair_engine.localize.localization import Localization
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.localize import JobPattern


def job_patterns(found: Localization, *, to_be_priced: bool = False) -> Iterator[JobPattern]:
    """Uneven stages, uneven batches, delays on changing ranks; the time lost is no replay but from the ranks' work.

    Uneven batches that cost little by that are among them only if they are `to_be_priced` by a replay.
    """
    job, steps = found.job, tuple(step.step for step in found.job.steps)
    if (stage := found.stage) is not None:
        figures = {role.name: own / 1e3 for role, own in stage.of_role_ns.items()}
        yield JobPattern("stage_imbalance", ranks_at(job.ranks, stage.positions), steps, stage.lost_ns / 1e3, figures)
    batches = found.batches
    if batches is not None and (to_be_priced or batches.are_costly(job.step_time_ns)):
        figures = {"correlation": batches.correlation, "variation": batches.variation}
        ranks = tuple(Rank(int(rank)) for rank in job.ranks)
        yield JobPattern("sequence_imbalance", ranks, steps, batches.lost_ns / 1e3, figures)
    if (scattered := found.scattered) is not None and not scattered.rare:
        figures = {"delays": float(scattered.events), "rate": scattered.rate}
        ranks = ranks_at(job.ranks, scattered.positions)
        yield JobPattern(_cause(scattered), ranks, scattered.steps, scattered.lost_ns / 1e3, figures)


def _cause(scattered: Scattered) -> Cause:
    return "garbage_collection" if scattered.garbage else CLASSES[scattered.class_index]
