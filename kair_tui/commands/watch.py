"""`kair watch`: how a running job is doing, as its coordinator wrote it into the store."""

from pathlib import Path
from typing import Annotated, Final

from kair_engine.results.watch import WatchResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument
from kair_tui.cli.output import say

RENDERER = "kair_tui.render.watch"
_TEXT: Final = "A job that is watched. Default: $KAIR_JOB, else the one that was watched last."


def run(store: Path, *, job: Annotated[str | None, Argument(_TEXT, offers=job_names)] = None) -> WatchResult:
    """Return the status as it is now. Raises InputError where the job has no coordinator."""
    from kair.app.answers.watch import watch

    return watch(store, job, lambda text: say(f"kair: {text}"))
