"""Hostile recordings: Kineto folders of which one rank or all are altered, and what-if files."""

import gzip
import json
import os
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz import damage
from fuzz.judging import Case
from fuzz.seeds import Content, kineto_seeds, whatif_seed

from kair_engine.readers.kineto import reader
from kair_engine.recording.opening import open_trace
from kair_engine.results.sensitivity import InjectedFault

_WRITTEN_S = 1_700_000_000
FORMATS = ("table", "wide", "tree", "json", "ndjson", "csv")
_QUICK = ("triage", "localize", "info", "steps", "blame", "whatif")
_MORE = (
    ("rank", "--rank", "1"),
    ("pinpoint", "--rank", "1"),
    ("frequency",),
    ("timeline",),
    ("info", "--operators"),
    ("blame", "--step", "last"),
    ("localize", "--method", "paper"),
    ("blame", "--method", "paper"),
    ("localize", "--by", "host"),
    ("whatif", "--fix", "rank=0"),
    ("triage", "--fail-on", "straggler,slowdown>1.01"),
    ("triage", "--step", "last"),
    ("whatif", "--scale", "kind=compute:1e308"),
    ("frequency", "--scope", "Optimizer"),
    ("export", "-o", "out.json.gz"),
    ("export", "-o", "out.pftrace"),
    ("export", "-o", "out.csv"),
    ("triage", "--report", "report.html"),
    ("whatif", "--timeline", "ideal.json"),
)
_BOUNDED = ("sensitivity", "--draws", "20", "--fault")
"""It draws recordings by the hundred and puts faults of six kinds into each: a case is of fewer, and of one kind."""
_RARELY = 0.004
_DECODED = 0.5


def question(job: str, chance: random.Random) -> tuple[str, ...]:
    """A command about a job, in some format: the quick ones mostly, and of the slowest one a part."""
    if chance.random() < _RARELY:
        words: tuple[str, ...] = (*_BOUNDED, chance.choice(get_args(InjectedFault)), job)
    elif chance.random() < 0.75:
        words = (chance.choice(_QUICK), job)
    else:
        command, *rest = chance.choice(_MORE)
        words = (command, job, *rest)
    if "-o" in words:
        return words
    return (*words, "-o", chance.choice(FORMATS))


def kineto(folder: Path, chance: random.Random) -> Case:
    """A folder of traces, one or all of them altered: their events, their text, their compression or their names."""
    files = chance.choice(kineto_seeds()).files
    altered = set(files) if chance.random() < 0.1 else {chance.choice(sorted(files))}
    kept = sorted(files)[: chance.choice((1, 2, 2, 4))]
    job = folder / "job"
    job.mkdir()
    if chance.random() < 0.06:
        files = {"merged.json": _merged(files, kept)}
        altered, kept = set(files), list(files)
    for name in sorted({*kept, *altered}):
        if name in altered:
            _write_altered(job, name, files[name], chance)
        else:
            _write_sound(job / name, files[name])
    whole = chance.random() < 0.9
    return Case("kineto", question(str(job if whole else sorted(job.iterdir())[0]), chance))


def _merged(files: Mapping[str, bytes], names: Sequence[str]) -> bytes:
    """Several ranks' recordings in one file, as tools for looking at them write it."""
    whole: Content = {}
    for number, name in enumerate(names):
        content: Content = json.loads(files[name])
        for one in content["traceEvents"]:
            if isinstance(one.get("pid"), int):
                one["pid"] += 100_000 * number
        whole = {**content, **whole, "traceEvents": [*whole.get("traceEvents", ()), *content["traceEvents"]]}
    return json.dumps(whole).encode()


@contextmanager
def scanned_or_decoded(chance: random.Random) -> Iterator[None]:
    """Now and then events are decoded, as where the scan is not compiled."""
    before = reader.scan_of
    if chance.random() < _DECODED:
        reader.scan_of = lambda _: None
    try:
        yield
    finally:
        reader.scan_of = before


def parse_seeds(folder: Path, cache: Path) -> None:
    """Parses all recordings that cases are made of, so that each case parses what it altered alone."""
    for seed in kineto_seeds():
        job = folder / seed.name
        job.mkdir(parents=True)
        for name, text in seed.files.items():
            _write_sound(job / name, text)
        open_trace(job, cache=cache)


def _write_sound(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    # With one time of change it is one file to the cache, wherever it lies.
    os.utime(path, (_WRITTEN_S, _WRITTEN_S))


def _write_altered(job: Path, name: str, text: bytes, chance: random.Random) -> None:
    content = json.loads(text)
    for _ in range(chance.choice((1, 1, 2, 4))):
        chance.choice(_ALTERATIONS)(content, chance)
    changed = json.dumps(content).encode("utf-8", "surrogatepass")
    if chance.random() < 0.3:
        changed = damage.content(changed, chance, chance.choice((1, 2, 5)))
    ending, data = _packed(changed, chance)
    stem = name if chance.random() < 0.9 else _name(chance)
    (job / f"{stem}{ending}").write_bytes(data)


def whatif(folder: Path, chance: random.Random) -> Case:
    """A what-if file with a damaged table, damaged bytes or damaged metadata."""
    source = folder / "trace-X.parquet"
    rows = whatif_seed()
    deed = chance.random()
    if deed < 0.75:
        rows = damage.table(rows, chance, chance.choice((1, 1, 2, 3)))
    pq.write_table(rows, source, compression=chance.choice(("none", "snappy", "zstd")))
    if deed >= 0.65:
        source.write_bytes(damage.content(source.read_bytes(), chance, chance.choice((1, 2, 5))))
    if chance.random() < 0.3:
        sizes = "".join(f"{key}: {damage.value(chance)}\n" for key in ("dp_size", "pp_size", "tp_size", "world_size"))
        (folder / "meta-X.yaml").write_bytes(sizes.encode("utf-8", "replace"))
    return Case("what-if", question(str(source), chance))


def _packed(text: bytes, chance: random.Random) -> tuple[str, bytes]:
    """The ending of the name, and the text plain or compressed, what is compressed perhaps damaged."""
    form = chance.random()
    if form < 0.6:
        return "", text
    if form < 0.9:
        data, ending = gzip.compress(text, 1, mtime=0), ".gz"
    else:
        data, ending = pa.compress(text, "zstd", asbytes=True), ".zst"
    if chance.random() < 0.4:
        data = damage.content(data, chance)
    if ending == ".gz" and chance.random() < 0.1:
        data += zlib.compress(text[:500], wbits=31)
    return ending, data


def _name(chance: random.Random) -> str:
    odd = chance.choice(damage.TEXTS).replace("/", "_").replace("\0", "")[:100].encode("utf-8", "replace").decode()
    return chance.choice((f"{odd}.json", f"rank{chance.choice(damage.NUMBERS)}.json"[:200], f"rank1{odd}.json"))


# What is done to one rank's recording.


def _events(content: Content) -> list[dict[str, object]]:
    events = content.get("traceEvents")
    if not isinstance(events, list):
        return []
    return [one for one in events if isinstance(one, dict)]


def _some(content: Content, chance: random.Random) -> list[dict[str, object]]:
    events = _events(content)
    if chance.random() < 0.4:
        names = sorted({str(one.get("name")) for one in events})
        name = chance.choice(names) if names else ""
        return [one for one in events if str(one.get("name")) == name]
    share = chance.choice((0.005, 0.05, 0.5, 1.0))
    return [one for one in events if chance.random() < share]


def _fields(content: Content, chance: random.Random) -> None:
    field = chance.choice(("ts", "dur", "ph", "name", "cat", "pid", "tid", "args"))
    near, found = chance.random() < 0.5, damage.value(chance)
    for one in _some(content, chance):
        one[field] = damage.near(one.get(field), chance) if near else found


def _arguments(content: Content, chance: random.Random) -> None:
    named = sorted({key for one in _events(content) if isinstance(of := one.get("args"), dict) for key in of})
    if not named:
        return
    key = chance.choice(named)
    for one in _some(content, chance):
        if isinstance(args := one.get("args"), dict):
            args[key] = damage.near(args.get(key), chance) if chance.random() < 0.6 else damage.value(chance)


def _lost(content: Content, chance: random.Random) -> None:
    gone = {id(one) for one in _some(content, chance)}
    if isinstance(events := content.get("traceEvents"), list):
        content["traceEvents"] = [one for one in events if id(one) not in gone]


def _doubled(content: Content, chance: random.Random) -> None:
    if isinstance(events := content.get("traceEvents"), list):
        events += [dict(one) for one in _some(content, chance)]


def _shuffled(content: Content, chance: random.Random) -> None:
    if isinstance(events := content.get("traceEvents"), list):
        chance.shuffle(events)


def _clock(content: Content, chance: random.Random) -> None:
    """Times jump from some moment on, or run at another speed."""
    by, times = chance.choice((1e3, -1e3, 1e6, -1e9, 1e15, 1e17, -1e17)), chance.choice((1, 1, 0, -1, 1e-6, 1e6))
    timed = [one for one in _events(content) if isinstance(one.get("ts"), int | float)]
    from_here = chance.randrange(len(timed) + 1)
    for one in timed[from_here:]:
        one["ts"] = one["ts"] * times + by  # type: ignore[operator]


def _steps(content: Content, chance: random.Random) -> None:
    """Step marks with other numbers, of other lengths, gone, or on other threads."""
    marks = [one for one in _events(content) if str(one.get("name")).startswith("ProfilerStep")]
    deed, number = chance.randrange(5), chance.choice((0, 5, 999_999_999, 1 << 40))
    for at, one in enumerate(marks):
        if deed == 0:
            one["name"] = f"ProfilerStep#{number}"
        elif deed == 1:
            one["name"] = f"ProfilerStep#{number + at}"
        elif deed == 2:
            one["dur"] = chance.choice((0, 1, 1e5, 1e7, 1e15))
        elif deed == 3:
            one["name"] = "no step"
        else:
            one["tid"], one["pid"] = chance.randrange(3), chance.randrange(3)


def _paired(content: Content, chance: random.Random) -> None:
    """Complete events as begins and ends, some of which are lost."""
    if not isinstance(events := content.get("traceEvents"), list):
        return
    for one in _some(content, chance):
        if isinstance(one.get("ts"), int | float) and isinstance(one.get("dur"), int | float):
            if chance.random() < 0.9:
                events.append({**one, "ph": "E", "ts": one["ts"] + one["dur"]})  # type: ignore[operator]
            one["ph"] = "B"


def _head(content: Content, chance: random.Random) -> None:
    head = {key: of for key, of in content.items() if key != "traceEvents"}
    changed = damage.tree(json.loads(json.dumps(head)), chance, chance.choice((1, 3)))
    for key in head:
        del content[key]
    content.update(changed if isinstance(changed, dict) else {"traceName": changed})


def _distributed(content: Content, chance: random.Random) -> None:
    about = content.get("distributedInfo")
    if isinstance(about, dict):
        content["distributedInfo"] = damage.tree(json.loads(json.dumps(about)), chance, chance.choice((1, 2, 5)))


def _anything(content: Content, chance: random.Random) -> None:
    changed = damage.tree(content, chance, chance.choice((1, 5, 50)))
    if changed is not content:
        content.clear()
        content.update(changed if isinstance(changed, dict) else {"traceEvents": changed})


def _deep(content: Content, chance: random.Random) -> None:
    """Arguments nested beyond any need, or a very long text."""
    nested: damage.Tree = {}
    for _ in range(chance.choice((20, 200))):
        nested = {"a": nested} if chance.random() < 0.5 else [nested]
    for one in _some(content, chance)[:3]:
        one["args"] = {"Concrete Inputs": nested, "Input Dims": [[1 << 40] * 8], "Collective name": "x" * 10_000}


_ALTERATIONS: Sequence[Callable[[Content, random.Random], None]] = (
    _fields,
    _fields,
    _arguments,
    _arguments,
    _lost,
    _doubled,
    _shuffled,
    _clock,
    _steps,
    _paired,
    _head,
    _distributed,
    _anything,
    _deep,
)
