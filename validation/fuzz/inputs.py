"""Asks about hostile inputs, many a second: recordings, logs, archives, names, what Kair keeps, runbooks, probes.

    python validation/fuzz/inputs.py --cases 100000 --seed 0

Each case is drawn from the seed and its number alone: `--only 4711 --keep FOLDER` does one again and leaves its files.
Most run in worker processes, one after another; a share of them, `--through-command`, asks a `kair` of its own. None
may end in a traceback, in another exit status than 0, 2, 3 or 10, take more than 10 s or 1 GB, write a control
character, an error of several lines, or JSON that is none.
"""

import argparse
import faulthandler
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.judging import LARGEST_MB, LONGEST_S, Case, Said, ask, ask_command, faults
from fuzz.kept_files import JOB, Kept
from fuzz.logs import log
from fuzz.names import faults_of_text, named
from fuzz.others import Others, archive, at_once
from fuzz.recordings import kineto, parse_seeds, scanned_or_decoded, whatif
from fuzz.runbooks import runbook

KINDS = {
    "kineto": 0.22,
    "what-if": 0.14,
    "store": 0.14,
    "cache": 0.04,
    "runbook": 0.12,
    "names": 0.1,
    "format": 0.1,
    "log": 0.1,
    "archive": 0.05,
    "captured": 0.06,
    "probe": 0.03,
}
"""What inputs are of, and how often."""
_ADDRESS_SPACE = 8 << 30
"""What a worker may map: whoever wants more is stopped before the machine is."""
_LONGEST_WAIT_S = 30 * LONGEST_S
"""By the clock on the wall, which on a busy machine runs that much faster than a process of low priority."""
_AT_ONCE = 4000
"""Cases of one worker process, then another takes over: what one leaves behind is none of the next one's."""
_IN_MEMORY = Path("/dev/shm")
"""Where a case's files lie if there is such a place: a disk takes a tenth of a case's time."""


class Fuzz:
    """A place for cases: a store and a cache that are copied, and a folder for each case."""

    def __init__(self, folder: Path, seed: int, through_command: float = 0.0, kinds: Sequence[str] = ()) -> None:
        """`kinds`: of all, or of these alone."""
        self._folder, self._seed, self._share = folder.resolve(), seed, through_command
        self._kept = Kept(self._folder / "kept")
        others = Others(self._folder / "others")
        self._draws: Mapping[str, Callable[[Path, random.Random], Case]] = {
            "kineto": kineto,
            "what-if": whatif,
            "store": self._kept.stored,
            "cache": self._kept.cached,
            "runbook": self._runbook,
            "names": named,
            "format": others.format,
            "log": log,
            "archive": archive,
            "captured": others.captured,
            "probe": others.probe,
        }
        self._shares = {kind: share for kind, share in KINDS.items() if not kinds or kind in kinds}
        self._cache = self._folder / "cache"
        parse_seeds(self._folder / "seeds", self._cache)
        self._parsed = set(self._cache.rglob("*"))

    def run(self, number: int, *, keep: bool = False) -> tuple[Case, Said, list[str]]:
        """One case: its command, what that said, and what is wrong with it."""
        chance = random.Random(f"{self._seed}:{number}")
        folder = self._folder / f"case{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        places = {"KAIR_STORE": str(folder / "own_store"), "KAIR_CACHE": str(self._cache), "KAIR_JOB": ""}
        os.environ.update(places)
        os.chdir(folder)
        case = self._draw(folder, chance)
        if case.words[0] != "coordinator" and chance.random() < self._share:
            environment = {name: os.environ[name] for name in places}
            said = ask_command(case.words, {**environment, "PYTHONPATH": os.pathsep.join(sys.path)})
        else:
            with at_once(), scanned_or_decoded(chance):
                said = ask(case.words)
        wrong = [*faults(case, said), *(faults_of_text(case, said.out, folder) if case.kind == "names" else ())]
        os.chdir(self._folder)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
            self._forget()
        return case, said, wrong

    def _forget(self) -> None:
        """Removes what the case left in the cache: each import looks at all of it."""
        for path in self._cache.rglob("*"):
            if path not in self._parsed and path.is_file():
                path.unlink()

    def _draw(self, folder: Path, chance: random.Random) -> Case:
        (kind,) = chance.choices(list(self._shares), list(self._shares.values()))
        return self._draws[kind](folder, chance)

    def _runbook(self, folder: Path, chance: random.Random) -> Case:
        shutil.copytree(self._kept.store, folder / "own_store")
        return runbook(folder, chance, JOB)


def work(numbers: Sequence[int], seed: int, through_command: float, kinds: Sequence[str], out: Path) -> None:
    """Runs cases in this process, and writes a line for each; whatever hangs ends the process with its stack."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Threads and translations cost small inputs more than they bring.
    os.environ.update(POLARS_MAX_THREADS="1", LANGUAGE="C")
    pa.set_cpu_count(1)
    place = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="fuzz-", dir=place) as folder, out.open("a") as lines:
        fuzz = Fuzz(Path(folder), seed, through_command, kinds)
        for number in numbers:
            lines.write(f"{number}\tbegun\n")
            lines.flush()
            faulthandler.dump_traceback_later(_LONGEST_WAIT_S, exit=True)
            case, said, wrong = fuzz.run(number)
            faulthandler.cancel_dump_traceback_later()
            told = " // ".join(wrong).replace("\t", " ").encode("unicode_escape", "replace").decode()
            words = " ".join(case.words).encode("unicode_escape", "replace").decode()
            line = (number, case.kind, said.status, f"{said.took_s:.3f}", f"{said.peak_mb:.0f}", words, told)
            lines.write("\t".join(map(str, line)) + "\n")
            lines.flush()


def run_all(cases: range, options: Sequence[str], workers: int, folder: Path) -> Iterator[list[str]]:
    """The lines of all cases: number, kind, status, seconds, MB, command, what is wrong."""
    parts = [cases[at : at + _AT_ONCE] for at in range(0, len(cases), _AT_ONCE)]
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(lambda part: list(_part(part, options, folder)), part) for part in parts]
        for done in as_completed(running):
            yield from done.result()


def _part(numbers: Sequence[int], options: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """A worker's cases; where it dies, that is what is wrong with the case it was at, and another goes on."""
    left = list(numbers)
    while left:
        out = folder / f"{left[0]}.txt"
        command = [sys.executable, __file__, "--worker", str(out), "--cases", str(len(left)), "--first", str(left[0])]
        done = subprocess.run([*command, *options], capture_output=True, text=True, errors="replace", check=False)
        found = [line.split("\t") for line in out.read_text().splitlines()] if out.exists() else []
        begun = [int(line[0]) for line in found if line[1] == "begun"]
        through = [line for line in found if line[1] != "begun"]
        yield from through
        if len(through) == len(left):
            return
        if not begun:
            raise SystemExit(f"a worker did not start: {done.stderr[-2000:]}")
        why = f"the process ended ({done.returncode}): {done.stderr[-1500:]}".replace("\n", " | ").replace("\t", " ")
        yield [str(begun[-1]), "?", str(done.returncode), "0", "0", "", why]
        left = [number for number in left if number > begun[-1]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first one's number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--through-command", type=float, default=0.01, metavar="SHARE")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kind", action="append", default=[], choices=list(KINDS), help="of these alone; repeatable")
    parser.add_argument("--only", type=int, help="run this case here, and show all that it says")
    parser.add_argument("--keep", type=Path, help="with --only: where its files stay")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.worker is not None:
        cases = range(wanted.first, wanted.first + wanted.cases)
        work(cases, wanted.seed, wanted.through_command, wanted.kind, wanted.worker)
        return 0
    with TemporaryDirectory(prefix="fuzz-") as folder:
        if wanted.only is not None:
            place = wanted.keep or Path(folder)
            fuzz = Fuzz(place, wanted.seed, wanted.through_command, wanted.kind)
            return _show(fuzz, wanted.only, keep=wanted.keep is not None)
        options = ["--seed", str(wanted.seed), "--through-command", str(wanted.through_command)]
        options += [f"--kind={kind}" for kind in wanted.kind]
        cases = range(wanted.first, wanted.first + wanted.cases)
        return _tell(run_all(cases, options, wanted.workers, Path(folder)))


def _show(fuzz: Fuzz, number: int, *, keep: bool) -> int:
    case, said, wrong = fuzz.run(number, keep=keep)
    print("kair", *case.words, f"\n{said.out}\n{said.errors}\n{said.status} {said.took_s:.2f} s {said.peak_mb:.0f} MB")
    print(*wrong, sep="\n")
    if wrong and keep:
        print(ask((*case.words, "--debug")).errors)
    return int(bool(wrong))


def _tell(lines: Iterator[list[str]]) -> int:
    began = time.monotonic()
    endings: Counter[tuple[str, str]] = Counter()
    longest, largest, bad = 0.0, 0.0, 0
    for count, (number, kind, status, took, peak, words, wrong) in enumerate(lines, 1):
        endings[kind, status] += 1
        longest, largest = max(longest, float(took)), max(largest, float(peak))
        if wrong:
            bad += 1
            print(f"{number}: kair {words}\n    WRONG: {wrong}", flush=True)
        if count % 1000 == 0:
            print(f"{count} cases in {time.monotonic() - began:.0f} s, {bad} wrong", flush=True)
    for (kind, status), often in sorted(endings.items()):
        print(f"{kind:8} exit {status:4} {often:7}")
    print(f"{endings.total()} cases, {bad} wrong; at most {longest:.1f} s (of {LONGEST_S:.0f})", end=" ")
    print(f"and {largest:.0f} MB (of {LARGEST_MB:.0f})")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
