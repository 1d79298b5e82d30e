"""Damages events of real traces, and scans them with the compiled scan under the compiler's sanitizers.

`python validation/fuzz/scan.py [--each N] [--seed S] [TRACE…]` compiles it once more, starts itself with that, and
exits with 1 where a byte beyond the text or the scan's own memory is touched, a number overflows, or a scan finds
something else than decoding. Needs gcc with its libasan.
"""

import argparse
import gzip
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / room) for room in ("validation", "tests")]

from readers.test_compiled_scan import read  # noqa: E402 (the path above leads there)

from kair_engine.readers.kineto.compiled import build  # noqa: E402
from kair_engine.readers.kineto.compiled.scanner import Scanner  # noqa: E402
from kair_engine.readers.kineto.tables import EventTables  # noqa: E402

SANITIZED = ("-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TRACES = (ROOT / "sample_traces" / "slow_operator", ROOT / "sample_traces" / "healthy")
_SIGNS = b'{}[],:"\\0.-eEu\x00\x1f\x7f\x80\xff\n tn9'
_LONGEST = 40_000


def part_of(text: bytes, chance: random.Random) -> bytes:
    """Some events in a row, of which some bytes are others, are missing or stand twice."""
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    at = chance.randrange(begin, len(text))
    part = bytearray(text[at : at + chance.randrange(1, _LONGEST)])
    part = bytearray(b"[") + part[max(part.find(b"{"), 0) :]
    for _ in range(chance.choice((0, 1, 1, 3, 20))):
        place = chance.randrange(len(part))
        size = chance.choice((0, 1, 1, 2, 9, 300))
        other = bytes(chance.choices(_SIGNS, k=chance.choice((0, 1, 1, 8)))) + bytes(part[place : place + size]) * 2
        part[place : place + size] = chance.choice((b"", other, other[:1], b"9" * chance.randint(1, 40)))
    # As some profilers write: nothing but a bracket stands behind the last number.
    return re.sub(rb"\n *", b"", part) if chance.random() < 0.5 else bytes(part)


def run(traces: list[Path], each: int, seed: int) -> int:
    """Returns how many parts were read otherwise; the sanitizers end the process themselves."""
    found = 0
    for trace in traces:
        chance = random.Random(seed)
        text = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
        for _ in range(each):
            part = part_of(text, chance)
            chunk = chance.choice((200, 5000, 1 << 20))
            if read([part], scanned=True, chunk=chunk)[0] != read([part], scanned=False, chunk=chunk)[0]:
                found += 1
                print(f"{trace.name}: read otherwise: {part[:200]!r}", file=sys.stderr)
            # A reader cuts behind an event: here the text ends anywhere.
            end = chance.randrange(2, len(part) + 2)
            list(Scanner(EventTables()).records(part[:end], 1, len(part[:end])))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*", help="Kineto traces, .json or .json.gz; else two samples")
    parser.add_argument("--each", type=int, default=500, help="parts of each trace")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    traces = options.traces or sorted(path for folder in TRACES for path in folder.glob("*.json.gz"))
    if options.library is not None:
        build.LIBRARY = options.library
        return 1 if run(traces, options.each, options.seed) else 0
    with TemporaryDirectory() as folder:
        library = Path(folder, "libscan.so")
        if failed := build.build(library, flags=SANITIZED):
            parser.error(failed)
        asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        # Each text in memory of its own, whose end is known.
        checks = {"LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
        ran = subprocess.run(
            [sys.executable, *sys.argv, "--library", str(library)], env=os.environ | checks, check=False
        )
        print(f"{options.each * len(traces)} parts of {len(traces)} traces", "failed" if ran.returncode else "passed")
        return min(ran.returncode, 1) if ran.returncode >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
