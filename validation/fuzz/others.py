"""Hostile files of other kinds: other formats' recordings, archives, what a coordinator keeps, probes."""

import io
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz import damage
from fuzz.formats import mutations, samples
from fuzz.judging import Case, ask
from fuzz.recordings import FORMATS, question
from fuzz.seeds import kineto_seeds
from fuzz.structures import structured
from support.captured import fragment_of, rows_for
from support.live_status import STATUS, write_status

from kair_capture.agent.step_rows import SCHEMA
from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings
from kair_capture.coordinator.step_log import StepLog, write_part
from kair_capture.places import JobPlaces

WATCHED = STATUS.job
_IN_ARCHIVES = (
    "a.json",
    "../a.json",
    "/etc/passwd",
    "x/../../b.json",
    "",
    ".",
    "con:|*",
    "n" * 300,
    "\udcff.json",
    "d/",
)


class Others:
    """Sound files of each kind, to be copied and damaged."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._samples = samples(folder)
        self._store, self._probe = folder / "store", folder / "probe.json"
        _capture(self._store, folder)
        said = ask(("probe", "--seconds", "0.1", "--device", "cpu", "--out", str(self._probe)))
        if said.status:
            raise SystemExit(f"kair probe: {said.errors}")

    def format(self, folder: Path, chance: random.Random) -> Case:
        """A recording of another format than Kineto's, alone or beside a sound one."""
        name = chance.choice(sorted(self._samples))
        sample, job = self._samples[name], folder / "job"
        job.mkdir()
        data = sample.read_bytes()
        changed = None
        if chance.random() < 0.7:
            changed = structured(data, chance)
        if changed is None:
            (changed,) = mutations(data, chance, 1)
        (job / sample.name).write_bytes(changed)
        if chance.random() < 0.4:
            shutil.copy(sample, job / f"other_{sample.name}")
        return Case("format", question(str(job), chance))

    def captured(self, folder: Path, chance: random.Random) -> Case:
        """A job that is or was watched, with what its coordinator keeps damaged."""
        store = folder / "store"
        shutil.copytree(self._store, store)
        write_status(store, STATUS)
        files = sorted(path for path in (store / WATCHED).rglob("*") if path.is_file() and path.name != "lock")
        for path in chance.sample(files, chance.choice((1, 1, 2, 4))):
            _harm(path, chance)
        form = ("-o", chance.choice(FORMATS))
        words = chance.choice((
            ("watch", WATCHED, "--once", *form),
            ("watch", WATCHED, "--once", *form),
            ("steps", WATCHED, "--scopes", *form),
            ("steps", WATCHED, "--scopes", *form),
            ("coordinator", "--job", WATCHED, "--listen", "127.0.0.1:0", "-q"),
            ("jobs", "-o", "json"),
            question(WATCHED, chance),
        ))  # fmt: skip
        return Case("captured", (*words, "--store", str(store)))

    def probe(self, folder: Path, chance: random.Random) -> Case:
        """Probes of machines, one or several damaged."""
        files = []
        for number in range(chance.choice((2, 3, 5))):
            path = folder / f"probe{number}.json"
            document = json.loads(self._probe.read_bytes())
            document["data"]["machine"]["host"] = f"node{number}{chance.choice(damage.TEXTS)[:200]}"
            if chance.random() < 0.3:
                document["data"] = damage.tree(document["data"], chance, chance.choice((1, 2, 5)))
            elif chance.random() < 0.05:
                document = damage.tree(document, chance, 2)
            data = json.dumps(document).encode("utf-8", "surrogatepass")
            path.write_bytes(damage.content(data, chance) if chance.random() < 0.05 else data)
            files.append(str(path))
        if chance.random() < 0.05:
            damage.other_kind(Path(files[0]), chance, ("device", "folder"))
        return Case("probe", ("probe", "--compare", *files, "-o", chance.choice(FORMATS)))


def archive(folder: Path, chance: random.Random) -> Case:
    """A job in an archive whose entries or bytes are hostile."""
    files = dict(chance.choice(kineto_seeds()).files)
    for _ in range(chance.choice((0, 1, 3))):
        files[chance.choice(_IN_ARCHIVES)] = chance.choice((b"", b"{}", chance.choice(sorted(files.values()))))
    form = chance.choice(("zip", "zip", "tar", "tar.gz", "tar.zst"))
    data = _zipped(files, chance) if form == "zip" else _tarred(files, form, chance)
    if chance.random() < 0.6:
        data = damage.content(data, chance, chance.choice((1, 2, 5)))
    path = folder / f"job.{form}"
    path.write_bytes(data)
    inner = chance.random()
    job = path if inner < 0.7 else path / chance.choice((*sorted(files)[:2], "../x", "no/such", ""))
    return Case("archive", question(str(job), chance))


@contextmanager
def at_once() -> Iterator[None]:
    """Coordinators end within once they have done what there is to do."""
    run = Coordinator.run

    def run_and_end(self: Coordinator) -> None:
        self.stop()
        run(self)

    Coordinator.run = run_and_end  # type: ignore[method-assign]
    try:
        yield
    finally:
        Coordinator.run = run  # type: ignore[method-assign]


def _capture(store: Path, work: Path) -> None:
    """What is kept of a job: rows packed and not, sums of scopes, a window, what a restart must know."""
    places = JobPlaces(store, WATCHED)
    rows = np.concatenate([rows_for(rank, range(60), self_us=800 + 100 * (rank == 1)) for rank in range(3)])
    log = StepLog(places.steps)
    log.append(rows)
    log.close()
    write_part(places.steps / "part-00000000.parquet", rows_for(3, range(60)))
    coordinator = Coordinator(CoordinatorSettings(places, ("127.0.0.1", 0)))
    delivered = places.delivered / "host=node-1"
    delivered.mkdir(parents=True)
    from kair_capture.agent.spool import named
    from kair_capture.wire import read_key

    made = fragment_of(work / "window", range(2), first=5)
    made.rename(delivered / named(made, "node-1", 5, 8, read_key(places.key, WATCHED)).text)
    coordinator.stop()
    coordinator.run()
    places.scopes.mkdir()
    pq.write_table(_sums(), places.scopes / "node-1-5-8.parquet")
    write_status(store, STATUS)


def _sums() -> pa.Table:
    """Sums of a script's own scopes, in the columns that agents give them."""
    columns: dict[str, Any] = {}
    for field in SCHEMA:
        if pa.types.is_string(field.type) or pa.types.is_dictionary(field.type):
            columns[field.name] = pa.array(["attention", "mlp"] * 30, field.type)
        else:
            columns[field.name] = pa.array([at // 2 for at in range(60)], pa.int64()).cast(field.type)
    return pa.table(columns, SCHEMA)


def _harm(path: Path, chance: random.Random) -> None:
    deed = chance.random()
    if deed < 0.08:
        damage.other_kind(path, chance)
        return
    data = path.read_bytes()
    changed = None
    if deed < 0.6 and path.suffix == ".json":
        changed = structured(data, chance)
    elif deed < 0.7 and path.suffix == ".parquet":
        rows = damage.table(pq.read_table(path), chance, chance.choice((1, 2)))
        pq.write_table(rows, path)
        return
    elif deed < 0.8 and path.suffix == ".journal":
        changed = bytes(chance.randrange(256) if chance.random() < 0.02 else byte for byte in data)
    path.write_bytes(damage.content(data, chance, chance.choice((1, 2, 5))) if changed is None else changed)


def _zipped(files: dict[str, bytes], chance: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as packed:
        for name, data in files.items():
            packed.writestr(zipfile.ZipInfo(name.encode("utf-8", "replace").decode() or "x"), data)
    return out.getvalue()


def _tarred(files: dict[str, bytes], form: str, chance: random.Random) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if form == "tar.gz" else "w") as packed:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            if chance.random() < 0.1:
                entry.type = chance.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE))
                entry.linkname = chance.choice(_IN_ARCHIVES)
            entry.size = len(data) if entry.isreg() else 0
            packed.addfile(entry, io.BytesIO(data) if entry.isreg() else None)
    text = out.getvalue()
    return pa.compress(text, "zstd", asbytes=True) if form == "tar.zst" else text
