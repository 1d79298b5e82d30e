"""Every command's JSON on every recording, written down by one build of Kair and compared with another's.

    python benchmarks/answers.py record old --kair ../before/.venv/bin/kair
    python benchmarks/answers.py record new
    python benchmarks/answers.py compare old new --renamed stage=phase

The recordings are the samples and, where they lie beside the checkout, the real traces. `compare` prints one line for
each field that differs, with how many documents it differs in and one example, and exits with 1 if any does.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_traces"
TRACES = ROOT.parent / "shared" / "traces"
OF_A_JOB = (
    "triage",
    "triage --gpu-cost 2.5",
    "localize",
    "localize --by host",
    "localize --method paper --matrix",
    "localize --method paper --whole-run --normalized",
    "blame",
    "blame --step last",
    "collectives --by-rank",
    "whatif",
    "whatif --gpu-cost 2.5 --fix rank=0 --scale kind=compute:0.5",
    "whatif --only-fixes --fix rank=0",
    "frequency",
    "operators --by-rank",
    "steps",
    "timeline",
    "info --operators",
    "sensitivity --draws 20",
)
OF_A_RANK = ("pinpoint", "pinpoint --method paper", "rank", "blame", "blame --method paper")
OF_TWO_JOBS = (
    "compare healthy slow_operator",
    "compare two_hosts_healthy two_hosts_upgrade",
    "compare busy_host healthy",
)
OF_NO_JOB = ("spec", "schema triage", "schema localize", "schema pinpoint", "schema blame", "schema whatif")


def main() -> int:
    """Records or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record_ = commands.add_parser("record")
    record_.add_argument("folder", type=Path)
    record_.add_argument("--kair", default=f"{sys.executable} -m kair_tui", help="the program, split at blanks")
    record_.add_argument("--only", default="", help="only commands and recordings whose line matches this expression")
    compare_ = commands.add_parser("compare")
    compare_.add_argument("old", type=Path)
    compare_.add_argument("new", type=Path)
    compare_.add_argument("--renamed", action="append", default=[], help="OLD=NEW, a field's name", metavar="OLD=NEW")
    options = parser.parse_args()
    if options.command == "record":
        return record(options.folder, options.kair.split(), options.only)
    return compare(options.old, options.new, dict(one.split("=", 1) for one in options.renamed))


def recordings() -> Iterator[Path]:
    """The samples, then what lies beside the checkout."""
    yield from sorted(path for path in SAMPLES.iterdir() if any(path.glob("*.gz")))
    yield from (path for path in (TRACES / "megatron-tp8",) if path.is_dir())
    yield from sorted((TRACES / "bytedance").glob("trace-*.parquet"))


def record(folder: Path, program: list[str], only: str) -> int:
    """One file a command and recording: the exit status, then the document."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as own:
        environment = {
            **os.environ,
            "KAIR_CACHE": f"{own}/cache",
            "KAIR_STORE": f"{own}/store",
            "POLARS_MAX_THREADS": "1",
        }

        def run(line: str, arguments: list[str]) -> Any:  # noqa: ANN401
            done = subprocess.run([*program, *arguments], capture_output=True, text=True, env=environment, check=False)
            (folder / (re.sub(r"\W+", "-", line) + ".json")).write_text(
                json.dumps(
                    {"line": line, "status": done.returncode, "document": _document(done.stdout), "errors": done.stderr}
                )
            )

        asked = [(line, line.split()) for line in OF_NO_JOB]
        for line in OF_TWO_JOBS:
            command, *names = line.split()
            asked.append((line, [command, *(str(SAMPLES / name) for name in names), "--json"]))
        for path in recordings():
            run(f"info {path.name}", ["info", str(path), "--json"])  # fills the cache once
            ranks = json.loads((folder / (re.sub(r"\W+", "-", f"info {path.name}") + ".json")).read_text())["document"][
                "job"
            ]["ranks"]
            asked += [(f"{path.name} {line}", [*line.split(), str(path), "--json"]) for line in OF_A_JOB]
            asked += [
                (f"{path.name} {line} {rank}", [*line.split(), str(path), "--rank", str(rank), "--json"])
                for line in OF_A_RANK
                for rank in (ranks[0], ranks[len(ranks) // 2], ranks[-1])
            ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda one: run(*one), [one for one in asked if re.search(only, one[0])]))
    print(f"{len(list(folder.glob('*.json')))} answers in {folder}")
    return 0


def _document(text: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except ValueError:
        return text


def compare(old: Path, new: Path, renamed: dict[str, str]) -> int:
    """A line for each field that is new, gone or another value."""
    differing: dict[tuple[str, str], list[str]] = defaultdict(list)
    names = sorted({path.name for folder in (old, new) for path in folder.glob("*.json")})
    figures = 0
    for name in names:
        before, after = _flat(old / name, renamed), _flat(new / name, {})
        figures += len(before)
        for key in sorted((before.keys() | after.keys()) - {".line"}):
            one, other = before.get(key, _ABSENT), after.get(key, _ABSENT)
            if one != other:
                kind = "new" if one is _ABSENT else "gone" if other is _ABSENT else "changed"
                differing[kind, re.sub(r"\[\d+\]", "[]", key)].append(f"{name}: {one!r} → {other!r}")
    for kind in ("changed", "gone", "new"):
        for (of, field), examples in sorted(differing.items()):
            if of == kind:
                shown = f", as in {examples[0][:200]}" if kind == "changed" else ""
                print(f"{kind}: {field} ({len(examples)} values{shown})")
    counts = {
        kind: sum(len(found) for (of, _), found in differing.items() if of == kind)
        for kind in ("changed", "gone", "new")
    }
    print(
        f"{len(names)} documents, {figures} values: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    )
    return 1 if counts["changed"] or counts["gone"] else 0


_ABSENT = object()


def _flat(path: Path, renamed: dict[str, str]) -> dict[str, Any]:
    """Every plain value under its path."""
    found: dict[str, Any] = {}

    def walk(value: Any, at: str) -> None:  # noqa: ANN401
        if isinstance(value, dict):
            for key, one in value.items():
                walk(one, f"{at}.{renamed.get(key, key)}")
        elif isinstance(value, list):
            found[f"{at}.length"] = len(value)
            for number, one in enumerate(value):
                walk(one, f"{at}[{number}]")
        else:
            found[at] = value

    if path.exists():
        walk(json.loads(path.read_text()), "")
    return found


if __name__ == "__main__":
    sys.exit(main())
