"""Reads tables of steps that dashboards export: TensorBoard's CSV of one scalar, W&B's CSV of a chart."""

import csv
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.errors import InputError
from kair_engine.readers.blocks import open_file
from kair_engine.steplog.formats import StepFormat
from kair_engine.steplog.lines import StepLines

_TENSORBOARD: Final = b"Wall time,Step,Value"
_WANDB: Final = re.compile(
    r'^"?(?:Step|global_step|train/global_step|trainer/global_step)"?,"?[^"]{1,200} - [^"]{1,200}'
)
_TIME: Final = re.compile(r"(?i)(?:time|latency|duration|secs?\b|seconds|\bms\b)")
_RATE: Final = re.compile(r"(?i)(?:per[_ ]s|/s\b|throughput|tps\b|it_s\b)")
_MS: Final = re.compile(r"(?i)(?:\bms\b|_ms\b|\(ms\)|millis)")
_RANK: Final = re.compile(r"(?i)rank[-_ =]?(\d{1,7})\b")
_MOST_ROWS: Final = 2_000_000
_NEVER: Final = re.compile(rb"(?!)")


def read_export(sources: Sequence[Path]) -> StepLines | None:
    """Read one file that a dashboard exported; None where it is none. Raises InputError where no column is a time."""
    if len(sources) != 1:
        return None
    try:
        with open_file(sources[0]) as file:
            head = file.read(4096).removeprefix(b"\xef\xbb\xbf")
    except OSError:
        return None
    first = head.partition(b"\n")[0].decode("utf-8", "replace").strip()
    if head.startswith(_TENSORBOARD):
        return _tensorboard(sources[0])
    return _wandb(sources[0]) if _WANDB.match(first) else None


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        try:
            rows = list(islice(csv.reader(file), _MOST_ROWS))
        except csv.Error as error:
            raise InputError(f"{path.name} is no CSV: {error}") from None
    return rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]


def _tensorboard(path: Path) -> StepLines:
    _, rows = _rows(path)
    wall, step, value = (np.array([_float(row[at]) for row in rows]) for at in (0, 1, 2))
    if _TIME.search(path.stem):
        return _lines(path, "TensorBoard", step, value * (1e-3 if _MS.search(path.stem) else 1.0))
    return _lines(path, "TensorBoard's wall time", step, wall - (wall[0] if len(wall) else 0.0), wall=True)


def _wandb(path: Path) -> StepLines:
    names, rows = _rows(path)
    columns = [at for at, name in enumerate(names) if at and not name.endswith(("__MIN", "__MAX"))]
    fitting = [at for at in columns if _TIME.search(_metric(names[at])) or _RATE.search(_metric(names[at]))]
    if not fitting:
        first = _metric(names[columns[0]]) if columns else "nothing"
        raise InputError(f"{path.name} has no column of step times: {first}", "export the chart of a time per step")
    best = max(fitting, key=lambda at: sum(bool(row[at]) for row in rows))
    metric = _metric(names[best])
    same = [at for at in fitting if _metric(names[at]) == metric]
    ranks = [_RANK.search(names[at].rpartition(" - ")[0]) for at in same]
    each = all(one is not None for one in ranks) and len({one[1] for one in ranks if one}) == len(same) > 1
    chosen = same if each else [best]
    peak = {name: at for at, name in enumerate(names)}
    parts = []
    for at in chosen:
        own = [row for row in rows if row[at]]
        most = peak.get(f"{names[at]}__MAX", at)  # a bucket's mean hides spikes
        rank = _RANK.search(names[at]) if each else None
        parts.append(([_float(r[0]) for r in own], [_float(r[most]) for r in own], int(rank[1]) if rank else -1))
    step = np.array([one for steps, _, _ in parts for one in steps])
    value = np.array([one for _, values, _ in parts for one in values])
    rank_of = np.concatenate([np.full(len(steps), rank) for steps, _, rank in parts]).astype(np.int64)
    is_rate = not _TIME.search(metric) or bool(_RATE.search(metric))
    value = 1 / np.where(value > 0, value, np.nan) if is_rate else value * (1e-3 if _MS.search(metric) else 1.0)
    order = np.argsort(step, kind="stable")
    return _lines(path, f"W&B: {metric}"[:80], step[order], value[order], rank=rank_of[order], is_absolute=not is_rate)


def _metric(name: str) -> str:
    return name.rpartition(" - ")[2]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _lines(
    path: Path,
    name: str,
    step: Floats,
    value: Floats,
    *,
    rank: Ints | None = None,
    wall: bool = False,
    is_absolute: bool = True,
) -> StepLines:
    fit = np.isfinite(step) & np.isfinite(value) & (np.abs(step) < 2**53)
    count = int(fit.sum())
    nan = np.full(count, np.nan)
    form = StepFormat(name, (), _NEVER, unit="wall" if wall else "s", is_absolute=is_absolute)
    return StepLines(
        form=form,
        source=(path,),
        file=np.zeros(count, np.int64),
        step=step[fit].astype(np.int64),
        value=value[fit],
        rank=np.full(count, -1, np.int64) if rank is None else rank[fit],
        skipped=np.zeros(count, bool),
        work=nan,
        total=np.full(count, -1, np.int64),
        stamp_s=nan,
        elapsed_s=nan,
    )
