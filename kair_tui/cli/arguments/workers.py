"""Whether a cluster works the steps out, and which one."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Final

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_tui.cli.options import EngineChoice, take
from kair_tui.cli.registry import Entry

_ADDRESS: Final = "DASK_SCHEDULER_ADDRESS"


@contextmanager
def on_workers(entry: Entry, arguments: dict[str, Any], trace: Trace) -> Iterator[Trace]:
    """The trace, with the cluster that was asked for; it is left again in the end.

    Raises UsageError where none is named, or one that is not asked.
    """
    chosen = take(EngineChoice, arguments) if entry.on_workers else EngineChoice()
    if chosen.engine == "local":
        if chosen.scheduler is not None:
            raise UsageError("--scheduler belongs to --engine dask")
        yield trace
        return
    if arguments.get("method") == "paper":
        raise UsageError("--method paper works in this process alone: --engine dask belongs to the robust method")
    address = chosen.scheduler or os.environ.get(_ADDRESS)
    if not address:
        raise UsageError("--engine dask needs a cluster", f"--scheduler tcp://HOST:8786, or ${_ADDRESS}")
    from kair_engine.dask_workers import DaskWorkers

    with closing(DaskWorkers(address)) as workers:
        yield replace(trace, workers=workers)
