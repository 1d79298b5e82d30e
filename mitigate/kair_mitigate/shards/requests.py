"""Answers requests to the shard service: a worker's message in, a call of the store, a message out."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final

from kair_mitigate.shards.shard import Position, Shard
from kair_mitigate.shards.store import ShardStore
from kair_mitigate.shards.wire import ConversationError, Message, text_of, whole_of

_MOST_TOLD: Final = 1000
"""Quarantined shards in a reply, which must fit into a frame; the store has all."""


def answer(store: ShardStore, request: Message) -> Message:
    """Execute a request. Raises ConversationError, ShardError, sqlite3.Error; then nothing has changed."""
    handler = _HANDLERS.get(text_of(request, "do"))
    if handler is None:
        raise ConversationError("the request is unknown")
    return handler(store, request)


def _join(store: ShardStore, request: Message) -> Message:
    return {"commit": store.commit_point, "generation": store.join(text_of(request, "worker"))}


def _claim(store: ShardStore, request: Message) -> Message:
    shard = store.claim(*_who(request))
    return {"shard": asdict(shard)} if isinstance(shard, Shard) else {"nothing": shard}


def _beat(store: ShardStore, request: Message) -> Message:
    """Handle a heartbeat; if only the checkpoint counts, it has the worker's cursor in its shard."""
    worker, generation = _who(request)
    if "shard" in request:
        store.progress(worker, generation, whole_of(request, "shard"), whole_of(request, "cursor"))
    else:
        store.check(worker, generation)
    return {}


def _push(store: ShardStore, request: Message) -> Message:
    span = whole_of(request, "begin"), whole_of(request, "end")
    return {"counted": store.push(*_who(request), whole_of(request, "shard"), span, lambda: None)}


def _done(store: ShardStore, request: Message) -> Message:
    store.done(*_who(request), whole_of(request, "shard"), whole_of(request, "cursor") if "cursor" in request else None)
    return {}


def _fail(store: ShardStore, request: Message) -> Message:
    store.fail(*_who(request), whole_of(request, "shard"), text_of(request, "reason"))
    return {}


def _leave(store: ShardStore, request: Message) -> Message:
    store.leave(*_who(request))
    return {}


def _commit(store: ShardStore, request: Message) -> Message:
    positions = request.get("positions")
    if not isinstance(positions, dict):
        raise ConversationError("positions is not an object")
    checkpoint = text_of(request, "checkpoint")
    if store.commit_point == "push" and not positions:
        if [*store.checkpoints()][-1:] != [checkpoint]:  # else a repeated request, whose reply was lost
            store.commit_all(checkpoint)
    else:
        store.commit(checkpoint, {worker: _position(place) for worker, place in positions.items()})
    return {}


def _restore(store: ShardStore, request: Message) -> Message:
    store.restore(text_of(request, "checkpoint") if request.get("checkpoint") is not None else None)
    return {}


def _add(store: ShardStore, request: Message) -> Message:
    files = request.get("files")
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ConversationError("files is not a list of texts")
    return {"added": store.add(files)}


def _end_stream(store: ShardStore, _request: Message) -> Message:
    store.end_stream()
    return {}


def _status(store: ShardStore, _request: Message) -> Message:
    status = store.status()
    return asdict(replace(status, quarantined=status.quarantined[:_MOST_TOLD]))


def _who(request: Message) -> tuple[str, int]:
    return text_of(request, "worker"), whole_of(request, "generation")


def _position(place: object) -> Position:
    if not isinstance(place, list) or len(place) != 3:
        raise ConversationError("a position is not [generation, shard, cursor]")
    fields: Message = dict(zip(("generation", "shard", "cursor"), place, strict=True))
    shard = None if fields["shard"] is None else whole_of(fields, "shard")
    return Position(whole_of(fields, "generation"), shard, whole_of(fields, "cursor"))


_HANDLERS: Final[dict[str, Callable[[ShardStore, Message], Message]]] = {
    "join": _join,
    "claim": _claim,
    "beat": _beat,
    "push": _push,
    "done": _done,
    "fail": _fail,
    "leave": _leave,
    "commit": _commit,
    "restore": _restore,
    "add": _add,
    "end_stream": _end_stream,
    "status": _status,
}
