"""How many bytes a change of screen sends to the terminal, and how often the screen is painted for it.

    python benchmarks/tui_bytes.py

The program runs in a pseudo-terminal; its bytes are counted from the key until nothing came for a while. Every screen
of the bar is opened from the overview, and `tab` moves the keyboard once through its parts. Each is opened twice: the
first time answers come while it is shown, the second time they are known. The larger job has 256 ranks on 32 hosts.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from measuring import Row, report
from pseudo_terminal import Terminal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "validation" / "accuracy"))

from compute_faults import SlowGpu
from job_folder import write_job_folder
from layouts import JobLayout
from simulator import JobSpec, simulate

SAMPLE: Final = Path(__file__).parents[1] / "sample_traces" / "slow_operator"
RANKS: Final = 256
TERMINAL: Final = {"LANG": "C.UTF-8", "COLORTERM": "truecolor"}
PAINT: Final = b"\x1b[?2026h"
"""What Textual begins each painting with, where the terminal takes it."""
TAKES_IT: Final = "\x1b[?2026;2$y"
SCREENS: Final = {"2": "rank", "3": "blame", "4": "timeline", "5": "whatif", "6": "operators", "7": "collectives"} | {
    "8": "jobs",
    "F": "frequency",
    "Q": "query",
    "P": "windows",
    "D": "matrix",
}
QUIET_S: Final = 0.7
LONGEST_S: Final = 3.0


def screens(
    job: str, size: tuple[int, int], aim: int, environment: dict[str, str], only: Sequence[str] = ()
) -> list[Row]:
    """What each screen costs at a size, the first time and once its answers are known."""
    with Terminal([sys.executable, "-m", "kair_tui", "tui", job], environment, size) as terminal:
        terminal.wait_for("\x1b[?2026$p")
        terminal.press(TAKES_IT)
        terminal.wait_for("findings")
        opened = len(terminal.settle(LONGEST_S)) and len(terminal.written)
        rows: list[Row] = [_row("opening", size, [opened, opened], [terminal.written.count(PAINT)] * 2, None)]
        rows.append(_row("tab", size, *_pressed(terminal, "\t", "\t"), aim))
        for key, name in SCREENS.items():
            if only and name not in only:
                continue
            first = _pressed(terminal, key, "1", LONGEST_S)
            again = _pressed(terminal, key, "1")
            rows.append(_row(name, size, [first[0][0], again[0][0]], [first[1][0], again[1][0]], aim))
            rows.append(_row(f"{name}, back to overview", size, again[0][1:] * 2, again[1][1:] * 2, aim))
    return rows


def _larger_job(folder: Path, environment: dict[str, str]) -> str:
    """Make the job of 256 ranks, whose verdict is stored."""
    (recording,) = simulate([JobSpec(JobLayout("3d", 8, 8, 4, microbatches=8), 4, 0, (SlowGpu(77, 1.3),))])
    write_job_folder(recording, folder / "store" / "job256")
    command = [sys.executable, "-m", "kair_tui", "triage", "job256", "-o", "json"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return "job256"


def _pressed(terminal: Terminal, *keys: str | float) -> tuple[list[int], list[int]]:
    """Bytes and paintings for each key; a number among them is how long the one before it may be quiet."""
    sent, painted = [], []
    quiet_s = next((key for key in keys if isinstance(key, float)), QUIET_S)
    for key in keys:
        if isinstance(key, str):
            terminal.press(key)
            got = terminal.settle(quiet_s)
            sent.append(len(got))
            painted.append(got.count(PAINT))
    return sent, painted


def _row(what: str, size: tuple[int, int], sent: list[int], painted: list[int], aim: int | None) -> Row:
    return {
        "screen": what,
        "at": f"{size[0]}x{size[1]}",
        "bytes": sent[0],
        "paints": painted[0],
        "bytes, known": sent[1],
        "paints, known": painted[1],
        "aim": None if aim is None else f"<= {aim // 1000} kB",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=(), choices=SCREENS.values(), help="these, of the sample alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **TERMINAL, "KAIR_STORE": f"{folder}/store", "XDG_DATA_HOME": folder}
        rows = screens(str(SAMPLE), (80, 24), 10_000, environment, options.only)
        if not options.only:
            rows += screens(_larger_job(Path(folder), environment), (200, 60), 30_000, environment)
    worst = {aim: max((row for row in rows if row["aim"] == aim), key=_bytes) for aim in {row["aim"] for row in rows}}
    notes = [f"most for the aim {aim}: {_bytes(row)} ({row['screen']})" for aim, row in worst.items() if aim]
    report("bytes of a screen", rows, as_json=options.json, notes=notes)


def _bytes(row: Row) -> int:
    return max(int(row[name] or 0) for name in ("bytes", "bytes, known"))


if __name__ == "__main__":
    main()
