"""`kair mitigate shards`: gives data out in shards, to workers that do not step together."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from kair_engine.errors import InputError, UsageError
from kair_engine.results.mitigate import MitigationShards
from kair_tui.cli.ending import ended_by_signals
from kair_tui.cli.output import say

if TYPE_CHECKING:
    from kair_mitigate.shards.shard import CommitPoint
    from kair_mitigate.shards.store import ShardStore


def serve_shards(name: str, folder: Path, listen: str, make: "Callable[[ShardStore], None]") -> None:
    """Serve shards until all epochs are over, SIGTERM or Ctrl-C. Raises UsageError, InputError."""
    from kair_capture.files import BusyError
    from kair_capture.places import address_of
    from kair_mitigate.orders import RunKeyError
    from kair_mitigate.shard_serving import serve
    from kair_mitigate.shards.looking import SHARDS
    from kair_mitigate.shards.shard import ShardError

    ended = Event()
    try:
        address = address_of(listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from error
    try:
        with ended_by_signals(ended.set):
            serve(folder, address, make, ended, began=lambda at: say(f"kair: shards of job {name} at {at[0]}:{at[1]}"))
    except BusyError as error:
        raise InputError(f"job {name} has a shard service already ({error} is locked)") from error
    except sqlite3.Error as error:
        raise InputError(f"cannot use {folder / SHARDS}: {error}") from error
    except (OSError, RunKeyError) as error:
        raise InputError(f"cannot serve the shards of job {name}: {error}") from error
    except (ShardError, OverflowError) as error:
        raise UsageError(f"job {name}: {error}") from error


def make_shards(
    store: "ShardStore",
    *,
    samples: int | None,
    shard_samples: int | None,
    files: Sequence[str] | None,
    grows: bool,
    seed: int,
    epochs: int | None,
    commit: "CommitPoint",
) -> None:
    """Make the dataset, or go on with the job's earlier one. Raises UsageError, ShardError."""
    how: dict[str, Any] = {"seed": seed, "epochs": epochs or 1, "commit": commit}
    if files is not None and samples is None:
        store.make_files(files, growing=grows, **how)
    elif samples is not None and shard_samples is not None and files is None:
        store.make(samples, shard_samples, **how)
    elif samples is not None or shard_samples is not None or files is not None or not store.is_made:
        raise UsageError(
            "the dataset is --samples and --shard-samples, or --files",
            "kair mitigate shards JOB --samples 60000 --shard-samples 64 --epochs 2",
        )


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file that are not blank. Raises InputError."""
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file}: {error}") from error


def shards_of(folder: Path) -> MitigationShards | None:
    """Count the shards without taking a lock, for which the service would wait.

    Raises OSError if the file is not such a database.
    """
    from kair_mitigate.shards.epochs import newest_epoch
    from kair_mitigate.shards.looking import SHARDS, dataset_of, looked_at

    if not (folder / SHARDS).exists():
        return None
    with looked_at(folder / SHARDS) as database:
        epoch, epochs = newest_epoch(database), dataset_of(database).epochs
        states = "SELECT state, COUNT(*) FROM shard WHERE epoch = ? GROUP BY state"
        of = dict(database.execute(states, (epoch,)).fetchall())
    todo, doing, done, quarantined = (of.get(state, 0) for state in ("TODO", "DOING", "DONE", "QUARANTINED"))
    return MitigationShards(epoch, todo, doing, done, quarantined, epochs)
