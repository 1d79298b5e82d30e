"""The benchmarks that say whether a commit made Kair slower, in one run: `make benchmark`.

    python benchmarks/suite.py [--hta-python PYTHON] [--tracelens BIN --traces FOLDER --pattern NAMES] [--check]

Runs scripts of this folder, and of validation/, one after another, and writes their figures into RESULTS.md: each
beside its peer's of the same run, and beside the median of the last three runs, which are in results.jsonl with their
date, commit and load. A figure that is more than 15 % worse than that median is named; with `--check` the exit status
is then 1. Peers are measured where their program is given, and are "not run" elsewhere. The pace of a shared
machine changes: a fixed piece of work (yardstick.py) is measured before and after each part, and times of earlier runs
are compared as they would have been at this run's pace.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measuring import Row, run_child, say

HERE = Path(__file__).parent
SAMPLE = HERE.parent / "sample_traces" / "slow_operator"
KEPT, WORSE_BY = 3, 0.15
PER_SECOND = "MB/s"
"""Of what is measured in it more is better; of all else less."""
TIMES = ("CPU s", "CPU ms", "kair triage, ms", PER_SECOND)
"""Units of what a slower machine makes worse."""
LEAST = {"CPU s": 0.01, "CPU ms": 1.0, "kair triage, ms": 20.0, "peak MB": 1.0, "added MB": 1.0, "bytes, known": 50.0}
"""By unit, smaller differences are chance, whatever their share."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Part:
    """A script, or with `whole` one command of Kair's that is measured as a whole process."""

    title: str
    command: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Columns that tell the script's rows apart."""
    figures: tuple[str, ...] = ("CPU s", "peak MB")
    """Columns that are measured."""
    peers: Mapping[str, str] = field(default_factory=dict)
    """Name of a row → its peer's, in the first of `names`."""
    whole: bool = False
    needs: tuple[str, ...] = ()
    """Options that must be given; their values take the place of {OPTION} in the command."""
    unless_given: str = ""
    """An option with which another part measures the same and more."""


_LOADING = ("loading.py", "{trace}", "--megabytes", "75", "--runs", "3")
_SPEED = (PER_SECOND, "peak MB")

PARTS = (
    Part("start-up", ("start_up.py", "--runs", "5"), ("command",), ("CPU ms", "peak MB")),
    Part("imports", ("imports.py", "--runs", "3"), ("library",), ("kair triage, ms",)),
    Part("load a Kineto file", _LOADING, ("reader",), _SPEED, unless_given="hta_python"),
    Part(
        "load a Kineto file",
        (*_LOADING, "--peer-python", "{hta_python}"),
        ("reader",),
        _SPEED,
        {"kair": "hta", "kair-parse": "hta-parse"},
        needs=("hta_python",),
    ),
    Part(
        "cold triage of 8 ranks",
        ("beside_tracelens.py", "{traces}", "--pattern", "{pattern}", "--tracelens", "{tracelens}", "--runs", "3"),
        ("program",),
        peers={"kair triage": "TraceLens"},
        needs=("traces", "tracelens"),
    ),
    Part("triage, 10⁷ operations", ("big_table.py", "--shapes", "256x5", "--commands", "triage"), ("ranks", "steps")),
    Part("what-if", ("../validation/accuracy/whatif_scale.py", "--layouts", "3d256", "--steps", "10"), ("job",)),
    Part("sensitivity of a sample", ("sensitivity", str(SAMPLE)), whole=True),
    Part(
        "stage 1 of the paper",
        ("localize_scale.py", "--runs", "2"),
        ("method", "ranks"),
        ("CPU s", "added MB"),
        {"kair": "scipy pdist"},
    ),
    Part("full screen", ("tui_speed.py", "--only", "paint"), ("what",), ("CPU ms",)),
    Part("a change of screen", ("tui_bytes.py", "--only", "rank", "blame", "timeline"), ("screen",), ("bytes, known",)),
    Part("live, 20 new steps", ("capture/look.py",), ("who", "ranks"), ("CPU ms",)),
    Part("mitigation", ("mitigate_policies.py",), ("what",), ("CPU ms",)),
    Part("history of steps", ("capture/long_history.py",), ("ranks", "steps")),
    Part("logs of steps", ("log_speed.py", "--gigabytes", "0.3"), ("log",), _SPEED),
)


@dataclass
class Run:
    """What one run told."""

    figures: Figures = field(default_factory=dict)
    pace: Figures = field(default_factory=dict)
    """Title → the CPU seconds of the yardstick meanwhile."""
    peers: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Figure → its peer's name and figure."""
    commands: dict[str, str] = field(default_factory=dict)
    """Title → the command, or commands, of its figures."""
    not_run: dict[str, str] = field(default_factory=dict)
    """Title → why."""
    failed: bool = False


def run(parts: Sequence[Part], given: Mapping[str, str | None]) -> Run:
    """Run the parts one after another; one that fails is noted, and the others run."""
    result = Run()
    pace = [yardstick()]
    for part in parts:
        missing = [name for name in part.needs if not given.get(name)]
        if missing:
            result.not_run[part.title + " beside its peer"] = " and ".join(_option(name) for name in missing)
            continue
        if part.unless_given and given.get(part.unless_given):
            continue
        begin = time.perf_counter()
        words = [word.format(**given) if word.startswith("{") else word for word in part.command]
        result.commands[part.title] = shlex.join(("kair" if part.whole else "python", *map(_shown, words)))
        try:
            rows = whole(words) if part.whole else rows_of(words)
        except SystemExit as error:
            say(f"{part.title} failed: {error}")
            result.not_run[part.title], result.failed = "it failed", True
            continue
        note(result, part, rows)
        pace.append(yardstick())
        result.pace[part.title] = statistics.fmean(pace[-2:])
        say(f"{part.title}: {time.perf_counter() - begin:.0f} s")
    return result


def whole(words: Sequence[str]) -> list[Row]:
    """Return what one command of Kair's took, as a row."""
    took = run_child([sys.executable, "-m", "kair_tui", *words])
    return [{"CPU s": took.cpu_s, "peak MB": took.peak_mb}]


def rows_of(words: Sequence[str]) -> list[Row]:
    """Return the rows that a script of benchmarks prints with --json."""
    took = run_child([sys.executable, str(HERE / words[0]), *words[1:], "--json"])
    rows: list[Row] = json.loads(took.stdout)["rows"]
    return rows


def yardstick() -> float:
    """Return the CPU seconds of a fixed piece of work."""
    return float(str(rows_of(("yardstick.py",))[0]["CPU s"]))


def at_pace(run: Mapping[str, Any], pace: Figures) -> Figures:
    """Return a run's figures as they would have been at another pace; no times of a run whose pace is not known."""
    result: Figures = {}
    for key, value in run["figures"].items():
        title, unit = next((one for one in pace if key.startswith(one)), ""), key.rpartition(" | ")[2]
        if unit not in TIMES:
            result[key] = value
        elif title in run.get("pace", {}):
            slower = pace[title] / run["pace"][title]
            result[key] = value / slower if unit == PER_SECOND else value * slower
    return result


def note(result: Run, part: Part, rows: Sequence[Row]) -> None:
    """Take in a part's figures; a peer's stand beside those that they belong to."""
    by_name = {tuple(_VERSION.sub("", str(row[name])) for name in part.names): row for row in rows}
    for name, row in by_name.items():
        if name and name[0] in part.peers.values():
            continue
        peer = part.peers.get(name[0]) if name else None
        beside = by_name.get((peer, *name[1:])) if peer else None
        for column in part.figures:
            value = row.get(column)
            if value is None:
                continue
            key = f"{', '.join((part.title, *name))} | {column}"
            result.figures[key] = float(value)
            if beside is not None and peer is not None and beside.get(column) is not None:
                result.peers[key] = peer, float(beside[column] or 0)


_VERSION = re.compile(r" \d+\.[\w.]+$")
"""At the end of a program's name; its figures are compared over versions."""


def worse(figures: Figures, before: Sequence[Figures]) -> dict[str, float]:
    """Return by how many times each figure is worse than the median of the runs before, where that is over 15 %."""
    found = {}
    for key, value in figures.items():
        usual = usual_of(key, before)
        if usual is None or abs(value - usual) < _least(key):
            continue
        times = _over(usual, value) if key.endswith(PER_SECOND) else _over(value, usual)
        if times is not None and times > 1 + WORSE_BY:
            found[key] = times
    return found


def usual_of(key: str, before: Sequence[Figures]) -> float | None:
    """Return the median of a figure in the runs before; None where none of them has it."""
    known = [one[key] for one in before if key in one]
    return statistics.median(known) if known else None


def page(result: Run, entry: Mapping[str, Any], before: Sequence[Figures]) -> str:
    """Return RESULTS.md."""
    slower = worse(result.figures, before)
    lines = [
        "# Figures of the last run",
        "",
        f"`make benchmark` wrote this page on {entry['date']} at commit {entry['commit']}: {entry['machine']}, load"
        f" {entry['load']}. Times are of the CPU. Each figure stands beside the median of the last {KEPT} runs before"
        " (`results.jsonl`), and beside the peer's of the same run. Times of the runs before are what they would have"
        f" been at this run's pace: {_number(_mean(result.pace.values()))} s for a fixed piece of work.",
        "",
        *_verdict(slower, before),
        "",
        "| what | unit | now | before | now / before | peer | peer / now |",
        "|---|---|---|---|---|---|---|",
        *(_line(key, value, result, before, key in slower) for key, value in result.figures.items()),
    ]
    lines += ["", "| not run | needs |", "|---|---|"] if result.not_run else []
    lines += [f"| {title} | {why} |" for title, why in result.not_run.items()]
    lines += ["", "| what | command |", "|---|---|"]
    lines += [f"| {title} | `{command}` |" for title, command in result.commands.items()]
    return "\n".join([*lines, ""])


def _verdict(slower: Mapping[str, float], before: Sequence[Figures]) -> Iterator[str]:
    if not before:
        yield "No run before this one is known, so nothing is compared."
    elif not slower:
        yield f"No figure is more than {WORSE_BY:.0%} worse than before."
    else:
        for key, times in sorted(slower.items(), key=lambda one: -one[1]):
            yield f"- **{_words(key)}** is worse than before by a factor of {times:.2f}."


def _line(key: str, value: float, result: Run, before: Sequence[Figures], is_worse: bool) -> str:
    title, _, unit = key.partition(" | ")
    usual, (peer, of_peer) = usual_of(key, before), result.peers.get(key, ("", None))
    cells = [
        f"**{title}**" if is_worse else title,
        unit,
        _number(value),
        _number(usual),
        _number(None if usual is None else _over(value, usual)),
        f"{peer} {_number(of_peer)}" if peer else "",
        _number(None if of_peer is None or value < _least(key) else _over(of_peer, value)),
    ]
    return f"| {' | '.join(cells)} |"


def _least(key: str) -> float:
    return LEAST.get(key.rpartition(" | ")[2], 0.0)


def _mean(values: Collection[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _over(value: float, other: float) -> float | None:
    return value / other if other else None


def _words(key: str) -> str:
    return key.replace(" | ", ", ")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(word: str) -> str:
    """Return a word of a command as somebody in the repository's folder would write it; given paths by their names."""
    path = Path(word)
    if path.is_absolute():
        root = HERE.parent
        return str(path.relative_to(root)) if path.is_relative_to(root) else path.name
    return os.path.normpath(f"benchmarks/{word}") if word.endswith(".py") else word


def entry_of(figures: Figures) -> dict[str, Any]:
    """Return a run as it is kept: when, at which commit and load, and its figures."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude", "*"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": found.stdout.strip() or "unknown",
        "machine": f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}",
        "load": round(os.getloadavg()[0], 1),
        "figures": figures,
    }


def main(words: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """Run, write and compare; 1 where a part failed, or with --check where a figure is worse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta-python", help="the interpreter of an environment with HolisticTraceAnalysis")
    parser.add_argument("--tracelens", help="TraceLens_generate_multi_rank_collective_report_pytorch")
    parser.add_argument("--traces", help="a folder of one recording's Kineto files, for TraceLens")
    parser.add_argument(
        "--trace", default=str(min(SAMPLE.glob("*.json.gz"))), help="the Kineto file that is made larger"
    )
    parser.add_argument("--pattern", default="*.json.gz", help="names of these files, a * where the rank stands")
    parser.add_argument("--only", help="run the parts whose title contains this, and keep nothing")
    parser.add_argument("--folder", type=Path, default=HERE, help="where RESULTS.md and results.jsonl are")
    parser.add_argument("--check", action="store_true", help="exit status 1 where a figure is worse")
    options = parser.parse_args(words)
    kept = options.folder / "results.jsonl"
    runs = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    chosen = [part for part in parts if not options.only or options.only in part.title]
    entry = entry_of({})  # the load is that of before the run, which makes one itself
    result = run(chosen, vars(options))
    entry |= {"figures": result.figures, "pace": result.pace}
    before = [at_pace(one, result.pace) for one in runs[-KEPT:]]
    text = page(result, entry, before)
    print(text)
    if not options.only and not result.failed:
        (options.folder / "RESULTS.md").write_text(text, encoding="utf-8")
        lines = [json.dumps(one, ensure_ascii=False) for one in [*runs, entry][-KEPT:]]
        kept.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return int(result.failed or (options.check and bool(worse(result.figures, before))))


if __name__ == "__main__":
    sys.exit(main())
