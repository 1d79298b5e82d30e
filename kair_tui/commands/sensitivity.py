"""`kair sensitivity`: what this recording can show."""

from typing import Annotated

import typer

from kair_engine.trace.model import Trace
from kair_tui.render.sensitivity_in_words import SensitivityInWords, sensitivity_in_words

RENDERER = "kair_tui.render.views.sensitivity"


def run(
    trace: Trace,
    *,
    draws: Annotated[
        int, typer.Option("--draws", metavar="N", help="Recordings that are drawn.", min=20, show_default=True)
    ] = 100,
    probability: Annotated[
        float,
        typer.Option("--probability", metavar="P", help="With which a fault is to be found.", show_default=True),
    ] = 0.95,
    seed: Annotated[int, typer.Option("--seed", help="Of what is drawn.", min=0, show_default=True)] = 0,
) -> SensitivityInWords:
    """Asks the engine."""
    from kair_engine.sensitivity.analysis import sensitivity

    return sensitivity_in_words(sensitivity(trace, draws=draws, probability=probability, seed=seed))
