"""How fast a log of steps is read, and with how much memory.

`python benchmarks/log_speed.py [--gigabytes 2]` writes a log of Megatron-LM's lines, and one in which one line in ten
is of a step, reads both, and prints megabytes per second of CPU and the most memory. The files are removed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from measuring import Row, peak_mb, report

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "engine")]

from kair_engine.steplog.reading import read_steps  # noqa: E402 (the path above leads there)

LINE = (
    " [2026-01-01 00:00:00.000000] iteration {:8d}/  500000 | consumed samples: {:12d} | elapsed time per iteration "
    "(ms): {:.1f} | throughput per GPU (TFLOP/s/GPU): 300.0 | learning rate: 1.0E-04 | global batch size:   256 | "
    "lm loss: 2.0E+00 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 | number of nan "
    "iterations:   0 |\n"
)
OTHER = "node-7:4711:4711 [3] NCCL INFO Channel 05/0 : 3[3] -> 4[4] [send] via NET/IB/0/GDRDMA/Shared and more text\n"
CHUNK = 5000
"""Lines that are written at once."""


def write(path: Path, size: int, others: int) -> None:
    """Write a log of `size` bytes, with `others` lines between two of steps."""
    number = 0
    with path.open("w", encoding="ascii") as file:
        while file.tell() < size:
            lines = []
            for _ in range(CHUNK):
                number += 1
                lines.append(LINE.format(number, 256 * number, 1000 + number % 17))
                lines += [OTHER] * others
            file.write("".join(lines))


def main() -> int:
    """Write, read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    size, rows = int(options.gigabytes * 1e9), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        for what, others in (("every line is of a step", 0), ("one line in ten", 9)):
            write(path, size, others)
            began = time.process_time()
            lines = read_steps([path])
            took = time.process_time() - began
            assert lines is not None
            speed = path.stat().st_size / 1e6 / took
            written = {"log": what, "GB": path.stat().st_size / 1e9, "MB/s": speed}
            rows.append({**written, "steps": len(lines.step), "peak MB": peak_mb()})
    report("logs of steps", rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
