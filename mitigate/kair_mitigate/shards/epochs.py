"""Creates the shards of a dataset, and their order in each epoch; each function runs in its caller's transaction."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from kair_mitigate.shards.shard import keyed_order

_INSERT: Final = """
INSERT INTO shard (epoch, number, place, begin, end, file, cursor, committed, reached)
VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def insert_ranges(connection: sqlite3.Connection, size: int, shard_size: int, seed: int) -> None:
    """Create the first epoch of a dataset of `size` samples."""
    begins = range(0, size, shard_size)
    places = _places(len(begins), seed, epoch=0)
    connection.executemany(
        _INSERT,
        (
            (number, places[number], begin, min(begin + shard_size, size), None, begin, begin, begin)
            for number, begin in enumerate(begins)
        ),
    )


def insert_files(connection: sqlite3.Connection, files: Sequence[str], seed: int) -> None:
    """Add files to the first epoch, in shuffled order after existing ones."""
    (first,) = connection.execute("SELECT COUNT(*) FROM shard WHERE epoch = 0").fetchone()
    order = keyed_order(len(files), seed, f"files/{first}")
    places = {number: place for place, number in enumerate(order)}
    connection.executemany(
        _INSERT, ((first + at, first + places[at], 0, None, file, 0, 0, 0) for at, file in enumerate(files))
    )


def begin_epochs_due(connection: sqlite3.Connection, seed: int, epochs: int) -> bool:
    """Create the next epoch if the last one is finished; return whether one began.

    Shards quarantined in an earlier epoch stay out of the new one.
    """
    begun = False
    while not (has_todo(connection) or has_doing(connection)):
        epoch = newest_epoch(connection) + 1
        if epoch >= epochs or not _insert_epoch(connection, epoch, seed):
            break
        begun = True
    return begun


def only_first_epoch(connection: sqlite3.Connection, seed: int) -> None:
    """Delete all epochs but the first, which is created again if parts of it are gone."""
    newest = newest_epoch(connection)
    counts = dict(connection.execute("SELECT epoch, COUNT(*) FROM shard WHERE epoch IN (0, ?) GROUP BY 1", (newest,)))
    if counts.get(0) != counts.get(newest):
        connection.execute("DELETE FROM shard WHERE epoch = 0")
        _insert_epoch(connection, 0, seed)
    connection.execute("DELETE FROM shard WHERE epoch > 0")


def has_todo(connection: sqlite3.Connection) -> bool:
    """Return whether a shard waits for a worker."""
    return connection.execute("SELECT 1 FROM shard WHERE state = 'TODO' LIMIT 1").fetchone() is not None


def has_doing(connection: sqlite3.Connection) -> bool:
    """Return whether a worker holds a shard."""
    return connection.execute("SELECT 1 FROM shard WHERE state = 'DOING' LIMIT 1").fetchone() is not None


def newest_epoch(connection: sqlite3.Connection) -> int:
    """Return the newest epoch that has begun, 0 if none has."""
    (epoch,) = connection.execute("SELECT COALESCE(MAX(epoch), 0) FROM shard").fetchone()
    return int(epoch)


def _insert_epoch(connection: sqlite3.Connection, epoch: int, seed: int) -> int:
    """Create an epoch from the newest; return its number of shards, 0 for a stream that ended empty."""
    newest = newest_epoch(connection)
    (shards,) = connection.execute("SELECT COUNT(*) FROM shard WHERE epoch = ?", (newest,)).fetchone()
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS epoch_order (number INTEGER PRIMARY KEY, place INTEGER)")
    connection.execute("DELETE FROM epoch_order")
    connection.executemany("INSERT INTO epoch_order VALUES (?, ?)", enumerate(_places(shards, seed, epoch)))
    connection.execute(
        """
        INSERT INTO shard (epoch, number, place, begin, end, file, state, cursor, committed, reached)
        SELECT ?, number, epoch_order.place, begin, CASE WHEN file IS NULL THEN end END, file,
            CASE WHEN number IN (SELECT number FROM quarantine) THEN 'QUARANTINED' ELSE 'TODO' END, begin, begin, begin
        FROM shard JOIN epoch_order USING (number) WHERE epoch = ?
        """,
        (epoch, newest),
    )
    return int(shards)


def _places(shards: int, seed: int, epoch: int) -> list[int]:
    """Return the position of each shard by its number."""
    places = [0] * shards
    for place, number in enumerate(keyed_order(shards, seed, f"epoch/{epoch}")):
        places[number] = place
    return places
