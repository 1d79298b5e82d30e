"""Damages recordings of every format, and reads them: an answer, or one line that says what is wrong.

`python validation/fuzz/formats.py [--each N] [--seed S] [FORMAT…]` exits with 1 where a reader failed otherwise, and
keeps what it failed on in the folder it names.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "engine"), str(ROOT / "tests")]

from support import chrome_builder, nsys_builder, xplane_builder  # noqa: E402 (the path above leads there)

from kair_engine.errors import InputError  # noqa: E402
from kair_engine.recording.importing import ImportTask, import_file  # noqa: E402

_LONGEST_S = 10.0
_RECORDINGS = ROOT / "tests" / "recordings"
_HANGS = ROOT / "tests" / "cases" / "hangs"


def samples(folder: Path) -> dict[str, Path]:
    """A small sound recording of each format, written below `folder`."""
    export = nsys_builder.Export(folder / "report.sqlite")
    nsys_builder.training(export, 4000, steps=2)
    pod = folder / "tpu.xplane.pb"
    pod.write_bytes(xplane_builder.tpu_host((0, 1)))
    return {
        "xplane": pod,
        "xplane_jax": _RECORDINGS / "xplane" / "slow_input" / "node0.xplane.pb.gz",
        "nsys": export.close(),
        "flight_recorder": _RECORDINGS / "flight_recorder" / "hang" / "rank0.json",
        "flight_recorder_pickle": _RECORDINGS / "flight_recorder" / "hang_pickled" / "trace_rank_0",
        "ascend": chrome_builder.ascend(folder / "ascend", 0),
        "rocprof": chrome_builder.rocprof_hip(folder / "rocprof.json"),
        "rocprofv3": chrome_builder.rocprofv3(folder / "rocprofv3.json"),
        "horovod": chrome_builder.horovod(folder / "horovod.json"),
        "composer": chrome_builder.composer(folder / "composer.json", 0),
    }


def texts(folder: Path) -> dict[str, Path]:
    """The same of formats that are text, which has no structure to be damaged from within."""
    kept = {
        "job_log": _HANGS / "job_log/one_rank_reports_nothing/job/job.log",
        "ras": _HANGS / "ras/one_rank_behind/job/ras.txt",
    }
    return {name: Path(shutil.copy(path, folder)) for name, path in kept.items()}


def mutations(content: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """`count` damaged copies: bytes changed, pieces removed, doubled or swapped, the end cut off."""
    changes: tuple[Callable[[bytearray, random.Random], None], ...] = (_change, _change, _remove, _double, _cut, _swap)
    for _ in range(count):
        text = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 4, 16))):
            if text:
                chance.choice(changes)(text, chance)
        yield bytes(text)


def _change(text: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(text))
    text[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256), text[at] ^ 1 << chance.randrange(8)))


def _piece(text: bytearray, chance: random.Random) -> tuple[int, int]:
    begin = chance.randrange(len(text))
    return begin, min(begin + chance.choice((1, 4, 64, 1024)), len(text))


def _remove(text: bytearray, chance: random.Random) -> None:
    begin, end = _piece(text, chance)
    del text[begin:end]


def _double(text: bytearray, chance: random.Random) -> None:
    begin, end = _piece(text, chance)
    text[begin:begin] = text[begin:end]


def _cut(text: bytearray, chance: random.Random) -> None:
    if chance.random() < 0.2:
        del text[chance.randrange(len(text)) :]


def _swap(text: bytearray, chance: random.Random) -> None:
    begin, end = _piece(text, chance)
    other = chance.randrange(len(text))
    text[begin:end] = text[other : other + end - begin]


def tried(source: Path, content: bytes, out: Path) -> str:
    """What became of it: `answered`, `refused`, or what went wrong."""
    source.write_bytes(content)
    begun = time.process_time()
    try:
        outcome = import_file(ImportTask(source, out))
    except InputError as error:
        return f"an InputError passed by: {error}"
    except Exception:
        return traceback.format_exc()
    if time.process_time() - begun > _LONGEST_S:
        return f"took more than {_LONGEST_S:g} s"
    if outcome.write_error is not None:
        return f"an OSError of the input passed for the disk's: {outcome.write_error}"
    if "\n" in (outcome.error or ""):
        return f"more than one line: {outcome.error}"
    return "answered" if outcome.info is not None else "refused"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("formats", nargs="*")
    arguments.add_argument("--each", type=int, default=500)
    arguments.add_argument("--seed", type=int, default=1)
    wanted = arguments.parse_args()
    kept = Path(tempfile.mkdtemp(prefix="kair-fuzz-"))
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, sample in {**samples(folder), **texts(folder)}.items():
            if wanted.formats and name not in wanted.formats:
                continue
            counts = {"answered": 0, "refused": 0}
            source = folder / "fuzzed" / sample.name
            source.parent.mkdir(exist_ok=True)
            for content in mutations(sample.read_bytes(), random.Random(f"{wanted.seed} {name}"), wanted.each):
                found = tried(source, content, folder / "out.parquet")
                if found in counts:
                    counts[found] += 1
                else:
                    failures += 1
                    (kept / f"{name}-{failures}").write_bytes(content)
                    print(f"{name}: {found}", file=sys.stderr)
            print(f"{name}: {counts['answered']} answered, {counts['refused']} refused")
    print(f"{failures} failures" + (f", kept in {kept}" if failures else ""))
    if not failures:
        kept.rmdir()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
