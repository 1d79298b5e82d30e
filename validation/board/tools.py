"""Asks each tool about a recording, in a process of its own, and returns what it said in one form."""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .inputs import PROJECT, Prepared
from .processes import ADDRESS_SPACE_GB, SECONDS, Ran, run
from .rules import NAMES as RULES

Said = Literal["accused", "nobody", "job_wide", "open", "unread", "not run", "stopped"]
TRACELENS: Final = "TraceLens_generate_multi_rank_collective_report_pytorch"
TOOLS: Final = ("Kair", "HTA", "TraceLens", *RULES)


@dataclass(frozen=True)
class Answer:
    """What a tool said: it accused ranks, or nobody, or left it open; or it was not able to say anything."""

    said: Said
    ranks: tuple[int, ...] = ()
    causes: tuple[str, ...] = ()
    since: tuple[int, ...] = ()
    """Steps since which a log's steps are slower."""
    lost_us: float | None = None
    note: str = ""
    cpu_s: float | None = None
    peak_mb: float | None = None


def ask_kair(prepared: Prepared) -> Answer:
    """Return the answer of `kair triage RECORDING --json`, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "kair_tui", "triage", str(prepared.recording), "--json"]
        ran = run(command, {"KAIR_CACHE": cache})
    try:
        data = json.loads(ran.out)["data"]
    except (ValueError, KeyError):
        return _unread(ran)
    return kair_answer(data, ran)


def kair_answer(data: Mapping[str, Any], ran: Ran | None = None) -> Answer:
    """Return what a triage's data say; the price is what all findings lose in a step, in µs."""
    verdict: dict[str, Said] = {"straggler": "accused", "no_straggler": "nobody", "job_wide": "job_wide"}
    findings = data["findings"]
    accused = [one for one in findings if one["ranks"]]
    changes = (data["log"] or {}).get("changes", [])
    slower = [one for one in changes if one["kind"] in ("slower", "slow_start")]
    costs = [one["time_lost_us_per_step"] for one in findings]
    return Answer(
        verdict.get(data["verdict"], "open"),
        tuple(dict.fromkeys(rank for one in accused for rank in one["ranks"])),
        tuple(dict.fromkeys(one["cause"] for one in findings)),
        tuple(one["since"] for one in slower),
        sum(costs) if costs and None not in costs else None,
        str(data["summary"]),
        ran.cpu_s if ran else None,
        ran.peak_mb if ran else None,
    )


def ask_rules(prepared: Prepared) -> dict[str, Answer]:
    """Return whom the three rules name."""
    with tempfile.TemporaryDirectory() as cache:
        ran = run([sys.executable, "-m", "validation.board.rules", str(prepared.recording)], _environment(cache))
    try:
        said = json.loads(ran.out)
    except ValueError:
        return dict.fromkeys(RULES, _unread(ran))
    return {name: _named(said[name]) for name in RULES}


def ask_hta(prepared: Prepared, python: Path | None) -> Answer:
    """Return the candidates of HTA's `get_potential_stragglers`; it always names some."""
    if not prepared.traces:
        return Answer("unread", note="its input is Kineto's JSON")
    if python is None:
        return Answer("not run")
    files = [f"{number}={path}" for number, path in enumerate(prepared.traces)]
    ran = run([str(python), str(Path(__file__).with_name("ask_hta.py")), *files])
    found = re.search(r"^answer: (.+)$", ran.out, re.MULTILINE)
    return _named(json.loads(found[1]), ran) if found and not ran.code else _unread(ran)


def ask_tracelens(prepared: Prepared, python: Path | None) -> Answer:
    """Return the first rank of TraceLens' straggler summary, which its makers say is the straggler."""
    if not prepared.traces:
        return Answer("unread", note="its input is Kineto's JSON")
    if python is None:
        return Answer("not run")
    first = prepared.traces[0]
    pattern = first.with_name(first.name.replace("rank0", "rank*"))
    with tempfile.TemporaryDirectory() as out:
        where = ["--trace_pattern", str(pattern), "--world_size", str(len(prepared.traces)), "--output_csvs_dir", out]
        ran = run([str(python.with_name(TRACELENS)), *where])
        table = Path(out, "straggler_summary.csv")
        if ran.code or not table.is_file():
            return _unread(ran)
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    return _named([int(row["rank"]) for row in rows[:1]], ran)


def _environment(cache: str) -> dict[str, str]:
    """Modules of the project are found from wherever the board is started."""
    return {"KAIR_CACHE": cache, "PYTHONPATH": ":".join([str(PROJECT), *filter(None, sys.path)])}


def _named(ranks: list[int], ran: Ran | None = None) -> Answer:
    took = {"cpu_s": ran.cpu_s, "peak_mb": ran.peak_mb} if ran else {}
    return Answer("accused" if ranks else "nobody", tuple(ranks), **took)  # type: ignore[arg-type]


def _unread(ran: Ran) -> Answer:
    if ran.timed_out:
        return Answer("stopped", note=f"more than {SECONDS} s")
    lines = [line.strip() for line in ran.error.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(kair: error|[\w.]+(Error|Exception)\b)", line)]
    said = (errors or lines or [f"exit code {ran.code}"])[-1].removeprefix("kair: error: ")
    if "MemoryError" in said:
        return Answer("stopped", note=f"more than {ADDRESS_SPACE_GB} GB")
    return Answer("unread", note=said[:160])
