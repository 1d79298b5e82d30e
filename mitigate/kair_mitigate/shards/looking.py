"""Reads a shard store without blocking its service."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kair_mitigate.audit import Audit, audit, audit_files, read_rows
from kair_mitigate.shards.checkpoints import generations
from kair_mitigate.shards.epochs import newest_epoch

SHARDS: Final = "shards.sqlite"
"""A run's store, in its folder."""
TRAINED: Final = "trained"
"""A run's folder of rows."""
ROWS: Final = f"{TRAINED}/shards.jsonl"
"""The rows that count, written by the store."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """The dataset, as far as it is known."""

    samples: int | None
    """Samples of an epoch; None for files."""
    records: Mapping[str, int]
    """Records of each file that was read to its end."""
    epochs: int
    """Planned number of epochs."""
    whole: int
    """Number of epochs that are over, which only a restore can undo."""


@dataclass(frozen=True, slots=True)
class ShardAudit:
    """Whether each sample counts once."""

    dataset: Dataset
    epochs: int
    """Number of epochs that were checked."""
    of: Mapping[str | None, Audit]
    """Audit per file; a dataset without files has one."""
    workers: Mapping[str, int]
    """Samples per worker over all epochs, largest first."""


@contextmanager
def looked_at(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a store's database read-only. Raises OSError."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            yield database
    except sqlite3.Error as error:
        raise OSError(f"{file}: {error}") from error


def dataset_of(database: sqlite3.Connection) -> Dataset:
    """Return the dataset that a store was created for. Raises sqlite3.Error."""
    settings = dict(database.execute("SELECT name, value FROM setting WHERE name IN ('epochs', 'growing', 'commit')"))
    newest = newest_epoch(database)
    (samples,) = database.execute("SELECT MAX(end) FROM shard WHERE epoch = ? AND file IS NULL", (newest,)).fetchone()
    files = database.execute("SELECT file, MAX(end) FROM shard WHERE file IS NOT NULL AND state = 'DONE' GROUP BY file")
    (open_,) = database.execute(
        """
        SELECT MIN(epoch) FROM shard
        WHERE state IN ('TODO', 'DOING') OR (state = 'DONE' AND done_in IS NULL AND ? IS NOT 'push')
        """,
        (settings.get("commit"),),
    ).fetchone()
    whole = newest + (not settings.get("growing")) if open_ is None else open_
    return Dataset(samples, dict(files.fetchall()), settings.get("epochs", 0), whole)


def audit_of_run(folder: Path, epochs: int | None = None) -> ShardAudit:
    """Audit the rows that the store wrote, or, if it wrote none, the workers'. Raises OSError.

    `epochs` is how many there should be; None for those that are over.
    """
    with looked_at(folder / SHARDS) as database:
        dataset, committed = dataset_of(database), generations(database)
    files = [folder / ROWS] if (folder / ROWS).exists() else sorted((folder / TRAINED).glob("*.jsonl"))
    wanted = dataset.whole if epochs is None else epochs
    of: dict[str | None, Audit] = {}
    if dataset.samples is None:
        of.update(audit_files(files, dataset.records, wanted, committed=committed))
    else:
        of = {None: audit(files, dataset.samples, wanted, committed=committed)}
    workers: Counter[str] = Counter()
    for row in read_rows(files)[0]:
        if row.worker is not None and (row.checkpoint is None or row.checkpoint in committed):
            workers[row.worker] += row.end - row.begin
    return ShardAudit(dataset, wanted, of, dict(workers.most_common()))
