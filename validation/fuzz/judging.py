"""Judges one command about a hostile input: what it said and how it ended, run in this process or in its own."""

import io
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from measuring import forget_peak, peak_mb

ENDINGS = frozenset({0, 2, 3, 10})
"""Exit statuses that a hostile input may lead to."""
LONGEST_S = 10.0
LARGEST_MB = 1024.0
_LONGEST_WAIT_S = 240.0
DEFECT = "this is a defect of Kair"
# Line breaks part lines; all else that a terminal obeys, or that turns text around, is none of an answer's.
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NO_NUMBER = re.compile(r"(?<![\w.#-])[-+]?(?:nan|inf)(?![\w.-])", re.IGNORECASE)


@dataclass(frozen=True)
class Said:
    """What a command wrote, its exit status, and what it took."""

    status: int
    out: str
    errors: str
    took_s: float
    peak_mb: float = 0.0


@dataclass(frozen=True)
class Case:
    """A command, and what must be true of its answer beyond what must be of all."""

    kind: str
    words: tuple[str, ...]
    same_as: tuple[str, str] | None = None
    """(stdout, source) that the answer must repeat: the damage is none of its concern."""
    may_give_up: bool = False
    """Whether status 1 is an answer: a runbook's `fail`."""


def ask(words: Sequence[str]) -> Said:
    """Runs a command in this process; its peak is what the process took more at most than when the command began.

    What it took is processor time: on a busy machine the clock on the wall tells of others.
    """
    from kair_tui.cli.main import main

    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", of, newline="") for of in ("strict", "backslashreplace"))
    forget_peak()
    held, began = peak_mb(), time.process_time()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            status = main(list(words))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    took, peak = time.process_time() - began, peak_mb() - held
    return Said(status, _written(out), _written(errors), took, peak)


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def ask_command(words: Sequence[str], environment: Mapping[str, str]) -> Said:
    """Runs `kair` as a shell would."""
    began = _time_of_children()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kair_tui", *words],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LONGEST_WAIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Said(0, "", "it did not end", _LONGEST_WAIT_S)
    out, errors = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    return Said(done.returncode, out, errors, _time_of_children() - began)


def _time_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def faults(case: Case, said: Said) -> Iterator[str]:
    """What is wrong with an answer; nothing of most."""
    gave_up = case.may_give_up and said.status == 1 and DEFECT not in said.errors
    if said.status not in ENDINGS and not gave_up:
        yield f"exit status {said.status}: {_last(said.errors)}"
    if "Traceback" in said.errors or "Traceback" in said.out:
        yield f"a traceback: {_last(said.errors)}"
    for name, text in (("stdout", said.out), ("stderr", said.errors)):
        if found := CONTROL.search(text):
            around = text[max(found.start() - 60, 0) : found.end() + 30]
            yield f"a control character in {name}: {around!r}"
    if said.status in (2, 3) and not case.kind.startswith("runbook"):
        lines = [line for line in said.errors.splitlines() if line.startswith("kair: error: ")]
        if len(lines) != 1:
            yield f"{len(lines)} lines of error: {said.errors[-300:]!r}"
    if said.took_s > LONGEST_S:
        yield f"took {said.took_s:.1f} s"
    if said.peak_mb > LARGEST_MB:
        yield f"took {said.peak_mb:.0f} MB"
    yield from _wrong_in_answer(case, said)


def _wrong_in_answer(case: Case, said: Said) -> Iterator[str]:
    if said.status not in (0, 10):
        return
    if case.same_as is not None and said.out != case.same_as[0]:
        yield f"another answer than without the damage: {said.out[:200]!r}"
    form = case.words[case.words.index("-o") + 1] if "-o" in case.words else "table"
    if form in ("json", "node-link"):
        try:
            json.loads(said.out, parse_constant=_refuse)
        except ValueError as error:
            yield f"no JSON: {error}"
    elif form in ("table", "wide", "tree", "csv") and (found := _NO_NUMBER.search(said.out)):
        yield f"no number: {said.out[max(found.start() - 60, 0) : found.end() + 20]!r}"


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _last(text: str) -> str:
    return text.strip()[-500:]
