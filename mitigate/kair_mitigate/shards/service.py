"""Serves a shard store on a TCP port, and manages the leases of its workers.

It runs in a separate thread, inside a parameter server or alone. A malformed, oversized, forged or replayed request
ends its connection and changes nothing.
"""

import asyncio
import sqlite3
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from secrets import token_bytes
from typing import Final

from kair_mitigate.shards.requests import answer
from kair_mitigate.shards.shard import ShardError
from kair_mitigate.shards.store import ShardStore
from kair_mitigate.shards.wire import (
    CHALLENGE_BYTES,
    GREETING,
    HEAD,
    MOST_BYTES,
    ConversationError,
    Message,
    is_signed,
    sign,
    to_bytes,
    to_message,
    whole_of,
)

LEASE_S: Final = 30.0
"""A worker that is silent for this long loses its shard; workers send three heartbeats in that time."""
MOST_CONNECTIONS: Final = 8192
"""Further connections are closed, so that strangers cannot exhaust memory."""
_STRANGER_S: Final = 10.0
"""A client without a signed request for this long is disconnected."""
_CHECKS_PER_LEASE: Final = 8
_MOST_HELD_S: Final = 1.0
"""A claim waits at most this long for a shard: the worker gets it immediately, and still sends heartbeats."""


class ShardService:
    """Answers the workers of one store until it is stopped."""

    def __init__(
        self,
        store: ShardStore,
        key: bytes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        lease_s: float = LEASE_S,
        on_over: Callable[[], object] = lambda: None,
    ) -> None:
        """`key` is the job's secret, shared with workers; `port` 0 means any free one.

        `on_over` is called, from another thread and possibly repeatedly, when nothing is left to do, nothing can
        return, and no worker remains to be notified.
        """
        self._store, self._key, self._host, self._port, self._lease_s = store, key, host, port, lease_s
        self._heard: dict[str, float] = {}
        self._connections: set[StreamWriter] = set()
        self._started = threading.Event()
        self._failure: OSError | sqlite3.Error | None = None
        self._something = asyncio.Event()
        """Set and replaced when a claim can be answered again."""
        self._end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kair-shards", daemon=True)
        self._on_over = on_over
        self.refused = 0
        """Connections ended because of their content."""

    def start(self) -> tuple[str, int]:
        """Start listening; return the address. Raises OSError, sqlite3.Error."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self._host, self._port

    def stop(self) -> None:
        """End all connections and leases; the store stays open."""
        self._end()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._listen())
        except (OSError, sqlite3.Error) as error:
            self._failure = error
        finally:
            self._started.set()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, self._host, self._port, limit=MOST_BYTES)
        self._port = server.sockets[0].getsockname()[1]
        # After a restart every owner gets a whole lease to report.
        self._heard = dict.fromkeys(self._store.owners(), time.monotonic())
        leases = asyncio.create_task(self._end_leases())
        ended = asyncio.Event()
        self._end = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
        self._started.set()
        self._wake_claims()
        await ended.wait()
        leases.cancel()
        server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(writer)
        try:
            await self._converse(reader, writer)
        except (ConversationError, asyncio.IncompleteReadError) as error:
            self.refused += not (isinstance(error, asyncio.IncompleteReadError) and not error.partial)
        except OSError:  # disconnected, or silent: TimeoutError is an OSError
            pass
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    async def _converse(self, reader: StreamReader, writer: StreamWriter) -> None:
        challenge = token_bytes(CHALLENGE_BYTES)
        writer.write(GREETING + challenge)
        number, patience_s = 0, _STRANGER_S
        while True:
            signature, body = await asyncio.wait_for(_frame(reader), patience_s)
            if not is_signed(signature, self._key, challenge, body):
                raise ConversationError("the signature is not the job's")
            request = to_message(body)
            if whole_of(request, "number") != number:
                raise ConversationError("the request is not the next one")
            number, patience_s = number + 1, max(_STRANGER_S, 4 * self._lease_s)
            reply = to_bytes(await self._answer_in_time(request))
            writer.write(HEAD.pack(len(reply), sign(self._key, signature, reply)) + reply)
            await writer.drain()

    async def _answer_in_time(self, request: Message) -> Message:
        something, reply = self._something, self._answer(request)
        if reply.get("nothing") == "wait":
            with suppress(TimeoutError):
                await asyncio.wait_for(something.wait(), min(_MOST_HELD_S, self._lease_s / _CHECKS_PER_LEASE))
            reply = self._answer(request)
        elif request.get("do") not in ("beat", "claim"):
            self._wake_claims()
        return reply

    def _wake_claims(self) -> None:
        with suppress(ShardError, sqlite3.Error):
            if self._store.has_answers():
                self._something.set()
                self._something = asyncio.Event()
            if not self._heard and self._store.is_over:
                self._on_over()

    def _answer(self, request: Message) -> Message:
        try:
            reply = answer(self._store, request)
        except ShardError as error:
            return {"refused": error.code, "why": str(error)}
        except (ConversationError, UnicodeError) as error:
            return {"refused": ShardError.code, "why": f"the request is malformed: {error}"}
        except (sqlite3.Error, OSError) as error:
            return {"trouble": f"the shard store cannot be written: {error}"}
        worker = request.get("worker")
        if request["do"] == "restore":
            self._heard.clear()
        elif isinstance(worker, str) and request["do"] in {"leave", "fail"}:
            self._heard.pop(worker, None)
        elif isinstance(worker, str) and request["do"] in {"join", "claim", "beat", "done"}:
            self._heard[worker] = time.monotonic()
        return {"lease_s": self._lease_s, **reply}

    async def _end_leases(self) -> None:
        """Give up workers that were silent for a lease, not counting time in which the service could not listen."""
        pause_s = self._lease_s / _CHECKS_PER_LEASE
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause_s)
            late_s = time.monotonic() - before - pause_s
            if late_s > pause_s:
                self._heard = {worker: heard + late_s for worker, heard in self._heard.items()}
            silent = time.monotonic() - self._lease_s
            for worker in [worker for worker, heard in self._heard.items() if heard < silent]:
                with suppress(sqlite3.Error, OSError):  # retried at the next check
                    self._store.release(worker)
                    del self._heard[worker]
                    self._wake_claims()


async def _frame(reader: StreamReader) -> tuple[bytes, bytes]:
    length, signature = HEAD.unpack(await reader.readexactly(HEAD.size))
    if length > MOST_BYTES:
        raise ConversationError(f"a request of {length} bytes is too long")
    return signature, await reader.readexactly(length)
