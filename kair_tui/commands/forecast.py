"""`kair forecast`: predicts what ordinary noise would cost the job on more ranks."""

from collections.abc import Sequence
from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.forecast"
_MOST = 10_000_000
_LONGEST = 8
"""Digits of the largest number of ranks."""


def run(
    *,
    ranks: Annotated[
        str, Option("--ranks", "The numbers of ranks to forecast: 8,64,1024.", metavar="N,…")
    ] = "8,64,1024",
    per_host: Annotated[
        int | None,
        Option(
            "--per-host",
            "The number of ranks per host, if several hosts are known. Default: as recorded.",
            metavar="N",
            minimum=1,
        ),
    ] = None,
    leave_out: Annotated[
        Sequence[int],
        Option(
            "--leave-out", "A rank to leave out because it is not typical. Can be repeated.", metavar="R", minimum=0
        ),
    ] = (),
    draws: Annotated[
        int, Option("--draws", "How often the recording is resampled for the interval.", metavar="N", minimum=20)
    ] = 200,
    seed: Annotated[int, Option("--seed", "Random seed.", metavar="N", minimum=0)] = 0,
) -> Question:
    """Return the question."""
    return Question.of("forecast", **locals())
