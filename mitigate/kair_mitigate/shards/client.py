"""Claims a worker's shards one after another; heartbeats keep them, and they return when the worker is gone.

    with ShardClient(address, key, "worker 3") as client:
        for shard in client.shards():
            for index in shard:
                ...
            client.done()

If samples count by the push, a worker calls `client.push(begin, end)` for each batch before that.

If the service is away, the worker continues with its shard, then waits for the service, with one warning. Standard
library only: this runs in the training process.
"""

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from kair_mitigate.shards.connection import Address, Connection
from kair_mitigate.shards.shard import (
    AllOverError,
    CommitPoint,
    Position,
    Shard,
    ShardError,
    StaleGenerationError,
)
from kair_mitigate.shards.wire import Message, text_of, whole_of

_LEAST_WAIT_S: Final = 0.02
_MOST_WAIT_S: Final = 2.0
"""Seconds between attempts to reach the service."""
_BEATS_PER_LEASE: Final = 3


class ShardClient:
    """One generation of a worker: after StaleGenerationError a worker needs a new client.

    If only the checkpoint counts, the new one begins with the state of the last checkpoint.
    """

    def __init__(self, address: Address, key: bytes, worker: str) -> None:
        self._connection, self._talking = Connection(address, key), threading.Lock()
        self._worker = worker
        self._generation: int | None = None
        self._commit: CommitPoint = "checkpoint"
        self._shard: Shard | None = None
        self._cursor: int | None = None
        self._given_up: ShardError | None = None
        self._warned = False
        self._ended = threading.Event()

    @classmethod
    def found_by(cls, find: Callable[[], tuple[Address, bytes]], worker: str) -> Self:
        """Return a client that calls `find` for address and key before each connection.

        `find` raises OSError if there is no service yet, and AllOverError if there will be none.
        """
        client = cls(("", 0), b"", worker)
        client._connection.find = find
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(well=kind is None)

    @property
    def generation(self) -> int:
        """Return the number of this incarnation of the worker. The first call waits for the service."""
        if self._generation is None:
            reply = self._ask({"do": "join", "worker": self._worker})
            self._generation = whole_of(reply, "generation")
            self._commit = "push" if text_of(reply, "commit") == "push" else "checkpoint"
            lease_s = reply["lease_s"]
            assert isinstance(lease_s, float | int)
            beats = (lease_s / _BEATS_PER_LEASE,)
            threading.Thread(target=self._beat, args=beats, name="kair-shards", daemon=True).start()
        return self._generation

    def shards(self) -> Iterator[Shard]:
        """Yield shards until all epochs are over; end each with `done` or `failed`. Waits while none is free.

        Raises StaleGenerationError if this worker was given up.
        """
        while (reply := self._claim()).get("nothing") != "finished":
            if "shard" not in reply:
                continue  # the service has waited for a shard in vain
            fields = reply["shard"]
            assert isinstance(fields, dict)
            shard = Shard(**fields)
            self._cursor, self._shard = None, shard
            yield shard
            if self._shard is shard:
                raise RuntimeError(f"shard {shard.number} is neither done nor failed: call client.done() behind it")

    def progress(self, cursor: int) -> None:
        """Note that all positions of the shard before `cursor` are trained; sends nothing.

        Before a checkpoint inside a shard it must be exact; positions fetched ahead are not trained.
        """
        self._cursor = cursor

    def position(self) -> Position:
        """Return this worker's position for a checkpoint now. Raises RuntimeError if it is not known."""
        if self._shard is None:
            return Position(self.generation, None)
        if self._cursor is None:
            raise RuntimeError("a checkpoint inside a shard needs the position in it: call client.progress()")
        return Position(self.generation, self._shard.id, self._cursor)

    def push(self, begin: int, end: int) -> None:
        """Report that positions [begin, end) of the current shard are in the result, and count from now on.

        Calls must be in order, and only if samples count by the push. A worker that dies between its work and this call
        repeats that work: to avoid it, let the server that has the model call `ShardStore.push`.
        """
        request = {"shard": self._in_hand().id, "begin": begin, "end": end}
        self._ask({**self._mine("push"), **request})

    def done(self, records: int | None = None) -> None:
        """End the current shard; `records` is the length of a file."""
        ending: Message = {"shard": self._in_hand().id}
        if records is not None:
            ending["cursor"] = records
        self._ask({**self._mine("done"), **ending})
        self._shard = None

    def failed(self, reason: str) -> None:
        """Return the current shard as one that cannot be trained; after some tries it is left out, with a warning.

        If only the checkpoint counts, this worker is given up with it.
        """
        self._ask({**self._mine("fail"), "shard": self._in_hand().id, "reason": reason[:1000] or "unknown"})
        self._shard = None

    def commit(self, checkpoint: str, positions: Mapping[str, Position]) -> None:
        """Commit a checkpoint by the positions of all its workers; call this before it gets its final name.

        If samples count by the push, all pushes are included, and `positions` is empty. Raises ShardError if one of the
        workers was given up meanwhile: the checkpoint must not be used then.
        """
        places = {worker: [place.generation, place.shard, place.cursor] for worker, place in positions.items()}
        self._ask({"do": "commit", "checkpoint": checkpoint, "positions": places})

    def restore(self, checkpoint: str | None) -> None:
        """Reset all shards to a checkpoint, or to the beginning for None; once per restart, before any worker joins."""
        self._ask({"do": "restore", "checkpoint": checkpoint})

    def add(self, files: Sequence[str]) -> None:
        """Add files to a growing stream."""
        self._ask({"do": "add", "files": list(files)})

    def end_stream(self) -> None:
        """Declare the stream complete."""
        self._ask({"do": "end_stream"})

    def close(self, *, well: bool = True) -> None:
        """End the heartbeats. A healthy worker leaves; otherwise its lost work returns after the lease."""
        self._ended.set()
        with self._talking:
            if well and self._generation is not None and self._given_up is None:
                with suppress(OSError, ShardError):  # the lease ends anyway
                    self._connection.ask(self._mine("leave"))
            self._connection.close()

    def _claim(self) -> Message:
        try:
            return self._ask(self._mine("claim"))
        except AllOverError:
            return {"nothing": "finished"}

    def _in_hand(self) -> Shard:
        if self._shard is None:
            raise RuntimeError("there is no shard in hand")
        return self._shard

    def _mine(self, what: str) -> Message:
        return {"do": what, "worker": self._worker, "generation": self.generation}

    def _ask(self, request: Message) -> Message:
        """Send a request, waiting for the service as long as needed. Raises ShardError."""
        wait_s = _LEAST_WAIT_S
        while True:
            if self._given_up is not None:
                raise self._given_up
            try:
                with self._talking:
                    return self._connection.ask(request)
            except OSError as error:
                self._warn(error)
            wait_s = _pause(wait_s)

    def _beat(self, pause_s: float) -> None:
        while not self._ended.wait(pause_s):
            request = self._mine("beat")
            shard, cursor = self._shard, self._cursor
            if self._commit == "checkpoint" and shard is not None and cursor is not None:
                request |= {"shard": shard.id, "cursor": cursor}
            try:
                with self._talking:
                    if not self._ended.is_set():
                        self._connection.ask(request)
            except OSError:
                continue
            except StaleGenerationError as error:
                self._given_up = error
                return
            except ShardError:
                continue  # the shard was ended meanwhile

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            sys.stderr.write(f"kair: warning: {self._worker} waits for the shard service: {error}\n")


def _pause(wait_s: float) -> float:
    """Wait, and return the next wait; random, so that workers do not return simultaneously."""
    time.sleep(wait_s * random.uniform(0.5, 1.0))
    return min(2 * wait_s, _MOST_WAIT_S)
