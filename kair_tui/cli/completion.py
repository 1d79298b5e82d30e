"""What the shell offers for a half-typed JOB."""

from kair_engine.errors import KairError
from kair_tui.cli.places import store_root
from kair_tui.cli.registry import COMMANDS


def job_names(incomplete: str) -> list[str]:
    """The store's jobs that begin with `incomplete`; none where there is no store."""
    from kair_engine.store.jobs import Store

    try:
        names = [job.name for job in Store(store_root(None)).jobs()]
    except (OSError, KairError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def schema_names(incomplete: str) -> list[str]:
    """The commands that have a schema and begin with `incomplete`."""
    names = [entry.name for entry in COMMANDS if entry.has_result]
    return [name for name in names if name.startswith(incomplete)]
