"""What inputs and questions that are made to be too much take: peak memory, time, and what is said of them.

    python benchmarks/bombs.py --megabytes 1000

Each command runs in a process of its own. Of 1 GB of text none may take more than LIMIT_MB, whatever stands in it.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryFile

from measuring import Row, report, say

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "slow_operator"
LIMIT_MB = 2000
_EVENT = (
    '{{"ph":"X","cat":"{cat}","name":"{name}","pid":1,"tid":{tid},"ts":{ts}.125,"dur":5.5,'
    '"args":{{"External id":{number},"Sequence number":{number},"Fwd thread id":0,"Ev Idx":{number}}}}}'
)
_HEAD = '{"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank":0,"world_size":1},"traceEvents":[\n'
_BATCH = 10_000


def unmarked(size: int) -> Iterator[str]:
    """Operators of which none marks a step, under a few names in no order that repeats."""
    return _events(size, lambda number: f"aten::op{hash((number, 0.5)) % 89}")


def named_apart(size: int) -> Iterator[str]:
    """Operators of which no two have a name in common."""
    return _events(size, lambda number: f"aten::some_operator_of_a_rather_long_name_{number}")


def one_text(size: int) -> Iterator[str]:
    """One operator's name, as long as the file."""
    yield _HEAD + '{"ph":"X","cat":"cpu_op","pid":1,"tid":1,"ts":1,"dur":2,"name":"'
    for _ in range(size // (1 << 20)):
        yield "a" * (1 << 20)
    yield '"}]}'


def brackets(size: int) -> Iterator[str]:
    """Objects in objects that never end."""
    yield _HEAD
    for _ in range(size // (1 << 20)):
        yield "{" * (1 << 20)


def _events(size: int, name) -> Iterator[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    yield _HEAD
    written, number = 0, 0
    while written < size:
        rows = (
            _EVENT.format(cat="cpu_op", name=name(at), tid=1 + at % 2, ts=10 * at, number=at)
            for at in range(number, number + _BATCH)
        )
        text = ",\n".join(rows)
        yield text if number == 0 else ",\n" + text
        written, number = written + len(text), number + _BATCH
    yield "]}"


FILES = {"unmarked": unmarked, "named apart": named_apart, "one text": one_text, "brackets": brackets}
QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("frequency", "--windows", "10000000"),
    ("frequency", "--windows", "1000000", "-o", "json"),
    ("whatif", "--scale", "kind=compute:1e308"),
    ("whatif", "--timeline", "/dev/full"),
)


def measured(name: str, words: Sequence[str], cache: Path) -> Row:
    """One command: what it took, how it ended, and the last that it said."""
    with TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "kair_tui", *words]
        child = Popen(command, stdout=DEVNULL, stderr=errors, env={**os.environ, "KAIR_CACHE": str(cache)})
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = [line for line in errors.read().splitlines() if line.startswith("kair: error")]
    say(f"{name}, {words[0]}: {child.returncode}, {usage.ru_maxrss * 1024 / 1e6:.0f} MB")
    return {
        "what": name,
        "command": words[0],
        "exit": child.returncode,
        "CPU s": usage.ru_utime + usage.ru_stime,
        "peak MB": usage.ru_maxrss * 1024 / 1e6,
        "said": said[-1].removeprefix("kair: error: ")[:90] if said else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="the size of each file")
    parser.add_argument("--files", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--commands", nargs="+", default=["info", "triage"], help="what is asked of each file")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bombs-") as folder:
        cache = Path(folder) / "cache"
        for name in wanted.files:
            path = Path(folder) / "rank0.json"
            with path.open("w") as file:
                file.writelines(FILES[name](wanted.megabytes * 1_000_000))
            rows += [measured(f"{wanted.megabytes} MB, {name}", (one, str(path)), cache) for one in wanted.commands]
            path.unlink()
        rows += [measured(" ".join(rest), (one, str(SAMPLE), *rest), cache) for one, *rest in QUESTIONS]
    report("bombs", rows, as_json=wanted.json)
    return int(any(float(row["peak MB"] or 0) > LIMIT_MB for row in rows))  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
