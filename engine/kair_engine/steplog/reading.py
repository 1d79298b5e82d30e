"""Reads a job's log: the lines of its steps as columns of numbers, in blocks, so that a log of any length fits.

The format is chosen in the first part of the log that has lines of steps; an own `pattern` comes before all formats.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.cancelling import checkpoint
from kair_engine.errors import InputError, UsageError
from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.paths import MAX_RANKS, rank_from_name
from kair_engine.readers.prefixes import Peeled, ProcessRanks, peel, plain
from kair_engine.steplog.formats import FORMATS, OWN, PHASE, PHASE_OF_VERL, StepFormat, Unit
from kair_engine.steplog.lines import Phases, StepLines

BLOCK: Final = 1 << 20
MOST_LINES: Final = 4_000_000
"""Lines of steps that are kept: of a longer log the last ones."""
_BEGIN: Final = 16 * BLOCK
"""Bytes of each file in which the size of the world is looked for."""
_MOST_KEYS: Final = 10_000
_MOST_PHASES: Final = 2_000_000
_LONGEST_LINE: Final = 64 << 10
_ENOUGH: Final = 3
"""Lines of steps by which a format is chosen; with fewer the next block is looked at as well."""
_MOST_HELD: Final = 4 * BLOCK
_BESIDE: Final = 0.1
"""A format is taken before a later one of FORMATS that has up to this many times as many lines."""
_PEELED: Final = 200
"""Lines that are looked at for prefixes."""
_WORLD: Final = re.compile(
    rb"""(?i)\bworld[ _-]?size['"]?\s{0,4}[:=]?\s{0,4}(\d{1,7})\b|\bnranks (\d{1,7})\b|"""
    rb"""\bdevice mesh with \[[^\]\n]{0,200}\], \[(\d{1,7}(?:, \d{1,7}){0,6})\]|\bnum_devices:? (\d{1,7})\b"""
)
_WORLD_SIGNS: Final = (b"orld", b"ORLD", b"nranks", b"device mesh", b"um_devices")
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
_STEPS_OF_K: Final = 1000
_NO_RANK: Final = -1


def pattern_of(text: str) -> StepFormat:
    """Return the format of an own expression with the groups `step`, `time` (seconds) or `ms`, and `rank`.

    It is a Rust expression, as Polars takes them: they take no longer than the text is long. Raises UsageError for
    one that is none, or lacks a group.
    """
    import polars as pl

    hint = r"--log-pattern 'step (?P<step>\d+) took (?P<time>[\d.]+)s'"
    try:
        pl.Series([""]).str.extract_groups(text)
    except pl.exceptions.PolarsError as error:
        why = str(error).strip().splitlines()[-1]
        raise UsageError(f"--log-pattern is no expression of Rust's regex: {why}", hint) from None
    names = set(re.findall(r"\(\?P?<(\w+)>", text))
    if "step" not in names or not names & {"time", "ms"}:
        raise UsageError("--log-pattern needs the named groups step, and time (seconds) or ms", hint)
    unit: Unit = "ms" if "ms" in names else "s"
    never = re.compile(rb"(?!)")
    return StepFormat(OWN, (text.encode(),), never, unit=unit, each_rank="rank" in names)


def sniff(block: bytes) -> tuple[StepFormat | None, int]:
    """Return the format of most lines of steps in a block that is `plain`, and how many there are."""
    counted = []
    for form in FORMATS:
        if all(any(one in block for one in sign.split(b"|")) for sign in form.literals):
            count = sum(1 for _ in form.expression.finditer(block))
            if count:
                counted.append((form, count))
    if not counted:
        return None, 0
    most = max(count for _, count in counted)
    return next((form, count) for form, count in counted if count >= _BESIDE * most)


def whole_lines(source: Path) -> Iterator[bytes]:
    """Yield the file in blocks that end where a line does, as the job printed them; a line that is too long is cut."""
    rest = b""
    with closing(iter(BlockReader(source, block_size=BLOCK))) as blocks:
        for block in blocks:
            checkpoint()
            end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
            if not end and len(rest) < _LONGEST_LINE:
                rest += block
                continue
            yield plain(rest + block[:end])
            rest = block[end:]
    yield plain(rest)


def read_steps(sources: Sequence[Path], form: StepFormat | None = None) -> StepLines | None:
    """Read the lines of steps of one job's log files; None where none has any.

    Raises InputError where a file cannot be read.
    """
    from kair_engine.steplog.exports import read_export

    if form is None and (exported := read_export(sources)) is not None:
        return exported
    columns = _Columns()
    for number, source in enumerate(sources):
        of_file = rank_from_name(source) if len(sources) > 1 else None
        form = _read_file(source, form, columns, number, of_file)
    return None if form is None or not columns.lines else columns.taken(form, tuple(sources))


def _read_file(
    source: Path, form: StepFormat | None, columns: "_Columns", number: int, of_file: int | None
) -> StepFormat | None:
    held = tail = b""
    columns.begin_file(number, of_file)
    for block in whole_lines(source):
        columns.learn(block)
        text = tail + block
        if form is None:
            held += block
            form, count = sniff(held)
            if form is None:
                held = b""
                continue
            if count < _ENOUGH and len(held) < _MOST_HELD:
                form = None
                continue
            text = held
        end = columns.take(form, text)
        tail = text[end:][-_LONGEST_LINE:] if form.spans_lines else b""
    if form is None and held:
        form, _ = sniff(held)
        if form is not None:
            columns.take(form, held)
    return form


class _Columns:
    """What was read so far, block by block."""

    def __init__(self) -> None:
        self.lines = 0
        self.dropped = 0
        self._parts: list[dict[str, Any]] = []
        self._phases: list[tuple[Ints, list[str], Ints, Floats]] = []
        self._phase_rows = 0
        self._world = 0
        self._of_file: int | None = None
        self._file = 0
        self._processes = ProcessRanks()
        self._has_prefixes: bool | None = None
        self._looked_at = 0
        self._keys: dict[bytes, int] = {}

    def begin_file(self, number: int, of_file: int | None) -> None:
        self._file, self._of_file, self._has_prefixes, self._looked_at = number, of_file, None, 0

    def learn(self, block: bytes) -> None:
        """Look for the size of the world, and Ray's list of ranks: both stand near the begin of a log."""
        self._looked_at += len(block)
        if self._looked_at > _BEGIN:
            return
        if any(sign in block for sign in _WORLD_SIGNS):
            for one in _WORLD.finditer(block):
                sizes = [int(size) for size in (one[1] or one[2] or one[3] or one[4]).split(b", ")]
                size = int(np.prod(sizes, dtype=float))
                self._world = max(self._world, size if size <= MAX_RANKS else 0)
        self._processes.learn(block)

    def take(self, form: StepFormat, text: bytes) -> int:
        """Take the lines of steps of a block, and return where the last of them ends."""
        if form.is_own:
            self._take_own(form, text)
            return len(text)
        found = list(form.expression.finditer(text))
        if found:
            self._take_matches(form, text, found)
        if form.side is not None:
            self._take_side(form.side, text, [one.start() for one in found])
        return found[-1].end() if found else 0

    def _take_matches(self, form: StepFormat, text: bytes, found: "list[re.Match[bytes]]") -> None:
        names = form.expression.groupindex
        columns = dict(zip(names, zip(*[one.groups() for one in found], strict=True), strict=True))
        part: dict[str, Any] = {
            "step": _whole(columns["step"]),
            "rank": self._ranks(text, found, columns),
            "value": self._values(columns),
        }
        for name in ("work", "total", "skipped"):
            if name in columns:
                part[name] = _numbers(columns[name])
        if "elapsed" in columns:
            part["elapsed_s"] = np.array([_seconds(one) for one in columns["elapsed"]])
        if not form.is_absolute:
            part["stamp_s"] = _stamps(text, found)
        self._add(part, len(found))
        if "phases" in columns or "data" in columns:
            self._take_phases(form, columns, part["rank"])

    def _values(self, columns: dict[str, Any]) -> Floats:
        if "time" not in columns:  # the phases are the whole step
            return np.array([sum(_number(ms) for _, ms in PHASE.findall(one)) for one in columns["phases"]])
        values = _numbers(columns["time"])
        if "unit" in columns:
            by_unit = {b"it/s": -1.0, b"s/it": 1.0, b"us": 1e-6, b"ms": 1e-3, b"s": 1.0, b"K": 1e3, b"": 1.0}
            factor = np.array([by_unit[one] for one in columns["unit"]])
            safe = np.where(values > 0, values, np.nan)
            return np.where(factor < 0, 1 / safe, values * np.abs(factor))
        return values

    def _ranks(self, text: bytes, found: "list[re.Match[bytes]]", columns: dict[str, Any]) -> Ints:
        if "rank" in columns and columns["rank"][0] is not None:
            return _whole(columns["rank"])
        if self._of_file is not None:
            return np.full(len(found), self._of_file, np.int64)
        if self._has_prefixes is None:
            self._has_prefixes = any(
                self._processes.key(_peeled(text, one.start())) != _NO_RANK for one in found[:_PEELED]
            )
        if not self._has_prefixes:
            return np.full(len(found), _NO_RANK, np.int64)
        return np.array([self._key(text, one.start()) for one in found], np.int64)

    def _key(self, text: bytes, at: int) -> int:
        """Return the number of the process that printed a line; its prefixes end with the last sign that one can end
        with.
        """
        begin = text.rfind(b"\n", 0, at) + 1
        end = max(text.rfind(b"]:", begin, at), text.rfind(b") ", begin, at))
        end = end + 2 if end >= 0 else max(text.find(b": ", begin, at), begin - 2) + 2
        head = text[begin:end]
        known = self._keys.get(head)
        if known is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            known = self._keys[head] = self._processes.key(_peeled(text, at))
        return known

    def _take_phases(self, form: StepFormat, columns: dict[str, Any], rank: Ints) -> None:
        first = self.lines - len(rank)
        if "data" in columns:
            self._add_phases(first + np.arange(len(rank)), ["data"] * len(rank), rank, columns["data"], 1.0)
            return
        expression, unit = (PHASE_OF_VERL, 1.0) if form.name == "verl" else (PHASE, 1e-3)
        for at, text in enumerate(columns["phases"]):
            self._add_found(first + at, int(rank[at]), expression.findall(text), unit)

    def _take_side(self, side: "re.Pattern[bytes]", text: bytes, starts: list[int]) -> None:
        """Phases of lines of their own are of the step whose line came before."""
        sign = b".: (" if "least" in side.groupindex else b"time (ms) | "
        found = list(side.finditer(text)) if sign in text else []
        if not found:
            return
        lines = self.lines - len(starts) + np.searchsorted(starts, [one.start() for one in found]) - 1
        for at, one in zip(np.maximum(lines, 0).tolist(), found, strict=True):
            if "name" in side.groupindex:
                values = [one["least"], one["most"]]
                names = [f"{one['name'].decode()} ({which})" for which in ("least", "most")]
                self._add_phases(at, names, _NO_RANK, values, 1e-3)
            else:
                self._add_found(at, int(one["rank"]), PHASE.findall(one["phases"]), 1e-3)

    def _add_found(self, line: int, rank: int, parts: Sequence[tuple[bytes, bytes]], unit: float) -> None:
        names = [name.decode().strip() for name, _ in parts]
        self._add_phases(line, names, rank, [value for _, value in parts], unit)

    def _add_phases(
        self, line: Ints | int, names: list[str], rank: Ints | int, values: Sequence[bytes], unit: float
    ) -> None:
        if self._phase_rows < _MOST_PHASES:
            lines, ranks = (np.broadcast_to(one, len(names)) for one in (line, rank))
            self._phases.append((lines, names, ranks, _numbers(values) * unit))
            self._phase_rows += len(names)

    def _take_own(self, form: StepFormat, text: bytes) -> None:
        import polars as pl

        lines = pl.Series([line[:_LONGEST_LINE].decode("utf-8", "replace") for line in text.split(b"\n")])
        groups = lines.str.extract_groups(form.literals[0].decode()).struct.unnest()
        time = "ms" if form.unit == "ms" else "time"
        wanted = [pl.col(name).str.replace_all(",", "").cast(pl.Float64, strict=False) for name in ("step", time)]
        read = groups.with_columns(wanted).with_row_index("line").drop_nulls(["step", time])
        if not len(read):
            return
        if form.each_rank:
            rank = read["rank"].cast(pl.Int64, strict=False).fill_null(_NO_RANK).to_numpy()
        else:
            peeled = [peel(lines[at][:400]) for at in read["line"].to_list()]
            known = self._of_file
            rank = np.array([self._processes.key(one) if known is None else known for one in peeled], np.int64)
        part = {"step": read["step"].to_numpy().astype(np.int64), "value": read[time].to_numpy(), "rank": rank}
        self._add(part, len(read))

    def _add(self, part: dict[str, Any], count: int) -> None:
        part["file"] = np.full(count, self._file)
        self._parts.append(part)
        self.lines += count
        while self.lines - self.dropped - len(self._parts[0]["step"]) > MOST_LINES:
            self.dropped += len(self._parts.pop(0)["step"])

    def taken(self, form: StepFormat, source: tuple[Path, ...]) -> StepLines:
        def column(name: str, missing: float) -> Floats:
            return np.concatenate(
                [np.asarray(part.get(name, np.full(len(part["step"]), missing)), float) for part in self._parts]
            )

        ranks = self._ranks_of(column("rank", _NO_RANK).astype(np.int64))
        lines = StepLines(
            form=form,
            source=source,
            file=column("file", 0).astype(np.int64),
            step=column("step", 0).astype(np.int64),
            value=column("value", np.nan),
            rank=ranks,
            skipped=np.nan_to_num(column("skipped", 0)) > 0,
            work=column("work", np.nan),
            total=np.nan_to_num(column("total", -1), nan=-1).astype(np.int64),
            stamp_s=column("stamp_s", np.nan),
            elapsed_s=column("elapsed_s", np.nan),
            phases=self._all_phases(),
            dropped=self.dropped,
            ranks_are_sure=self._processes.is_sure,
        )
        world = max(self._world, int(ranks.max(initial=_NO_RANK)) + 1)
        return replace(lines, world_size=world or None)

    def _all_phases(self) -> Phases:
        if not self._phases:
            return Phases()
        lines, names, ranks, seconds = map(np.concatenate, zip(*self._phases, strict=True))
        known, code = np.unique(names, return_inverse=True)
        of_line = lines - self.dropped
        kept = of_line >= 0
        rank = self._ranks_of(ranks[kept])
        return Phases(tuple(known.tolist()), code.reshape(-1)[kept], of_line[kept], rank, seconds[kept])

    def _ranks_of(self, processes: Ints) -> Ints:
        """Return the rank of each process in the job; -1 for none, and for numbers that no rank has."""
        keys, at = np.unique(processes, return_inverse=True)
        ranks = np.array([self._processes.rank(key) for key in keys.tolist()], np.int64)
        return np.where(ranks > MAX_RANKS, _NO_RANK, ranks)[at.reshape(-1)]


def _numbers(texts: Sequence[bytes | None]) -> Floats:
    """Numbers as they were printed; NaN for none. `1,234` and `1.2k` are read as well."""
    try:
        return np.array(texts, dtype="S").astype(np.float64)
    except (ValueError, TypeError):
        return np.array([_number(one) for one in texts])


def _whole(texts: Sequence[bytes | None]) -> Ints:
    """Whole numbers as they were printed; -1 for none."""
    return np.nan_to_num(_numbers(texts), nan=-1, posinf=-1).astype(np.int64)


def _number(text: bytes | None) -> float:
    if not text:
        return np.nan
    factor = _STEPS_OF_K if text.endswith(b"k") else 1
    try:
        return float(text.rstrip(b"k").replace(b",", b"")) * factor
    except ValueError:
        return np.nan


def _seconds(text: bytes | None) -> float:
    """`1:02:03` in seconds."""
    if not text:
        return np.nan
    total = 0.0
    for part in text.split(b":"):
        if not part.isdigit():
            return np.nan
        total = total * 60 + int(part)
    return total


def _peeled(text: bytes, at: int) -> Peeled:
    begin = text.rfind(b"\n", 0, at) + 1
    return peel(text[begin : min(at, begin + 400)].decode("utf-8", "replace"))


def _stamps(text: bytes, found: "list[re.Match[bytes]]") -> Floats:
    """When the lines were printed, where that stands before the step; seconds of a clock of its own."""
    stamps = []
    for one in found:
        begin = max(text.rfind(b"\n", 0, one.start()) + 1, one.start() - 400)
        stamp = _STAMP.search(text, begin, one.start())
        stamps.append(b"NaT" if stamp is None else stamp[0].replace(b",", b".").replace(b" ", b"T"))
    try:
        times = np.array([one.decode() for one in stamps], "datetime64[ms]")
    except ValueError:
        return np.full(len(found), np.nan)
    return np.where(np.isnat(times), np.nan, times.astype(np.int64) / 1e3)


def require_readable(lines: StepLines) -> None:
    """Raise InputError where all the times of a log are 0, as one fork of Megatron-LM prints them."""
    if not np.any(np.nan_to_num(lines.value) > 0):
        raise InputError(f"every time of a step in {lines.source[0].name} is 0", "kair triage LOG --log-pattern REGEX")
