"""`kair evidence`: logs, metrics and counters kept with a job, and what there is of them."""

from collections.abc import Sequence
from typing import Annotated, Final

from kair.app.evidence import without_password
from kair.app.jobs import locate
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.errors import UsageError
from kair_engine.results.evidence import EvidenceResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import EVIDENCE, Argument
from kair_tui.cli.output import say

RENDERER = "kair_tui.render.evidence"
_ACTIONS: Final = ("add", "list")


def offered(typed: str) -> list[str]:
    """What may stand behind `kair evidence` and begins so: an action, or a job."""
    return [*(one for one in _ACTIONS if one.startswith(typed)), *job_names(typed)]


def run(
    session: OpenStore,
    *,
    words: Annotated[
        Sequence[str],
        Argument(
            "add JOB FILE…: keep files, folders of them, or what a Prometheus server knows, with a job of the store. "
            "list JOB, or JOB alone: what there is. Default: the job in use.",
            offers=offered,
        ),
    ] = (),
    evidence: Annotated[Sequence[str], EVIDENCE] = (),
) -> EvidenceResult:
    """Keep what is named, and list what there is. Raises InputError where something is missing or is no evidence."""
    action, rest = (words[0], words[1:]) if words and words[0] in _ACTIONS else ("list", words)
    if action == "add":
        return _add(session, rest, evidence)
    if len(rest) > 1:
        raise UsageError(f"kair evidence lists one job, and {rest[1]} is a second", f"kair evidence add {rest[0]} FILE")
    # Of a job that is watched evidence comes before anything is sampled.
    source = locate(rest[0] if rest else None, session.root)
    if source.why is not None:
        say(f"kair: using job {source.name} ({source.why})")
    result: EvidenceResult = session.open(source).ask(Question.of("evidence", evidence=evidence)).result
    return result


def _add(session: OpenStore, words: Sequence[str], evidence: Sequence[str]) -> EvidenceResult:
    from kair.app.acts.evidence import add_evidence

    if len(words) < 2:
        raise UsageError("kair evidence add needs a job and files", "kair evidence add job123 dmesg-node-7.txt")
    if evidence:
        raise UsageError(
            "--evidence is looked at and not kept", f"kair evidence add {words[0]} {without_password(evidence[0])}"
        )
    return add_evidence(session, words[0], words[1:])
