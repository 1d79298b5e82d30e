"""Damages logs of steps of every format and reads and judges them: an answer, or one line that says what is wrong.

    python validation/fuzz/step_logs.py --each 40 --seed 1

Each is a log of one trainer with bytes changed, pieces removed, doubled, swapped or repeated, numbers made huge, lines
made long, prefixes nested. It exits with 1 where an answer took more than 10 s of CPU or more than 1 GB, or failed
otherwise, and keeps what it failed on in the folder it names.
"""

import argparse
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "engine"), str(ROOT / "tests"), str(ROOT / "validation" / "fuzz")]

from engine.test_step_log_formats import LINES, TIMES, log_of  # noqa: E402 (the path above leads there)
from formats import mutations  # noqa: E402

from kair_engine.errors import KairError  # noqa: E402
from kair_engine.results.steplog import LogOfSteps  # noqa: E402
from kair_engine.steplog.analysis import judge, steps_of  # noqa: E402
from kair_engine.steplog.reading import read_steps, require_readable  # noqa: E402
from kair_tui.render.steplog import log_in_words, log_lines, log_summary, log_totals  # noqa: E402

_LONGEST_S = 10.0
_MOST_KB = 1_000_000
_PREFIXES = (
    b"[rank3]: ",
    b" 7: ",
    b"(W pid=1, ip=::1) ",
    b"[pod/a/b] ",
    b"\x1b[31m",
    b"2026-01-01T00:00:00.1Z stdout P ",
)
_DOCKER = b'{"log":"%s\\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}\n'


def changed(text: bytes, chance: random.Random) -> bytes:
    """Return a log with one thing done to it that a log can have, or that hurts an expression."""
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: text,
        lambda: b"".join(chance.choice(_PREFIXES) + line for line in lines),
        lambda: b"".join(_DOCKER % line.strip().replace(b'"', b'\\"') for line in lines),
        lambda: text.replace(b"\n", b"\r"),
        lambda: text.replace(b"\n", b""),
        lambda: b"".join(lines[:at] + lines[: chance.randrange(len(lines))] + lines[at:]),
        lambda: b"".join([*lines[:at], lines[at].strip() * 20_000, b"\n", *lines[at:]]),
        lambda: re.sub(rb"\d+", lambda one: one[0] * chance.choice((1, 1, 1, 40)), text),
        lambda: re.sub(
            rb"\d+", lambda one: chance.choice((one[0], one[0], b"0", b"-1", b"nan", b"99999999999999")), text
        ),
        lambda: b"".join(chance.sample(lines, len(lines))),
        lambda: b"".join(line[: chance.randrange(1, len(line) + 1)] for line in lines) * 50,
    )
    return chance.choice(kinds)()


def tried(path: Path, content: bytes) -> str:
    """Return what became of it: `answered`, `refused`, or what went wrong."""
    path.write_bytes(content)
    begun = time.process_time()
    try:
        lines = read_steps([path])
        if lines is None:
            return "refused"
        require_readable(lines)
        found: LogOfSteps = judge(lines)
        said = [
            log_summary(found),
            log_totals(found),
            *log_lines(log_in_words(found)),
            *map(str, steps_of(lines).summary),
        ]
        if wrong := [one for one in said if re.search(r"\b(?:nan|inf)\b", one)]:
            return f"not a number in {wrong[0]}"
    except KairError:
        return "refused"
    except Exception:
        return traceback.format_exc()
    took = time.process_time() - begun
    return "answered" if took <= _LONGEST_S else f"it took {took:.1f} s"


def main() -> int:
    """Try as many of each format as was asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--each", type=int, default=20)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    kept = Path(tempfile.mkdtemp(prefix="step-logs-"))
    counts: dict[str, int] = {}
    wrong = 0
    for name in LINES:
        chance = random.Random(f"{chosen.seed} {name}")
        text = log_of(name, TIMES * 4).encode()
        for number, content in enumerate(mutations(text, chance, chosen.each)):
            damaged = changed(content or b"\n", chance)
            outcome = tried(kept / "log.txt", damaged)
            counts[outcome if len(outcome) < 10 else "failed"] = (
                counts.get(outcome if len(outcome) < 10 else "failed", 0) + 1
            )
            if outcome not in ("answered", "refused"):
                wrong += 1
                (kept / f"{name.replace(' ', '_').replace('.', '_')}-{number}.log").write_bytes(damaged)
                print(f"{name} {number}: {outcome}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{counts}; {peak / 1e3:.0f} MB at most" + (f"; kept in {kept}" if wrong else ""))
    return int(wrong > 0 or peak > _MOST_KB)


if __name__ == "__main__":
    sys.exit(main())
