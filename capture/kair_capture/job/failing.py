"""What happens when capture fails: one warning, and it is off. Training never hears of it otherwise."""

import os
import sys
from contextlib import suppress


def warn(text: str) -> None:
    """Writes one line to stderr. `warnings` could be turned into errors by a filter, and logging is the job's."""
    # A closed or full stderr is the job's business.
    with suppress(Exception):
        sys.stderr.write(f"kair: warning: {text}\n")


def described(error: BaseException) -> str:
    """The error on one line, with the place in capture where it came up."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119  # no Path objects on this way
        trace = trace.tb_next
    # What an error says of itself can fail, too.
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:
        text = "?"
    return f"{type(error).__name__}: {text}{place}"
