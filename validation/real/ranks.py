"""The ranks of a take, as processes that the recorder talks with."""

from __future__ import annotations

import json
import os
import selectors
import time
from pathlib import Path
from typing import Any

from drawing import AnyTake
from job import Parent, run_rank
from outside import Outside, end, fork

TIME_LIMIT_S = 120.0


class DroppedError(Exception):
    """A take that cannot be kept, and why."""


class Ranks:
    """The take's ranks, as processes to talk with; none outlives the context."""

    def __init__(self, take: AnyTake, scratch: Path, outside: Outside) -> None:
        self.take, self.scratch, self.outside = take, scratch, outside
        self.inboxes: list[int] = []
        self.outboxes: list[int] = []
        self.unread = [b""] * take.ranks
        self.said: dict[str, dict[int, Any]] = {}
        self.deadline = time.monotonic() + TIME_LIMIT_S

    def __enter__(self) -> Ranks:
        for rank in range(self.take.ranks):
            from_rank, to_parent = os.pipe()
            from_parent, to_rank = os.pipe()
            parent = Parent(from_parent, to_parent)
            arguments = (self.take, rank, self.scratch, self.outside.network, parent)
            self.outside.pids.append(fork(lambda arguments=arguments: run_rank(*arguments), self.error_of(rank)))  # type: ignore[misc]  # a lambda with a default
            os.close(to_parent)
            os.close(from_parent)
            self.inboxes.append(from_rank)
            self.outboxes.append(to_rank)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.outside.pids:
            end(pid)
        for descriptor in (*self.inboxes, *self.outboxes):
            os.close(descriptor)

    def error_of(self, rank: int) -> Path:
        return self.scratch / f"rank{rank}.error"

    def tell_all(self, messages: list[dict[str, Any]]) -> None:
        """Send each rank its message."""
        for outbox, message in zip(self.outboxes, messages, strict=True):
            os.write(outbox, (json.dumps(message) + "\n").encode())

    def hear_all(self, topic: str, on_onset: Any = None) -> list[Any]:  # noqa: ANN401 -- a callback or nothing
        """Wait until every rank has told of `topic`; what they said. Onsets meanwhile are passed on."""
        said = self.said.setdefault(topic, {})
        with selectors.DefaultSelector() as selector:
            for rank, inbox in enumerate(self.inboxes):
                selector.register(inbox, selectors.EVENT_READ, rank)
            while len(said) < self.take.ranks:
                ready = selector.select(max(0.0, self.deadline - time.monotonic()))
                if not ready:
                    raise DroppedError(f"the time limit passed before {topic}")
                for key, _ in ready:
                    self.take_in(key.data, on_onset)
        return [said[rank] for rank in range(self.take.ranks)]

    def take_in(self, rank: int, on_onset: Any) -> None:  # noqa: ANN401 -- as torch calls it
        """Keep what has come from the rank, which may be ahead of what is waited for."""
        for message in self.messages(rank):
            for topic, value in message.items():
                if topic == "onset":
                    on_onset(value)
                else:
                    self.said.setdefault(topic, {})[rank] = value

    def messages(self, rank: int) -> list[dict[str, Any]]:
        """What has come from the rank."""
        came = os.read(self.inboxes[rank], 65536)
        if not came:
            raise DroppedError(self.death_of(rank))
        *lines, self.unread[rank] = (self.unread[rank] + came).split(b"\n")
        return [json.loads(line) for line in lines]

    def death_of(self, rank: int) -> str:
        """Why the rank ended early, as far as it said; another's failure may have been the first."""
        time.sleep(0.5)
        errors = [self.error_of(rank) for rank in range(self.take.ranks)]
        texts = [path.read_text(encoding="utf-8") for path in errors if path.exists()]
        return f"rank {rank} died\n" + "\n".join(texts)

    def wait_for_files(self) -> None:
        """Wait until every rank has written its trace and its measurements, and let them go."""
        self.hear_all("written")
