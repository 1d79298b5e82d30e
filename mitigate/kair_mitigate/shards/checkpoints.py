"""Commits work to checkpoints, and returns to them; each function runs in its caller's transaction."""

import json
import sqlite3
from collections.abc import Mapping

from kair_mitigate.shards.epochs import newest_epoch, only_first_epoch
from kair_mitigate.shards.rows import Row, row_of
from kair_mitigate.shards.shard import CheckpointError, NotOwnerError, OutOfPlaceError, Position, StaleGenerationError


def commit_positions(connection: sqlite3.Connection, checkpoint: str, positions: Mapping[str, Position]) -> list[Row]:
    """Commit what each listed worker did before its position, and return these rows; the rest stays uncommitted.

    Repeating a commit changes nothing. Raises CheckpointError, StaleGenerationError, NotOwnerError, OutOfPlaceError.
    """
    text = _text(positions)
    known = connection.execute("SELECT positions FROM checkpoint WHERE name = ?", (checkpoint,)).fetchone()
    if known is not None and known[0] == text:
        return []
    seq = _insert(connection, checkpoint, text)
    rows = [row for worker, place in positions.items() for row in _commit_worker(connection, seq, worker, place)]
    _note_begun(connection, seq)
    return rows


def commit_everything(connection: sqlite3.Connection, checkpoint: str) -> None:
    """Commit all cursors as they are. Raises CheckpointError."""
    seq = _insert(connection, checkpoint, _text({}))
    connection.execute("UPDATE shard SET done_in = ? WHERE state = 'DONE' AND done_in IS NULL", (seq,))
    connection.execute("UPDATE shard SET committed = cursor WHERE done_in IS NULL AND cursor > begin")
    _note_begun(connection, seq)


def return_to(connection: sqlite3.Connection, checkpoint: str | None, seed: int) -> None:
    """Reset all shards to a checkpoint, or to the beginning for None; later checkpoints are forgotten.

    All workers' generations end. Quarantined shards stay so, and a try that the restart ended does not count. Raises
    CheckpointError.
    """
    seq, epoch = _find(connection, checkpoint) if checkpoint is not None else (0, 0)
    if checkpoint is None:
        only_first_epoch(connection, seed)
    connection.execute("DELETE FROM shard WHERE epoch > ?", (epoch,))
    (length,) = connection.execute(
        "SELECT COALESCE(MAX(length), 0) FROM counted WHERE seq = NULLIF(?, 0)", (seq,)
    ).fetchone()
    connection.execute("DELETE FROM counted WHERE seq > ?", (seq,))
    connection.execute("UPDATE counted SET length = ? WHERE seq = 0", (length,))
    connection.execute("DELETE FROM checkpoint WHERE seq > ?", (seq,))
    connection.execute("DELETE FROM begun WHERE seq > ?", (seq,))
    connection.execute(
        """
        UPDATE shard SET
            tries = tries - (state = 'DOING'),
            state = CASE state WHEN 'QUARANTINED' THEN state ELSE 'TODO' END,
            owner = NULL, generation = NULL, done_in = NULL, cursor = begin, committed = begin,
            end = CASE WHEN file IS NULL THEN end END
        WHERE (done_in IS NULL OR done_in > ?) AND (state IN ('DOING', 'DONE') OR cursor > begin)
        """,
        (seq,),
    )
    begun = connection.execute("SELECT cursor, cursor, shard FROM begun WHERE seq = ?", (seq,)).fetchall()
    connection.executemany("UPDATE shard SET cursor = ?, committed = ? WHERE id = ?", begun)
    connection.execute("UPDATE worker SET generation = generation + 1")


def generations(connection: sqlite3.Connection) -> dict[str, dict[str, int]]:
    """Return checkpoint → worker → generation."""
    rows = connection.execute("SELECT name, positions FROM checkpoint ORDER BY seq")
    return {name: {worker: position[0] for worker, position in json.loads(text).items()} for name, text in rows}


def _commit_worker(connection: sqlite3.Connection, seq: int, worker: str, position: Position) -> list[Row]:
    row = connection.execute("SELECT generation FROM worker WHERE name = ?", (worker,)).fetchone()
    if row is None or row[0] != position.generation:
        raise StaleGenerationError(f"{worker} is not of generation {position.generation} any more")
    taken: list[tuple[int, int, int, int, str | None]] = []

    def take(where: str, *values: int | str) -> None:
        done = connection.execute(
            "UPDATE shard SET done_in = ? WHERE state = 'DONE' AND done_in IS NULL AND "
            f"{where} RETURNING number, epoch, committed, end, file",
            (seq, *values),
        )
        taken.extend(done.fetchall())

    if position.shard is None:
        take("owner = ?", worker)
        return _rows(worker, position, taken)
    held = connection.execute(
        """
        SELECT state, committed, end, claimed, number, epoch, file FROM shard
        WHERE id = ? AND owner = ? AND done_in IS NULL
        """,
        (position.shard, worker),
    ).fetchone()
    if held is None:
        raise NotOwnerError(f"shard {position.shard} is not {worker}'s, or an earlier checkpoint has it already")
    state, committed, end, claimed, number, epoch, file = held
    if position.cursor < committed or (end is not None and position.cursor > end):
        raise OutOfPlaceError(f"{worker} cannot be at {position.cursor} of shard {position.shard}")
    take("owner = ? AND claimed < ?", worker, claimed)
    if state == "DONE" and position.cursor == end:
        take("id = ?", position.shard)
    else:
        taken.append((number, epoch, committed, position.cursor, file))
        connection.execute(
            "UPDATE shard SET committed = ?1, cursor = MAX(cursor, ?1) WHERE id = ?2", (position.cursor, position.shard)
        )
    return _rows(worker, position, taken)


def _rows(worker: str, position: Position, taken: list[tuple[int, int, int, int, str | None]]) -> list[Row]:
    return [
        row_of(worker, position.generation, (number, epoch, file), begin, end)
        for number, epoch, begin, end, file in taken
        if begin < end
    ]


def _insert(connection: sqlite3.Connection, checkpoint: str, positions: str) -> int:
    if connection.execute("SELECT 1 FROM checkpoint WHERE name = ?", (checkpoint,)).fetchone():
        raise CheckpointError(f"checkpoint {checkpoint!r} exists: give each its own name, such as its step")
    inserted = connection.execute(
        "INSERT INTO checkpoint (name, epoch, positions) VALUES (?, ?, ?)",
        (checkpoint, newest_epoch(connection), positions),
    )
    return int(inserted.lastrowid or 0)


def _note_begun(connection: sqlite3.Connection, seq: int) -> None:
    connection.execute(
        """
        INSERT INTO begun SELECT ?, id, committed FROM shard
        WHERE done_in IS NULL AND cursor > begin AND committed > begin
        """,
        (seq,),
    )


def _find(connection: sqlite3.Connection, checkpoint: str) -> tuple[int, int]:
    row = connection.execute("SELECT seq, epoch FROM checkpoint WHERE name = ?", (checkpoint,)).fetchone()
    if row is None:
        newest = connection.execute("SELECT name FROM checkpoint ORDER BY seq DESC LIMIT 5").fetchall()
        known = ", ".join(repr(name) for (name,) in newest) or "none"
        raise CheckpointError(f"the shard store has no checkpoint {checkpoint!r}; the newest: {known}")
    return int(row[0]), int(row[1])


def _text(positions: Mapping[str, Position]) -> str:
    return json.dumps(
        {worker: (position.generation, position.shard, position.cursor) for worker, position in positions.items()},
        sort_keys=True,
    )
