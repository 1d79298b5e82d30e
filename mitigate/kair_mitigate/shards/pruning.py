"""Deletes what no restore can return to, so that the store stays bounded; runs in its caller's transaction."""

import sqlite3

from kair_mitigate.shards.epochs import newest_epoch
from kair_mitigate.shards.shard import CommitPoint


def prune(connection: sqlite3.Connection, kept: int, commit: CommitPoint) -> None:
    """Delete all checkpoints but the last `kept`, and DONE shards of old epochs that are DONE in the oldest of these.

    The last two epochs always stay: the next one is made from the newest, and a worker may repeat that it is done. So
    do epochs that began since the oldest checkpoint, and all quarantined shards.
    """
    row = connection.execute(
        "SELECT seq FROM checkpoint ORDER BY seq DESC LIMIT 1 OFFSET ?", (max(kept, 1) - 1,)
    ).fetchone()
    if row is not None:
        connection.execute("DELETE FROM checkpoint WHERE seq < ?", row)
        connection.execute("DELETE FROM begun WHERE seq < ?", row)
        connection.execute("DELETE FROM counted WHERE 0 < seq AND seq < ?", row)
    oldest, epoch = connection.execute("SELECT MIN(seq), MIN(epoch) FROM checkpoint").fetchone()
    first = newest_epoch(connection) - 1
    if oldest is not None:
        gone = "DELETE FROM shard WHERE epoch < ? AND state = 'DONE' AND done_in <= ?"
        connection.execute(gone, (min(first, epoch), oldest))
    elif commit == "push":  # without checkpoints to return to, DONE is final
        connection.execute("DELETE FROM shard WHERE epoch < ? AND state = 'DONE'", (first,))
