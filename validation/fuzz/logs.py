"""Hostile logs of jobs: lines of hangs and deaths that are lost, doubled, mixed, wrapped, and full of other numbers."""

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz.damage import TEXTS
from fuzz.formats import mutations
from fuzz.judging import Case
from fuzz.recordings import FORMATS, question
from support.cases import CASES
from support.job_logs import nccl_init
from support.log_kinds import KINDS, NOBODY

_NUMBERS = ("0", "-1", "7", "8", "4294967296", "9" * 30, "1e9", "nan", "", "00000000012")
_RAS = CASES / "hangs" / "ras"


def log(folder: Path, chance: random.Random) -> Case:
    """A log, or several of one job; at times beside an answer of RAS or a sound log."""
    job = folder / "job"
    job.mkdir()
    for number in range(chance.choice((1, 1, 1, 2, 4))):
        lines = _damaged(_lines(chance), chance)
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
        if chance.random() < 0.3:
            (data,) = mutations(data, chance, 1)
        (job / chance.choice((f"job{number}.log", f"rank_{number}.log", f"slurm-{number}.out"))).write_bytes(data)
    if chance.random() < 0.15:
        answers = sorted(path for path in _RAS.rglob("ras.*") if path.is_file())
        source = chance.choice(answers)
        (job / source.name).write_bytes(next(mutations(source.read_bytes(), chance, 1)))
    if chance.random() < 0.1:
        shutil.copytree(CASES / "hangs" / "job_log" / "a_log_of_each_rank" / "job", job / "more")
    form = ("-o", chance.choice(FORMATS))
    words = ("triage", str(job), *form) if chance.random() < 0.7 else question(str(job), chance)
    return Case("log", words)


def _lines(chance: random.Random) -> list[str]:
    names = chance.sample(sorted(KINDS | NOBODY), chance.choice((1, 1, 1, 2, 3)))
    lines = [line for name in names for line in ({**KINDS, **NOBODY}[name])[0]]
    return lines + (nccl_init(range(chance.choice((4, 64))), 64, "COMPLETE") if chance.random() < 0.1 else [])


def _damaged(lines: Sequence[str], chance: random.Random) -> list[str]:
    found = list(lines)
    changes: tuple[Callable[[list[str], random.Random], None], ...] = (
        _drop,
        _double,
        _mix,
        _renumber,
        _cut,
        _wrap,
        _fill,
    )
    for _ in range(chance.choice((0, 1, 2, 3, 6))):
        if found:
            chance.choice(changes)(found, chance)
    return found


def _drop(lines: list[str], chance: random.Random) -> None:
    lines[:] = [line for line in lines if chance.random() < 0.8]


def _double(lines: list[str], chance: random.Random) -> None:
    at = chance.randrange(len(lines))
    lines[at:at] = lines[at : at + chance.choice((1, 5, 50))] * chance.choice((1, 2, 100))


def _mix(lines: list[str], chance: random.Random) -> None:
    chance.shuffle(lines)


def _renumber(lines: list[str], chance: random.Random) -> None:
    for at in chance.sample(range(len(lines)), min(len(lines), 3)):
        numbers = list(re.finditer(r"\d+", lines[at]))
        if numbers:
            one = chance.choice(numbers)
            lines[at] = f"{lines[at][: one.start()]}{chance.choice(_NUMBERS)}{lines[at][one.end() :]}"


def _cut(lines: list[str], chance: random.Random) -> None:
    at = chance.randrange(len(lines))
    lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]


def _wrap(lines: list[str], chance: random.Random) -> None:
    wraps: tuple[Callable[[str], str], ...] = (
        lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"}),
        lambda line: json.dumps({"message": line}),
        lambda line: f"(W pid=71, ip=10.0.0.1) {line}",
        lambda line: f"{line} [repeated {chance.choice(_NUMBERS)}x across cluster]",
        lambda line: f"[pod/job-{chance.randrange(3)}/c] {line}",
        lambda line: f" {chance.choice(_NUMBERS)}: {line}",
        lambda line: f"2026-01-01T00:00:00.123456789Z stderr {chance.choice('FP')} {line}",
        lambda line: f"\x1b[31m{line}\x1b[0m\r",
        lambda line: f"[default{chance.choice(_NUMBERS)}]:{line}",
    )
    wrap, share = chance.choice(wraps), chance.choice((1.0, 0.5))
    lines[:] = [wrap(line) if chance.random() < share else line for line in lines]


def _fill(lines: list[str], chance: random.Random) -> None:
    text = chance.choice(
        (chance.choice(TEXTS), "x" * (1 << chance.choice((8, 15, 20))), "Traceback (most recent call last)")
    )
    lines.insert(chance.randrange(len(lines) + 1), f"{text} {chance.choice(lines)[:300]}")
