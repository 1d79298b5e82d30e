"""`kair sensitivity`: shows which delays this recording could reveal."""

from typing import Annotated

from kair.app.question import Answer, Question
from kair_engine.results.sensitivity import InjectedFault, SensitivityResult
from kair_tui.cli.options import Option
from kair_tui.render.sensitivity import sensitivity_in_words

RENDERER = "kair_tui.render.sensitivity"


def run(
    *,
    draws: Annotated[int, Option("--draws", "The number of recordings to simulate.", metavar="N", minimum=20)] = 100,
    probability: Annotated[
        float, Option("--probability", "The probability with which a fault should be found.", metavar="P")
    ] = 0.95,
    seed: Annotated[int, Option("--seed", "Random seed.", metavar="N", minimum=0)] = 0,
    fault: Annotated[
        InjectedFault | None, Option("--fault", "Ask about one kind of fault only, which takes less time.")
    ] = None,
) -> Question:
    """Return the question."""
    return Question.of("sensitivity", **locals())


def in_words(answer: Answer) -> SensitivityResult:
    """Return the result as text for people."""
    return sensitivity_in_words(answer.result)
