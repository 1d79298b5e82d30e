"""`kair compare`: what changed between two runs."""

from typing import Annotated

from kair_engine.results.compare import CompareResult
from kair_engine.trace.model import Trace
from kair_tui.cli.completion import job_names
from kair_tui.cli.job import StoreSession, blaming_files, locate, open_source, parse_steps
from kair_tui.cli.options import Argument, Option

RENDERER = "kair_tui.render.compare"


def run(
    session: StoreSession,
    *,
    base: Annotated[str, Argument("The run before: a job of the store, or a path.", offers=job_names)],
    new: Annotated[str, Argument("The run after, likewise.", offers=job_names)],
    step: Annotated[
        str, Option("--step", "The steps of NEW to compare: 40, 40-60, 40,45,50-52, last or all.", metavar="STEPS")
    ] = "all",
    base_step: Annotated[str, Option("--base-step", "The steps of BASE, likewise.", metavar="STEPS")] = "all",
) -> CompareResult:
    """Opens both, and asks the engine. Raises InputError where one is no job."""
    from kair_engine.comparison.analysis import compare

    traces = _opened(session, base, base_step), _opened(session, new, step)
    with blaming_files(*traces):
        return compare(*traces)


def _opened(session: StoreSession, job: str, step: str) -> Trace:
    chosen = parse_steps(step)
    trace = open_source(locate(job, session.store.root), progress=session.progress)
    steps = chosen.among(trace.job.steps)
    return trace if steps is None else trace.select(steps)
