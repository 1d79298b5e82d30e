"""Hostile files where Kair keeps its own: jobs of the store, entries of the cache, baselines and notes."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz import damage
from fuzz.judging import Case, ask
from fuzz.recordings import question
from fuzz.seeds import kineto_seeds

from kair_engine.recording.job_file import JOB_FILE, SCHEMA, VERSION
from kair_engine.recording.kept_files import checksum_of, with_checksum
from kair_engine.store.jobs import Store

JOB, BASELINE = "job1", "healthy"
_LISTS = (("jobs",), ("jobs", "--whatif"), ("fleet",), ("baseline", "list"), ("use", JOB), ("cache",))


class Kept:
    """A store and a cache as commands left them, to be copied and damaged."""

    def __init__(self, folder: Path) -> None:
        self.traces, self.store, self.cache = folder / "traces", folder / "store", folder / "cache"
        self.traces.mkdir(parents=True)
        for name, text in kineto_seeds()[0].files.items():
            (self.traces / name).write_bytes(text)
        with _places(self.store, self.cache):
            Store(self.store).import_traces([self.traces], JOB, cache=self.cache)
            for words in (("triage", JOB), ("jobs", "--whatif"), ("baseline", "save", BASELINE, JOB)):
                said = ask(words)
                if said.status:
                    raise SystemExit(f"kair {' '.join(words)}: {said.errors}")
        self._answers: dict[tuple[str, ...], tuple[str, str]] = {}

    def stored(self, folder: Path, chance: random.Random) -> Case:
        """A command about a store of which one file or several are damaged, some under a seal that fits."""
        store = folder / "store"
        shutil.copytree(self.store, store)
        files = sorted(path for path in store.rglob("*") if path.is_file())
        for path in chance.sample(files, min(chance.choice((1, 1, 2)), len(files))):
            _harm(path, chance)
        if chance.random() < 0.4:
            _reseal_fragments(store / JOB, chance)
        words = question(JOB, chance) if chance.random() < 0.8 else (*chance.choice(_LISTS), "-o", "json")
        if words[0] in ("triage", "localize") and chance.random() < 0.2:
            words = (*words, "--baseline", BASELINE)
        return Case("store", (*words, "--store", str(store)) if words[0] != "cache" else words)

    def cached(self, folder: Path, chance: random.Random) -> Case:
        """A command about traces whose parsed form is damaged: it answers as if nothing were."""
        cache = folder / "cache"
        shutil.copytree(self.cache, cache)
        for path in sorted(path for path in cache.rglob("*") if path.is_file()):
            if chance.random() < 0.5:
                _damage_bytes(path, chance)
        words = question(str(self.traces), chance)
        if words[0] in ("export", "timeline") or "--report" in words or "--timeline" in words:
            words = ("info", str(self.traces), "-o", "json")
        if words not in self._answers:
            with _places(self.store, self.cache):
                self._answers[words] = (ask(words).out, "")
        os.environ["KAIR_CACHE"] = str(cache)
        return Case("cache", words, same_as=self._answers[words])


@contextmanager
def _places(store: Path, cache: Path) -> Iterator[None]:
    """Commands within have this store and this cache."""
    wanted = {"KAIR_STORE": str(store), "KAIR_CACHE": str(cache)}
    before = {name: os.environ.get(name, "") for name in wanted}
    os.environ.update(wanted)
    yield
    os.environ.update(before)


def _harm(path: Path, chance: random.Random) -> None:
    """Damages a file: its bytes, or its content under a checksum that fits."""
    deed = chance.random()
    if deed < 0.05:
        path.unlink()
    elif deed < 0.1:
        damage.other_kind(path, chance)
    elif deed < 0.5 or path.suffix != ".json":
        _damage_bytes(path, chance)
    else:
        _reseal(path, chance)


def _damage_bytes(path: Path, chance: random.Random) -> None:
    path.write_bytes(damage.content(path.read_bytes(), chance, chance.choice((1, 1, 3))))


def _reseal(path: Path, chance: random.Random) -> None:
    """Another content, with the checksum that belongs to it: what another person may have written."""
    document: Any = json.loads(path.read_bytes())
    if path.name != JOB_FILE or chance.random() < 0.1:
        path.write_bytes(_text(damage.tree(document, chance, chance.choice((1, 2, 5)))))
        return
    body = damage.tree(document["body"], chance, chance.choice((1, 2, 5)))
    path.write_bytes(with_checksum(_text(body), schema=SCHEMA, version=VERSION))


def _reseal_fragments(job: Path, chance: random.Random) -> None:
    """A fragment whose table was changed, and `job.json` says that it is what was kept."""
    if not all(path.is_file() for path in job.rglob("*") if not path.is_dir()):
        return  # who opens a pipe waits
    try:
        document = json.loads((job / JOB_FILE).read_bytes())
        kept = chance.choice(document["body"]["fragments"])
        path = job / kept["path"]
        source = pq.ParquetFile(path)
        steps = [source.read_row_group(number) for number in range(source.num_row_groups)]
    except (OSError, ValueError, TypeError, KeyError, IndexError, pa.ArrowException):
        return  # damaged already
    at = chance.randrange(len(steps))
    steps[at] = damage.table(steps[at], chance)
    if steps[at].schema != source.schema_arrow:
        steps = [steps[at]]
    with pq.ParquetWriter(path, steps[0].schema) as writer:
        for step in steps:
            writer.write_table(step)
    kept["seal"] = msgspec.to_builtins(checksum_of(path))
    (job / JOB_FILE).write_bytes(with_checksum(_text(document["body"]), schema=SCHEMA, version=VERSION))


def _text(value: damage.Tree) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")
