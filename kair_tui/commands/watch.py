"""`kair watch`: shows how a running job is doing, as its coordinator wrote it into the store."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from kair_engine.results.watch import WatchResult
from kair_engine.results.windows import WindowsResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.output import say

if TYPE_CHECKING:
    from kair.app.jobs import JobSource

RENDERER = "kair_tui.render.watch"
_TEXT: Final = "A watched job. Default: $KAIR_JOB, else the one watched last."


def run(
    store: Path,
    *,
    job: Annotated[str | None, Argument(_TEXT, offers=job_names)] = None,
    whatif: Annotated[
        bool,
        Option("--whatif", "Also price each sampled window: S, M_W, S_w of each rank; an alert from S 1.1 on."),
    ] = False,
) -> WatchResult:
    """Return the present status. Raises InputError if the job has no coordinator."""
    from kair.app.answers.watch import watch

    status = watch(store, job, lambda text: say(f"kair: {text}"))
    if not whatif:
        return status
    from kair.app.answers.windows import with_windows
    from kair.app.jobs import committed_at, locate

    source = locate(status.job, store)  # re-read, as a store behind a URL changes
    committed = committed_at(status.job, store)
    return status if committed is None else with_windows(status, _windows(source, store, committed))


@lru_cache(maxsize=1)
def _windows(source: "JobSource", store: Path, _committed_at: int | None) -> WindowsResult:
    """Return the windows with the warnings of their recording; asked again after each commit."""
    from kair.app.question import Question
    from kair_tui.cli.asking import open_session

    session = open_session(source, store=store, remembers=False)
    answer = session.ask(Question.of("windows"))
    session.keep(answer)
    found: WindowsResult = answer.result
    return replace(found, warnings=answer.warnings)
