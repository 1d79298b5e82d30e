"""`kair forecast`: what ordinary noise would cost the job on more ranks."""

from collections.abc import Sequence
from typing import Annotated

from kair_engine.errors import UsageError
from kair_engine.results.forecast import ForecastResult
from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.forecast"
_MOST = 10_000_000
_LONGEST = 8
"""Digits."""


def run(
    trace: Trace,
    *,
    ranks: Annotated[
        str, Option("--ranks", "The numbers of ranks to forecast: 8,64,1024.", metavar="N,…")
    ] = "8,64,1024",
    per_host: Annotated[
        int | None,
        Option(
            "--per-host",
            "Ranks of a host, where several hosts are known. Default: as recorded.",
            metavar="N",
            minimum=1,
        ),
    ] = None,
    leave_out: Annotated[
        Sequence[int],
        Option("--leave-out", "A rank that is no example of the others; may be repeated.", metavar="R", minimum=0),
    ] = (),
    draws: Annotated[
        int, Option("--draws", "How often the recording is drawn anew, for the interval.", metavar="N", minimum=20)
    ] = 200,
    seed: Annotated[int, Option("--seed", "Random seed.", metavar="N", minimum=0)] = 0,
) -> ForecastResult:
    """Asks the engine: of all steps by their history, where capture keeps one.

    Raises UsageError for too few ranks or steps, InputError where the history is damaged.
    """
    from kair_engine.forecast.analysis import forecast
    from kair_tui.cli.step_history import history_of

    numbers = _numbers(ranks)
    history = history_of(trace.job) if trace.steps == trace.job.steps else None
    return forecast(trace, history, ranks=numbers, per_host=per_host, left_out=leave_out, draws=draws, seed=seed)


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(
        part.isascii() and part.isdigit() and len(part) <= _LONGEST and 1 <= int(part) <= _MOST for part in parts
    ):
        raise UsageError(f"--ranks {text!r} is no list of numbers of ranks", "such as --ranks 8,64,1024")
    return tuple(sorted({int(part) for part in parts}))
