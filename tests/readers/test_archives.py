"""Recordings within archives: the same answer as from the folder; bombs, tricks with paths and damage."""

import gzip
import io
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kineto_builder import write_job

from kair_engine.errors import InputError
from kair_engine.readers import archives
from kair_engine.readers.archives import open_member
from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job", range(3))


def zipped(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for one in sorted(folder.iterdir()):
            file.write(one, f"{folder.name}/{one.name}")
    return path


def tarred(folder: Path, path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        file.add(folder, folder.name)
    return path


def zstandard(folder: Path, path: Path) -> Path:
    import pyarrow as pa

    tarred(folder, path.with_suffix(""))
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(path.with_suffix("").read_bytes())
    path.with_suffix("").unlink()
    return path


def answer(job: Job) -> tuple[object, ...]:
    return (job.ranks, job.world_size, job.steps, job.step_times, job.operations, job.warnings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.zip", zipped),
        ("a.tar", tarred),
        ("a.tgz", lambda folder, path: tarred(folder, path, "w:gz")),
        ("a.tar.gz", lambda folder, path: tarred(folder, path, "w:gz")),
        ("a.tar.zst", zstandard),
    ],
)
def test_an_archive_answers_as_its_folder_does(
    job: Path, tmp_path: Path, name: str, pack: Callable[[Path, Path], Path]
) -> None:
    archive = pack(job, tmp_path / name)
    before = sorted(tmp_path.iterdir())
    found = open_trace(archive, cache=tmp_path / "cache").job
    assert answer(found) == answer(open_trace(job, cache=tmp_path / "cache").job)
    assert found.name == "a"
    # Nothing was unpacked beside it.
    assert sorted(tmp_path.iterdir()) == [*before[:1], tmp_path / "cache", *before[1:]]
    # The second time it is in the cache; an archive that changed is another one.
    parsed: list[str] = []
    open_trace(archive, cache=tmp_path / "cache", progress=lambda *told: parsed.append(told[2]))
    assert parsed == []
    write_job(job, range(3), count=4)
    assert len(open_trace(pack(job, archive), cache=tmp_path / "cache").job.steps) == len(found.steps) + 1


def test_archives_in_a_folder_are_of_one_job(job: Path, tmp_path: Path) -> None:
    ranks = sorted(job.iterdir())
    folder = tmp_path / "nodes"
    folder.mkdir()
    for node, of_node in enumerate((ranks[:2], ranks[2:])):
        with tarfile.open(folder / f"node{node}.tar.gz", "w:gz") as file:
            for one in of_node:
                file.add(one, one.name)
    assert open_trace(folder, cache=tmp_path / "cache").job.ranks == (0, 1, 2)


def test_members_are_read_in_one_pass_whatever_was_read_of_them(job: Path, tmp_path: Path) -> None:
    archive = tarred(job, tmp_path / "a.tar.gz", "w:gz")
    names = sorted(path.name for path in job.iterdir())
    for order in (names, names[::-1], [names[1], names[1], names[0]]):
        for name in order:
            with open_member(archive / "job" / name) as file:
                assert file.read(10) == (job / name).read_bytes()[:10]
            with open_member(archive / "job" / name) as file:
                assert file.read() == (job / name).read_bytes()


def test_names_that_lead_elsewhere_and_links_are_left_out(job: Path, tmp_path: Path) -> None:
    text = next(job.iterdir()).read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as file:
        file.add(job, "job")
        for name in ("../outside/rank7.json", "/etc/rank8.json"):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            file.addfile(entry, io.BytesIO(text))
        link = tarfile.TarInfo("job/rank9.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    found = open_trace(tmp_path / "a.tar.gz", cache=tmp_path / "cache").job
    assert found.ranks == (0, 1, 2)
    (told,) = (warning.message for warning in found.warnings if warning.code == "unreadable_file")
    assert "3 entries of a.tar.gz are links, devices, or lead out of it" in told


def test_bombs_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_FREE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("rank0.json", b"[" + b" " * (4 << 20))
    with pytest.raises(InputError, match="out of all proportion"):
        open_trace(tmp_path / "a.zip", cache=tmp_path / "cache")
    with gzip.open(tmp_path / "b.tar.gz", "wb", compresslevel=9) as raw, tarfile.open(fileobj=raw, mode="w|") as tar:
        entry = tarfile.TarInfo("rank0.json")
        entry.size = 4 << 20
        tar.addfile(entry, io.BytesIO(bytes(4 << 20)))
    with pytest.raises(InputError, match="out of all proportion"):
        open_trace(tmp_path / "b.tar.gz", cache=tmp_path / "cache")


def test_an_archive_within_an_archive_is_named_and_not_opened(job: Path, tmp_path: Path) -> None:
    zipped(job, job / "more.zip")
    found = open_trace(tarred(job, tmp_path / "a.tar"), cache=tmp_path / "cache").job
    assert found.ranks == (0, 1, 2)
    (told,) = (warning.message for warning in found.warnings)
    assert told.startswith("more.zip is an archive within another")
    assert told.endswith("it is left out (unpack it)")


@pytest.mark.slow
def test_damaged_archives_give_an_answer_or_one_line(job: Path, tmp_path: Path) -> None:
    chance, refused = random.Random(11), 0
    contents = {
        "a.zip": zipped(job, tmp_path / "z.zip").read_bytes(),
        "a.tar": tarred(job, tmp_path / "t.tar").read_bytes(),
        "a.tar.gz": tarred(job, tmp_path / "g.tar.gz", "w:gz").read_bytes(),
    }
    for number in range(90):
        name = list(contents)[number % 3]
        text = bytearray(contents[name])
        if chance.random() < 0.4:
            text = text[: chance.randrange(1, len(text))]
        for _ in range(chance.randrange(1, 5)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(text)
        try:
            open_trace(folder / name, cache=tmp_path / "cache")
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 0 < refused < 90
