"""Samples of which one rank's file was altered, as a tool, a build or a full disk may have done."""

import gzip
import json
import os
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from support.places import SAMPLES

Content = dict[str, Any]
Change = Callable[[Content], None]


def altered(
    folder: Path,
    changes: dict[int, Change],
    *,
    sample: str = "slow_operator",
    kept: float = 1.0,
    ranks: tuple[int, ...] = (0, 1, 2, 3),
) -> Path:
    """The sample with the files of some ranks changed, and (`kept` below 1) cut off after so much of their text.

    In the tests' shared cache a file that is as it was is found again in folders of the same name.
    """
    folder.mkdir(parents=True)
    for rank, (name, text) in sample_files(sample).items():
        if rank not in ranks:
            continue
        if rank in changes:
            content = json.loads(text)
            changes[rank](content)
            changed = json.dumps(content).encode()
            text = changed[: int(kept * len(changed))]  # noqa: PLW2901
        (folder / name).write_bytes(text)
        if rank not in changes:
            os.utime(folder / name, (0, 0))
    return folder


@cache
def sample_files(sample: str) -> dict[int, tuple[str, bytes]]:
    """rank → the name of its file, and the text in it."""
    texts = {path.stem: gzip.decompress(path.read_bytes()) for path in sorted((SAMPLES / sample).glob("*.gz"))}
    return {json.loads(text)["distributedInfo"]["rank"]: (name, text) for name, text in texts.items()}


def nothing(content: Content) -> None:
    """As it was recorded."""


def renamed(content: Content) -> None:
    """Operators as another build calls them."""
    for event in content["traceEvents"]:
        if event.get("cat") == "cpu_op" and not event["name"].startswith(("c10d", "record_param")):
            event["name"] = f"build2::{event['name']}"


def thinned(content: Content) -> None:
    """A tenth of the operations lost."""
    chance = random.Random(0)
    content["traceEvents"] = [
        event
        for event in content["traceEvents"]
        if event.get("ph") != "X" or "ProfilerStep" in event["name"] or chance.random() > 0.1
    ]


def without_a_third(content: Content) -> None:
    """The first third of each step lost."""
    steps = [(event["ts"], event["dur"]) for event in content["traceEvents"] if "ProfilerStep" in event.get("name", "")]
    content["traceEvents"] = [
        event
        for event in content["traceEvents"]
        if event.get("ph") != "X"
        or "ProfilerStep" in event["name"]
        or not any(begin <= event["ts"] < begin + took / 3 for begin, took in steps)
    ]


def searching_less(content: Content) -> None:
    """Two operators of a search that took fewer rounds: 7 % of all operations."""
    rounds = [event for event in content["traceEvents"] if event.get("name") in ("aten::as_strided", "detach")]
    left_out = {id(event) for at, event in enumerate(rounds) if at % 8}
    content["traceEvents"] = [event for event in content["traceEvents"] if id(event) not in left_out]


def unmarked(content: Content) -> None:
    """Without any sign of a step."""
    marks = re.compile(r"ProfilerStep|Optimizer\.|zero_grad|DataLoader")
    content["traceEvents"] = [event for event in content["traceEvents"] if not marks.search(event.get("name", ""))]


def without_step_marks(content: Content) -> None:
    """As recorded without `profiler.step()`."""
    content["traceEvents"] = [event for event in content["traceEvents"] if "ProfilerStep" not in event.get("name", "")]


def counted_from_1000(content: Content) -> None:
    """Steps numbered otherwise."""
    for event in content["traceEvents"]:
        event["name"] = re.sub(
            r"ProfilerStep#(\d+)", lambda match: f"ProfilerStep#{int(match[1]) + 1000}", event.get("name", "")
        )


def on_another_host(content: Content) -> None:
    """Recorded elsewhere, by a clock an hour ahead."""
    content["host_name"] = "node9"
    content["baseTimeNanoseconds"] += 3_600_000_000_000


def undistributed(content: Content) -> None:
    """Without `distributedInfo`."""
    del content["distributedInfo"]


def silent(content: Content) -> None:
    """Without any communication."""
    communication = ("gloo", "c10d", "record_param")
    content["traceEvents"] = [
        event for event in content["traceEvents"] if not event.get("name", "").startswith(communication)
    ]
