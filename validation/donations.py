"""Are gifts of `kair donate` judged as the jobs that they are of, and does no string of a job stand in its gift?

    python validation/donations.py PATH...

Below each path every folder of traces, and every what-if table, is donated; the gift is opened and judged as any other
recording. Recordings without operations (dumps of calls, logs) are counted as refused.
"""

import argparse
import gzip
import io
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.errors import KairError, UsageError
from kair_engine.export.donation import donate
from kair_engine.export.donation_names import FRAMEWORK_WORDS, WORD
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.trace.format import KINDS, PHASES, SCHEMA, read_metadata
from kair_engine.trace.model import GIFT, FragmentInfo
from kair_engine.triage.analysis import triage

ALIKE: Final = 1e-6
SHORTEST: Final = 4
LONG: Final = re.compile(r"[a-z]{8,}")
"""A word that does not stand among numbers by chance."""
OF_GIFTS: Final = (
    "gift part null kair kineto whatif nsys said when it was recorded kernel operator scope host lane group name "
    "dimension device model address folder stream thread"
)
"""Words of pseudonyms, of files, and of what stands in the place of messages."""
_PRINTED: Final = re.compile(rb"[ -~]{4,}")
_QUOTED: Final = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
TEXTS: Final = ("lane", "name", "group", "inputs")


@dataclass(frozen=True)
class Checked:
    """A job and its gift."""

    differences: tuple[str, ...]
    survivors: frozenset[str]
    """Words of the job that stand in the gift, of no framework and not Kair's own."""
    compared: int
    """Words of the job that were looked for."""


def main() -> int:
    """Check all jobs below the paths, print each that fails, and the sums; 1 where any fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    sums, words = Counter[str](), 0
    for source in dict.fromkeys(job for path in parser.parse_args().paths for job in jobs_below(path)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = check(source, Path(folder))
            except UsageError:
                sums["refused"] += 1
                continue
            except KairError as error:
                sums["unreadable"] += 1
                print(f"{source}: {error}")
                continue
        words += found.compared
        sums["same"] += not found.differences
        sums["differ"] += bool(found.differences)
        sums["leak"] += bool(found.survivors)
        for text in (*found.differences, *sorted(found.survivors)):
            print(f"{source}: {text}")
    print(
        f"{sums['same']} gifts judged as their jobs, {sums['differ']} not; {sums['leak']} with a string of the job "
        f"({words:,} looked for); {sums['refused']} without operations, {sums['unreadable']} unreadable"
    )
    return int(bool(sums["differ"] or sums["leak"]))


def jobs_below(path: Path) -> Iterator[Path]:
    """Yield the folders that hold files named as traces, and tables."""
    if path.suffix == ".parquet":
        yield path
    for folder in [path, *sorted(path.rglob("*"))] if path.is_dir() else ():
        names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
        if folder.suffix == ".parquet" or any(re.search(r"\.(json|json\.gz|sqlite|log)$", name) for name in names):
            yield folder


def check(source: Path, folder: Path, cache: Path | None = None) -> Checked:
    """Donate a job into `folder`, and compare; `cache`: where the job is parsed. Raises KairError."""
    gift = folder / "gift.tar.zst"
    trace = open_trace(source, cache=cache or folder / "cache")
    with gift.open("wb") as file:
        donated = donate(trace, file)
    again = open_trace(gift, cache=folder / "cache")
    differences = tuple(differing(triage(trace), triage(again), donated.operators))
    words = words_of_job(source)
    return Checked(differences, frozenset(surviving(words, gift)), len(words))


def differing(job: TriageResult, gift: TriageResult, operators: dict[str, str]) -> Iterator[str]:
    """Yield what is not the same in both answers."""
    if job.verdict != gift.verdict or len(job.findings) != len(gift.findings):
        yield f"{job.verdict} with {len(job.findings)} findings, the gift {gift.verdict} with {len(gift.findings)}"
        return
    for mine, other in zip(job.findings, gift.findings, strict=True):
        named = mine.operator and operators.get(mine.operator, mine.operator)
        said: list[tuple[Any, ...]] = [
            (mine.cause, mine.pattern, mine.ranks, mine.steps, named),
            (other.cause, other.pattern, other.ranks, other.steps, other.operator),
        ]
        if said[0] != said[1]:
            yield f"{said[0]}, the gift {said[1]}"
        for price in ("time_lost_us_per_step", "throughput_gain", "slowdown"):
            if not isclose(getattr(mine, price), getattr(other, price), rel_tol=ALIKE):
                yield f"{price} {getattr(mine, price)}, the gift {getattr(other, price)}"
    ranking = [[(one.rank, one.flagged) for one in result.ranking] for result in (job, gift)]
    if ranking[0] != ranking[1]:
        yield "the ranking"


def words_of_job(source: Path) -> set[str]:
    """Return the words of all strings of a recording that a gift must not hold."""
    return {word for text in _strings_of(source) for word in _words(text)} - FRAMEWORK_WORDS - _own_words()


def surviving(words: set[str], gift: Path) -> set[str]:
    """Return which of these words stand in a text of the gift; long ones anywhere in its bytes."""
    content = pa.CompressedInputStream(pa.OSFile(str(gift)), "zstd").read()
    texts = {word for text in _texts_of(content) for word in _words(text)}
    long = {*LONG.findall(content.decode("latin-1").lower())}
    return words & (texts | long)


def _strings_of(source: Path) -> Iterator[str]:
    yield from source.resolve().parts
    for path in [source] if source.is_file() else sorted(one for one in source.rglob("*") if one.is_file()):
        yield from path.parts
        if path.name.endswith((".json", ".json.gz")):
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            yield from {*_QUOTED.findall(content.decode("utf-8", "replace"))}
        elif path.suffix == ".sqlite":
            yield from (text.decode() for text in _PRINTED.findall(path.read_bytes()))
        elif path.suffix == ".parquet":
            table = pq.read_table(path)
            texts = [of for of in table.schema if pa.types.is_string(of.type) or pa.types.is_large_string(of.type)]
            for of in texts:
                yield from filter(None, table[of.name].unique().to_pylist())


def _words(text: str) -> Iterator[str]:
    return (word.lower() for word in WORD.findall(text) if len(word) >= SHORTEST)


def _own_words() -> set[str]:
    """What Kair writes into every gift: names of columns and fields, and what stands for messages."""
    schemas = msgspec.json.schema(FragmentInfo)["$defs"].values()
    fields = [name for schema in schemas for name in schema.get("properties", ())]
    return {word for text in (*fields, *SCHEMA.names, *KINDS, *PHASES, OF_GIFTS) for word in _words(text)}


def _texts_of(content: bytes) -> Iterator[str]:
    """Yield all texts of a gift: names of its files, what each says of itself, names and groups of its operations."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for entry in archive:
            yield entry.name
            opened = archive.extractfile(entry)
            assert opened is not None
            fragment = io.BytesIO(opened.read().removeprefix(GIFT))
            info = read_metadata(fragment) or {}
            info["warnings"] = []  # their codes are Kair's own
            yield re.sub(r"\d+", "", msgspec.json.encode(info).decode())
            table = pq.read_table(fragment)
            for name in TEXTS:
                yield from filter(None, table[name].cast(pa.string()).unique().to_pylist())


if __name__ == "__main__":
    raise SystemExit(main())
