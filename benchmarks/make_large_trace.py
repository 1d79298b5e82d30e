"""Makes a large Kineto trace from a small one: its step repeated, each time later and with ids of its own.

    python benchmarks/make_large_trace.py SOURCE.json.gz big.json --megabytes 600

Every copy is a step: timestamps, correlation and external ids and the ProfilerStep number are shifted, so that steps
do not overlap and no two launches share an id.
"""

import argparse
import gzip
import re
from collections.abc import Callable
from pathlib import Path

_TIME = re.compile(rb'("ts"\s*:\s*)(-?\d+)')
_ID = re.compile(rb'("(?:correlation|External id)"\s*:\s*|"ph": "[sf]", "id": )(\d+)')
_STEP = re.compile(rb"ProfilerStep#(\d+)")
_METADATA = re.compile(rb'\s*\{\s*"name"\s*:\s*"process_name"')


def make_large_trace(source: Path, out: Path, size: int) -> int:
    """Writes about `size` bytes to `out` and returns how many steps they hold."""
    text = source.read_bytes()
    if text.startswith(b"\x1f\x8b"):
        text = gzip.decompress(text)
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    metadata = _METADATA.search(text, begin)
    end = metadata.start() if metadata else text.rindex(b"]")
    body, tail = text[begin:end].rstrip().rstrip(b","), text[end:]
    times = [int(match.group(2)) for match in _TIME.finditer(body)]
    ids = [int(match.group(2)) for match in _ID.finditer(body)]
    period, id_range = max(times) - min(times) + 1_000_000, max(ids, default=0) + 1
    copies = 0
    with out.open("wb") as file:
        file.write(text[:begin])
        while file.tell() < size:
            if copies:
                file.write(b",")
            file.write(_shifted(body, copies, period, id_range))
            copies += 1
        file.write((b"," if metadata else b"") + tail)
    return copies


def _shifted(body: bytes, copy: int, period: int, id_range: int) -> bytes:
    if not copy:
        return body
    body = _TIME.sub(_adding(copy * period), body)
    body = _ID.sub(_adding(copy * id_range), body)
    return _STEP.sub(lambda match: b"ProfilerStep#%d" % (int(match.group(1)) + copy), body)


def _adding(amount: int) -> "Callable[[re.Match[bytes]], bytes]":
    return lambda match: match.group(1) + b"%d" % (int(match.group(2)) + amount)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=600)
    options = parser.parse_args()
    steps = make_large_trace(options.source, options.out, int(options.megabytes * 1e6))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB, {steps} steps")


if __name__ == "__main__":
    main()
