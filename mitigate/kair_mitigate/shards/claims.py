"""Tracks shards held by workers: taken, advanced, ended, returned; each function runs in its caller's transaction."""

import sqlite3
import sys
from dataclasses import dataclass
from typing import Final, Literal

from kair_mitigate.shards.shard import CommitPoint, NotOwnerError, OutOfPlaceError, Shard, StaleGenerationError

Ending = Literal["died", "left"]
"""How a worker came to return its shard; leaving voluntarily does not count as a failed try."""

_SHARD: Final = "id, number, epoch, begin, end, file, cursor"


@dataclass(frozen=True, slots=True)
class Held:
    """A shard held by a worker."""

    id: int
    cursor: int
    end: int | None
    reached: int


def generation_of(connection: sqlite3.Connection, worker: str) -> int | None:
    """Return a worker's current generation, the only one that may make requests; None for an unknown worker."""
    row = connection.execute("SELECT generation FROM worker WHERE name = ?", (worker,)).fetchone()
    return None if row is None else int(row[0])


def check_generation(connection: sqlite3.Connection, worker: str, generation: int) -> None:
    """Raise StaleGenerationError if the worker was given up or is unknown."""
    if generation_of(connection, worker) != generation:
        raise StaleGenerationError(f"generation {generation} of {worker} was given up, or never joined")


def take(connection: sqlite3.Connection, worker: str, generation: int, claim: int, seed: int) -> Shard | None:
    """Return the shard that the worker holds, else the next in order; None without any."""
    row = connection.execute(f"SELECT {_SHARD} FROM shard WHERE state = 'DOING' AND owner = ?", (worker,)).fetchone()
    if row is None:
        row = connection.execute(
            f"SELECT {_SHARD} FROM shard WHERE state = 'TODO' ORDER BY epoch, place LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        connection.execute(
            """
            UPDATE shard SET state = 'DOING', owner = ?, generation = ?, claimed = ?, tries = tries + 1 WHERE id = ?
            """,
            (worker, generation, claim, row[0]),
        )
    return Shard(*(*row, seed))


def held(connection: sqlite3.Connection, worker: str, generation: int, shard: int) -> Held:
    """Return the shard that a worker claims to hold. Raises StaleGenerationError, NotOwnerError."""
    check_generation(connection, worker, generation)
    row = connection.execute(
        "SELECT id, cursor, end, reached FROM shard WHERE id = ? AND owner = ? AND state = 'DOING'", (shard, worker)
    ).fetchone()
    if row is None:
        raise NotOwnerError(f"shard {shard} is not in the hands of {worker}")
    return Held(*row)


def has_done(connection: sqlite3.Connection, worker: str, shard: int) -> bool:
    """Return whether this worker ended the shard."""
    row = connection.execute("SELECT owner FROM shard WHERE id = ? AND state = 'DONE'", (shard,)).fetchone()
    return row is not None and row[0] == worker


def advance(connection: sqlite3.Connection, shard: Held, cursor: int) -> None:
    """Move a cursor forward. Getting further than all before resets the tries, since the shard is not poison."""
    connection.execute(
        """
        UPDATE shard SET cursor = ?1, tries = CASE WHEN ?1 > reached THEN 1 ELSE tries END, reached = MAX(reached, ?1)
        WHERE id = ?2
        """,
        (cursor, shard.id),
    )


def end(connection: sqlite3.Connection, shard: Held, cursor: int | None, commit: CommitPoint) -> None:
    """End a shard; for a file `cursor` gives its length. Raises OutOfPlaceError if samples are left."""
    last = shard.end
    if last is None:
        last = shard.cursor if cursor is None else cursor
    if cursor not in {None, last} or last < shard.cursor or (commit == "push" and last != shard.cursor):
        raise OutOfPlaceError(f"shard {shard.id} is at {shard.cursor}, and cannot end: {last}, and {cursor} was said")
    connection.execute(
        "UPDATE shard SET state = 'DONE', tries = 0, cursor = ?1, end = ?1, reached = ?1 WHERE id = ?2",
        (last, shard.id),
    )


def give_back(
    connection: sqlite3.Connection, worker: str, how: Ending, reason: str, *, commit: CommitPoint, most_tries: int
) -> None:
    """Return a worker's shard to the queue and, if it died, what it did since the last checkpoint.

    A shard tried `most_tries` times without progress is quarantined instead.
    """
    back_to = "committed" if commit == "checkpoint" else "cursor"
    if how == "died" and commit == "checkpoint":
        connection.execute(
            """
            UPDATE shard SET state = 'TODO', owner = NULL, generation = NULL, cursor = committed,
                end = CASE WHEN file IS NULL THEN end END
            WHERE state = 'DONE' AND done_in IS NULL AND owner = ?
            """,
            (worker,),
        )
    row = connection.execute(
        "SELECT id, number, epoch, tries FROM shard WHERE state = 'DOING' AND owner = ?", (worker,)
    ).fetchone()
    if row is None:
        return
    shard, number, epoch, tries = row
    poison = how != "left" and tries >= most_tries
    connection.execute(
        f"""
        UPDATE shard SET state = ?, owner = NULL, generation = NULL, cursor = {back_to}, tries = tries - ? WHERE id = ?
        """,
        ("QUARANTINED" if poison else "TODO", how == "left", shard),
    )
    if poison:
        connection.execute(
            "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?)", (number, epoch, tries, worker, reason)
        )
        sys.stderr.write(
            f"kair: warning: shard {number} is left out from epoch {epoch} on: tried {tries} times, "
            f"last by {worker}, which got no further: {reason}\n"
        )
