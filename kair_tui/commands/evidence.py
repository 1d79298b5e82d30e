"""`kair evidence`: lists and adds the logs, metrics and counters kept with a job."""

from collections.abc import Sequence
from typing import Annotated

from kair.app.jobs import locate
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.results.evidence import EvidenceResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import EVIDENCE, Argument
from kair_tui.cli.output import say

RENDERER = "kair_tui.render.evidence"


def run_list(
    session: OpenStore,
    *,
    job: Annotated[
        str | None, Argument("A job of the store, or a path. Default: the job in use.", offers=job_names)
    ] = None,
    evidence: Annotated[Sequence[str], EVIDENCE] = (),
) -> EvidenceResult:
    """List the evidence. Raises InputError if a file is missing or is no evidence."""
    # A watched job has evidence before any step is sampled.
    source = locate(job, session.root)
    if source.why is not None:
        say(f"kair: using job {source.name} ({source.why})")
    result: EvidenceResult = session.open(source).ask(Question.of("evidence", evidence=evidence)).result
    return result


def run_add(
    session: OpenStore,
    *,
    job: Annotated[str, Argument("A job of the store.", offers=job_names)],
    sources: Annotated[Sequence[str], Argument("Files, folders of them, or the URLs of Prometheus servers.")],
) -> EvidenceResult:
    """Keep evidence with a job, and list all of it. Raises InputError if a file is missing or is no evidence."""
    from kair.app.acts.evidence import add_evidence

    return add_evidence(session, job, sources)
