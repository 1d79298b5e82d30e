"""What a key costs on the timeline of a large step: zoom, pan, cursor and ranks, in a made job of many ranks.

    python benchmarks/timeline_speed.py --ranks 16384 --operations 600

Makes the job with make_big_table.py (or takes the one in --job), loads its step once, and asks for view after view as
the screen does, of 160 x 50 characters: CPU of the engine's answer and of drawing it.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from make_big_table import make_big_table
from measuring import Row, report

ROWS, CELLS = 84, 130
KEYS = 40


def costs(folder: Path) -> list[Row]:
    from kair.app.session import Session
    from kair_engine.views.timeline import View, step_to_show, timeline
    from kair_engine.views.timeline_prepared import prepare
    from kair_tui.render.timeline_drawing import IN_COLOURS, draw_rows

    trace = Session.open(folder).trace
    began = time.process_time()
    step = prepare(trace, step_to_show(trace))
    first = timeline(trace, View(rows=ROWS, windows=CELLS), step)
    rows: list[Row] = [{"what": f"{len(step.ops):,} operations: first view", "CPU ms": _ms(began), "aim": None}]
    ranks, whole = len(step.ops.ranks), first.step_us
    worst = first.around.operation.rank

    def view(**other: object) -> View:
        return View(rank=worst, rows=ROWS, windows=CELLS, **other)  # type: ignore[arg-type]

    def zoom(number: int) -> View:
        length = whole * 0.9 ** (number + 1)
        return view(begin_us=(whole - length) / 2, end_us=(whole + length) / 2)

    def pan(number: int) -> View:
        return view(begin_us=whole * number / KEYS / 2, end_us=whole * (number / KEYS / 2 + 0.4))

    def cursor(number: int) -> View:
        return view(whole=True, cursor=(worst, whole * (number + 0.5) / KEYS))

    def page(number: int) -> View:
        low = number * ranks // KEYS
        return view(whole=True, ranks=(low, min(low + ROWS - 1, ranks - 1)))

    keys: dict[str, Callable[[int], View]] = {"zoom": zoom, "pan": pan, "cursor": cursor, "another page of ranks": page}
    for what, make in keys.items():
        timeline(trace, make(0), step)
        began = time.process_time()
        for number in range(1, KEYS):
            draw_rows(timeline(trace, make(number), step), CELLS, IN_COLOURS, two_a_line=True)
        rows.append({"what": f"{ranks:,} ranks: {what}", "CPU ms": _ms(began) / (KEYS - 1), "aim": "<= 10 ms"})
    return rows


def _ms(began: float) -> float:
    return (time.process_time() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--operations", type=int, default=120, help="per rank")
    parser.add_argument("--job", type=Path, help="a job folder that was made before")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = options.job or Path(folder) / "job"
        if options.job is None:
            shape = {"ranks": options.ranks, "steps": 1, "operations": options.operations}
            make_big_table(job, **shape, slow_rank=3, slowdown=1.1, ranks_per_file=512)
        report("timeline", costs(job), as_json=options.json)


if __name__ == "__main__":
    main()
