"""`kair info`: what the recording holds."""

from dataclasses import replace
from typing import Annotated

from kair_engine.results.views import InfoResult
from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.info"


def run(
    trace: Trace,
    *,
    operators: Annotated[bool, Option("--operators", "Also list every operator and how often it ran.")] = False,
) -> InfoResult:
    """Asks the engine. Raises InputError where the steps of a captured job cannot be read."""
    from kair_engine.views.overview import info
    from kair_tui.cli.attempts import attempts_of

    return replace(info(trace, operators=operators), attempts=attempts_of(trace.job))
