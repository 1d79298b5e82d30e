"""Shards in the hands of workers: taken, advanced, ended, given back; each step in its caller's transaction."""

import sqlite3
import sys
from dataclasses import dataclass
from typing import Final, Literal

from kair_mitigate.shards.shard import CommitPoint, NotOwnerError, OutOfPlaceError, Shard, StaleGenerationError

Ending = Literal["died", "left"]
"""How a worker came to give back what it has. That one left by itself and well is not held against the shard."""

_SHARD: Final = "id, number, epoch, begin, end, file, cursor"


@dataclass(frozen=True, slots=True)
class Held:
    """A shard in a worker's hands."""

    id: int
    cursor: int
    end: int | None
    reached: int


def generation_of(connection: sqlite3.Connection, worker: str) -> int | None:
    """Return the only generation of a worker that may ask for anything, None where it never did."""
    row = connection.execute("SELECT generation FROM worker WHERE name = ?", (worker,)).fetchone()
    return None if row is None else int(row[0])


def check_generation(connection: sqlite3.Connection, worker: str, generation: int) -> None:
    """Raise StaleGenerationError for a worker that was given up, or is not known."""
    if generation_of(connection, worker) != generation:
        raise StaleGenerationError(f"generation {generation} of {worker} was given up, or never joined")


def take(connection: sqlite3.Connection, worker: str, generation: int, claim: int, seed: int) -> Shard | None:
    """Return the shard that the worker has already, or else the next in order, None where there is none."""
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
    """Return what a worker says that it has. Raises StaleGenerationError, NotOwnerError."""
    check_generation(connection, worker, generation)
    row = connection.execute(
        "SELECT id, cursor, end, reached FROM shard WHERE id = ? AND owner = ? AND state = 'DOING'", (shard, worker)
    ).fetchone()
    if row is None:
        raise NotOwnerError(f"shard {shard} is not in the hands of {worker}")
    return Held(*row)


def has_done(connection: sqlite3.Connection, worker: str, shard: int) -> bool:
    """Whether the shard was ended by this worker."""
    row = connection.execute("SELECT owner FROM shard WHERE id = ? AND state = 'DONE'", (shard,)).fetchone()
    return row is not None and row[0] == worker


def advance(connection: sqlite3.Connection, shard: Held, cursor: int) -> None:
    """Move a cursor forwards. Who gets further than all before does not hold poison: its try is the first again."""
    connection.execute(
        """
        UPDATE shard SET cursor = ?1, tries = CASE WHEN ?1 > reached THEN 1 ELSE tries END, reached = MAX(reached, ?1)
        WHERE id = ?2
        """,
        (cursor, shard.id),
    )


def end(connection: sqlite3.Connection, shard: Held, cursor: int | None, commit: CommitPoint) -> None:
    """End a shard, which for a file says how long that is. Raises OutOfPlaceError where samples are left."""
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
    """Put back what a worker has in hand and, where it died with it, what it did since the last checkpoint.

    A shard that was tried `most_tries` times without getting further goes to quarantine instead.
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
