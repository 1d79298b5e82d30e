"""Keeps the state of every shard in SQLite: TODO, DOING (held by a worker), DONE, or QUARANTINED.

A worker that finishes one shard claims the next, so a slow one simply takes fewer. Each sample of each epoch counts
exactly once in the model, in one of two ways, chosen when the store is made:

`checkpoint`: the only commit point is the model's checkpoint. What a worker has done since the last one is only in that
worker's state, or is lost with the whole job: local SGD between two averagings, batch inference whose output becomes
valid with the checkpoint, streams read by ranks in step. `commit` takes each worker's position at the checkpoint. A
worker that dies returns all that it did since, DONE shards included, at their committed cursors; `restore` returns what
all did since. Commit *before* the model's checkpoint gets its final name, and restore the one that the model was loaded
from: after a kill in between, the store merely has one checkpoint more than there are files.

`push`: for parameter servers, whose state is the model. A gradient comes with (worker, generation, shard, cursor
range), and the server applies it with `push`, in its own process: gradient and cursor change together or not at all,
and a push of a worker that was given up, or a repeated one, changes nothing. If a worker dies, its shard returns at the
server's cursor. The server's own checkpoint takes the cursors as they are (`commit_all`, with no push in between), and
after the server's end `restore` returns model and cursors together.

A store that writes the rows that count (`rows`) does not grow with epochs and checkpoints: the last ten checkpoints
(`KEPT_CHECKPOINTS`) and the beginning can be restored; epochs that are DONE in all of these are deleted (`pruning`). A
store without rows keeps everything, because rows that workers write themselves count by the names of checkpoints.

Workers have generations: one that was given up, was replaced, or is from before a restore is refused.

A million shards, on a busy host of two cores: created in 18 s and 82 MB, the next epoch in 15 s, a restore of all 20 s;
a claim takes 0.1 ms, a commit of 2,048 positions 0.35 s. All workers wait meanwhile: ten thousand shards are plenty.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kair_mitigate.restarts import own
from kair_mitigate.shards import checkpoints, claims
from kair_mitigate.shards.epochs import begin_epochs_due, has_doing, has_todo, insert_files, insert_ranges, newest_epoch
from kair_mitigate.shards.pruning import prune
from kair_mitigate.shards.rows import CountedRows, Row, row_of
from kair_mitigate.shards.schema import SCHEMA
from kair_mitigate.shards.shard import CommitPoint, Nothing, NotOwnerError, OutOfPlaceError, Position, Shard, ShardError

MOST_TRIES: Final = 3
"""A shard whose workers died this many times in a row without progress counts as poison."""

KEPT_CHECKPOINTS: Final = 10
"""Checkpoints that can be restored. With 2,048 workers each takes 0.1 MB; trainers keep fewer files than that."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Samples that an epoch leaves out: a shard from its cursor on."""

    epoch: int
    number: int
    cursor: int
    end: int | None
    file: str | None
    tries: int
    worker: str
    """The worker that tried last."""
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of the newest epoch."""

    epoch: int
    epochs: int
    shards: dict[str, int]
    """Number of shards of the epoch by state."""
    doing: dict[str, tuple[int, int]]
    """Worker → (number of its shard, cursor in it)."""
    quarantined: tuple[Quarantined, ...]
    """Of all epochs."""


class ShardStore:
    """The shards of one job. All threads may call it; one process has the store open at a time.

    Each method raises ShardError if it refuses, and sqlite3.Error or OSError if a file cannot be written; in both cases
    nothing changes.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_tries: int = MOST_TRIES,
        kept_checkpoints: int = KEPT_CHECKPOINTS,
        rows: Path | None = None,
    ) -> None:
        """Open or create the file; the rows that count are written into the file `rows`, for the audit.

        Raises sqlite3.Error, OSError.
        """
        self._lock = threading.RLock()
        self._most_tries, self._kept = most_tries, kept_checkpoints
        os.close(own(str(path), os.O_RDWR | os.O_CREAT))  # SQLite's companion files get its mode
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(SCHEMA)
        self._rows = None if rows is None else CountedRows(rows)
        self._cut_rows()
        (self._claims,) = self._connection.execute("SELECT COALESCE(MAX(claimed), 0) FROM shard").fetchone()

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._connection.close()
            if self._rows is not None:
                self._rows.close()

    def check_file(self) -> None:
        """Read the whole file. Raises sqlite3.DatabaseError if it is damaged."""
        with self._lock:
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(str(found))

    @property
    def is_made(self) -> bool:
        """Return whether there is a dataset."""
        with self._lock:
            return self._connection.execute("SELECT 1 FROM setting LIMIT 1").fetchone() is not None

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to do, and nothing can return except by a restore."""
        with self._lock:
            return self.is_made and self._is_over() and not self.owners()

    def make(
        self, size: int, shard_size: int, *, seed: int, epochs: int = 1, commit: CommitPoint = "checkpoint"
    ) -> None:
        """Create the shards of a dataset of `size` samples; repeating it, as when a job continues, changes nothing."""
        if size < 1 or shard_size < 1 or epochs < 1:
            raise ShardError(f"{epochs} epochs of {size} samples in shards of {shard_size} are no dataset")
        with self._transaction() as connection:
            if self._is_new(seed=seed, epochs=epochs, commit=commit, growing=0, made=f"{size} samples, {shard_size}"):
                insert_ranges(connection, size, shard_size, seed)

    def make_files(
        self,
        files: Sequence[str],
        *,
        seed: int,
        epochs: int = 1,
        commit: CommitPoint = "checkpoint",
        growing: bool = False,
    ) -> None:
        """Create a shard of each file; a growing stream accepts files until `end_stream`. Repeating it is harmless."""
        if len(set(files)) != len(files) or not (files or growing) or epochs < 1:
            raise ShardError("a dataset of files needs at least one, and none twice")
        made = f"stream of {len(files)} files at first" if growing else f"{len(files)} files"
        with self._transaction() as connection:
            if self._is_new(seed=seed, epochs=epochs, commit=commit, growing=int(growing), made=made):
                insert_files(connection, files, seed)

    def add(self, files: Sequence[str]) -> int:
        """Add files to a growing stream, and return how many were new."""
        with self._transaction() as connection:
            if not self._number("growing"):
                raise ShardError("the dataset is no stream, or the stream has ended: nothing can be added")
            known = {file for (file,) in connection.execute("SELECT file FROM shard WHERE epoch = 0")}
            new = [file for file in dict.fromkeys(files) if file not in known]
            insert_files(connection, new, self._number("seed"))
            return len(new)

    def end_stream(self) -> None:
        """Declare the stream complete: the epoch ends with its last shard."""
        with self._transaction() as connection:
            connection.execute("UPDATE setting SET value = 0 WHERE name = 'growing'")
            self._begin_epochs()

    def join(self, worker: str) -> int:
        """Return a new generation of a worker; the previous one counts as dead."""
        with self._transaction() as connection:
            generation = (claims.generation_of(connection, worker) or 0) + 1
            self._replace(worker, generation)
            return generation

    def claim(self, worker: str, generation: int) -> Shard | Nothing:
        """Return the next shard in order, or the one that the worker already holds.

        A generation newer than the known one, if numbers come from elsewhere, replaces that.
        """
        with self._transaction() as connection:
            known = claims.generation_of(connection, worker)
            if known is None or generation > known:
                self._replace(worker, generation)
            claims.check_generation(connection, worker, generation)
            self._claims += 1
            shard = claims.take(connection, worker, generation, self._claims, self._number("seed"))
            if shard is None:
                return "finished" if self._is_over() else "wait"
            return shard

    def has_answers(self) -> bool:
        """Return whether a claim would be answered without waiting."""
        with self._lock:
            return has_todo(self._connection) or self._is_over()

    def progress(self, worker: str, generation: int, shard: int, cursor: int) -> None:
        """Note a worker's position, for status and to distinguish poison from bad luck; this commits nothing."""
        with self._transaction() as connection:
            self._require("checkpoint")
            held = claims.held(connection, worker, generation, shard)
            if held.end is not None and cursor > held.end:
                raise OutOfPlaceError(f"shard {shard} ends at {held.end}, and {worker} says {cursor}")
            if cursor > held.cursor:
                claims.advance(connection, held, cursor)

    def push(self, worker: str, generation: int, shard: int, span: tuple[int, int], apply: Callable[[], None]) -> bool:
        """Apply a gradient of the positions of `span`, [begin, end), and move the cursor there: both or neither.

        Return False if it was applied before: a push repeated because the answer was lost. Exceptions of `apply` pass
        through. If the cursor cannot be written after it, sqlite3.Error is raised, and the server has to restore its
        last checkpoint.
        """
        begin, end = span
        with self._transaction() as connection:
            self._require("push")
            held = claims.held(connection, worker, generation, shard)
            if begin < end <= held.cursor:
                return False
            if begin != held.cursor or end <= begin or (held.end is not None and end > held.end):
                raise OutOfPlaceError(f"shard {shard} is at {held.cursor}: [{begin}, {end}) does not follow")
            claims.advance(connection, held, end)
            if self._rows is not None:
                number, epoch, file = connection.execute(
                    "SELECT number, epoch, file FROM shard WHERE id = ?", (shard,)
                ).fetchone()
                self._count([row_of(worker, generation, (number, epoch, file), begin, end)])
            apply()
            return True

    def done(self, worker: str, generation: int, shard: int, cursor: int | None = None) -> None:
        """End a shard; `cursor` is the number of records of a file."""
        with self._transaction() as connection:
            claims.check_generation(connection, worker, generation)
            if claims.has_done(connection, worker, shard):
                return
            held = claims.held(connection, worker, generation, shard)
            claims.end(connection, held, cursor, self.commit_point)
            self._begin_epochs()

    def check(self, worker: str, generation: int) -> None:
        """Raise StaleGenerationError if the worker was given up."""
        with self._lock:
            claims.check_generation(self._connection, worker, generation)

    def fail(self, worker: str, generation: int, shard: int, reason: str) -> None:
        """Return a shard that cannot be trained to the queue; after its last try it is quarantined.

        If only the checkpoint counts, the worker's state may contain a part of the shard that no other worker knows:
        the worker is given up with all it did since the last one, and has to join again from that.
        """
        with self._transaction() as connection:
            claims.held(connection, worker, generation, shard)
            self._give_back(worker, "died", reason)
            if self.commit_point == "checkpoint":
                self._fence(worker)

    def leave(self, worker: str, generation: int) -> None:
        """Let a healthy worker leave: what it has done stays its own until a commit, what it holds is returned.

        Raises NotOwnerError inside a shard that only a checkpoint can split.
        """
        with self._transaction() as connection:
            claims.check_generation(connection, worker, generation)
            if self.commit_point == "checkpoint" and worker in self.holders():
                raise NotOwnerError(f"{worker} is inside a shard: it can only be given up")
            self._give_back(worker, "left", "")

    def release(self, worker: str) -> None:
        """Give up a worker: its lost work returns to the queue, and its generation ends."""
        with self._transaction():
            self._give_back(worker, "died", "the worker died")
            self._fence(worker)

    def holders(self) -> frozenset[str]:
        """Return the workers that hold a shard."""
        with self._lock:
            return frozenset(
                owner for (owner,) in self._connection.execute("SELECT owner FROM shard WHERE state = 'DOING'")
            )

    def owners(self) -> frozenset[str]:
        """Return the workers whose death would return something: holders, and those with uncommitted work."""
        uncommitted = """
            SELECT DISTINCT owner FROM shard WHERE state = 'DONE' AND done_in IS NULL
                AND (SELECT value FROM setting WHERE name = 'commit') IS NOT 'push'
            """
        with self._lock:
            return self.holders() | {owner for (owner,) in self._connection.execute(uncommitted)}

    def commit(self, checkpoint: str, positions: Mapping[str, Position]) -> None:
        """Commit what each listed worker did before its position at a checkpoint; on disk when this returns.

        Work of workers that are not listed stays uncommitted. Repeating a commit changes nothing.
        """
        with self._transaction(durable=True) as connection:
            self._require("checkpoint")
            self._count(checkpoints.commit_positions(connection, checkpoint, positions))
            self._end_commit()

    def commit_all(self, checkpoint: str) -> None:
        """Commit all cursors as they are to a checkpoint; on disk when this returns."""
        with self._transaction(durable=True) as connection:
            self._require("push")
            checkpoints.commit_everything(connection, checkpoint)
            self._end_commit()

    def restore(self, checkpoint: str | None) -> None:
        """Return to one of the last checkpoints, or to the beginning for None; workers from before are then refused."""
        with self._transaction(durable=True) as connection:
            checkpoints.return_to(connection, checkpoint, self._number("seed"))
            self._begin_epochs()
        self._cut_rows()

    def checkpoints(self) -> dict[str, dict[str, int]]:
        """Return the valid checkpoints, oldest first, each with the generations of its workers."""
        with self._lock:
            return checkpoints.generations(self._connection)

    @property
    def commit_point(self) -> CommitPoint:
        """Return what makes a sample count. Raises ShardError if there is no dataset."""
        return "push" if self._setting("commit") == "push" else "checkpoint"

    def status(self) -> Status:
        """Return the progress of the newest epoch, the shards that workers hold, and what was left out."""
        with self._lock:
            epoch = newest_epoch(self._connection)
            states = "SELECT state, COUNT(*) FROM shard WHERE epoch = ? GROUP BY state"
            doing = self._connection.execute("SELECT owner, number, cursor FROM shard WHERE state = 'DOING'")
            quarantined = self._connection.execute(
                """
                SELECT shard.epoch, number, cursor, end, file, quarantine.tries, worker, reason
                FROM shard JOIN quarantine USING (number) WHERE state = 'QUARANTINED' ORDER BY 1, 2
                """
            )
            return Status(
                epoch=epoch,
                epochs=self._number("epochs"),
                shards=dict(self._connection.execute(states, (epoch,)).fetchall()),
                doing={owner: (number, cursor) for owner, number, cursor in doing},
                quarantined=tuple(Quarantined(*row) for row in quarantined),
            )

    def _replace(self, worker: str, generation: int) -> None:
        self._give_back(worker, "died", "the worker died and was started again")
        self._connection.execute("INSERT OR REPLACE INTO worker VALUES (?, ?)", (worker, generation))

    def _fence(self, worker: str) -> None:
        self._connection.execute("UPDATE worker SET generation = generation + 1 WHERE name = ?", (worker,))

    def _give_back(self, worker: str, how: claims.Ending, reason: str) -> None:
        claims.give_back(self._connection, worker, how, reason, commit=self.commit_point, most_tries=self._most_tries)
        self._begin_epochs()

    def _begin_epochs(self) -> None:
        if not self._number("growing") and begin_epochs_due(
            self._connection, self._number("seed"), self._number("epochs")
        ):
            self._prune()

    def _count(self, rows: Sequence[Row]) -> None:
        """Write rows that count once the transaction is committed. Raises OSError."""
        if self._rows is not None and rows:
            length = self._rows.write(self._counted(), rows)
            self._connection.execute("INSERT OR REPLACE INTO counted VALUES (0, ?)", (length,))

    def _end_commit(self) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO counted SELECT MAX(seq), ? FROM checkpoint HAVING MAX(seq) > 0", (self._counted(),)
        )
        self._prune()
        if self._rows is not None:
            self._rows.to_disk()

    def _prune(self) -> None:
        if self._rows is not None:
            prune(self._connection, self._kept, self.commit_point)

    def _counted(self) -> int:
        (length,) = self._connection.execute("SELECT COALESCE(MAX(length), 0) FROM counted WHERE seq = 0").fetchone()
        return int(length)

    def _cut_rows(self) -> None:
        if self._rows is not None:
            self._rows.cut(self._counted())

    def _is_over(self) -> bool:
        """Return whether nothing is left to do or will come: the next epoch begins when the last one ends."""
        return not (self._number("growing") or has_todo(self._connection) or has_doing(self._connection))

    def _require(self, commit: CommitPoint) -> None:
        if self.commit_point != commit:
            raise ShardError(f"in this job a sample counts by its {self.commit_point}, not by a {commit}")

    def _is_new(self, **settings: int | str) -> bool:
        """Return whether the dataset is created now. Raises ShardError if the store has another one."""
        known = dict(self._connection.execute("SELECT name, value FROM setting"))
        if not known:
            self._connection.executemany("INSERT INTO setting VALUES (?, ?)", settings.items())
            return True
        other = [name for name in settings if name != "growing" and known[name] != settings[name]]
        if other:
            differences = "; ".join(f"{name}: {known[name]!r} there, {settings[name]!r} asked for" for name in other)
            raise ShardError(f"the store has another dataset ({differences}): give it a new file")
        return False

    def _setting(self, name: str) -> int | str:
        row = self._connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise ShardError("the store has no dataset yet: make one")
        value: int | str = row[0]
        return value

    def _number(self, name: str) -> int:
        return int(self._setting(name))

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Run one transaction; `durable` puts it on disk with all before it, which only checkpoints need (6 ms)."""
        with self._lock:
            if durable:
                self._connection.execute("PRAGMA synchronous = FULL")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            finally:
                if durable:
                    self._connection.execute("PRAGMA synchronous = NORMAL")
