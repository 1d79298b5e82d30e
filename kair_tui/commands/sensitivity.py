"""`kair sensitivity`: what this recording can show."""

from typing import Annotated

from kair_engine.results.sensitivity import InjectedFault
from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option
from kair_tui.cli.output import Report, unwatched
from kair_tui.render.sensitivity import SensitivityInWords, sensitivity_in_words

RENDERER = "kair_tui.render.sensitivity"


def run(
    trace: Trace,
    *,
    draws: Annotated[int, Option("--draws", "The number of recordings to simulate.", metavar="N", minimum=20)] = 100,
    probability: Annotated[
        float, Option("--probability", "The probability with which a fault should be found.", metavar="P")
    ] = 0.95,
    seed: Annotated[int, Option("--seed", "Random seed.", metavar="N", minimum=0)] = 0,
    fault: Annotated[
        InjectedFault | None, Option("--fault", "The one kind of fault to ask about, sooner than about all.")
    ] = None,
    progress: Report = unwatched,
) -> SensitivityInWords:
    """Asks the engine, which tells `progress` how far it is."""
    from kair_engine.sensitivity.analysis import FAULTS, sensitivity

    chosen = FAULTS if fault is None else (fault,)
    return sensitivity_in_words(
        sensitivity(trace, draws=draws, probability=probability, seed=seed, chosen=chosen, report=progress)
    )
