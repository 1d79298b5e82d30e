"""Ask Kair about training loops recorded on a real GPU: each process by itself, and the jobs composed of them.

python validation/real/on_gpu/ask_loops.py --loops LOOPS... --jobs JOBS [--seeds 4:1000] [--write FILE] [--all]
python validation/real/on_gpu/ask_loops.py --kept FILE... [--all]

LOOPS are folders of seeds (`packing.unpack`), JOBS is what compose.py filled. Of a loop the step time and the launch
queue are compared with what its own events measured; of a job who is accused, of what, and at what price with the
truth. FILE keeps the answers, small: the tables can be printed again without the recordings.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from take_report import aligned
from take_scoring import ENOUGH_STEPS

from on_gpu.compose import TOLD, TRACE, folders_of
from on_gpu.loop_drawing import FIRST_FOR_REPORTING
from on_gpu.loop_parts import seeds_of

if TYPE_CHECKING:
    from kair_engine.trace.model import Trace

CERTAIN, CLEAR = 0.05, 0.1
"""Of the period: faults that cost so much are to be found, and those that cost more all the more so."""
NEAR: Final = 0.15
"""A price is right within so much of what the fault costs."""
REALLY_SLOWER: Final = 0.05
"""Of the period: a rank that by itself takes so much longer than its peers is no innocent, fault or not."""
AHEAD_US: Final = 1000.0
"""A loop that is as far ahead of its device when its window begins counts as one that runs ahead."""
SAME: Final = 0.02

Said = dict[str, Any]
"""What is kept of a loop or a job: the truth, and the answer."""
Row = tuple[str, ...]

LOOP_HEADS: Final = (
    "wait of the host",
    "loops",
    "no answer",
    "ahead",
    "told so",
    "told so of others",
    "within 2 %",
    "error",
    "depth",
    "findings",
)
HEALTHY_HEADS: Final = (
    "healthy jobs",
    "jobs",
    "any finding",
    "rank accused",
    "of these really slower",
    "some rank really slower",
)
FAULT_HEADS: Final = (
    "faults",
    "≥ 5 %",
    "rank",
    "rank and cause",
    "≥ 10 %",
    "rank",
    "rank and cause",
    "price",
    "by a peer",
    "absorbed",
    "accused",
    "between",
)


def main() -> int:
    """Ask, or read what was kept, and print the tables; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=Path, nargs="*", default=[], help="folders of seeds")
    parser.add_argument("--jobs", type=Path, help="the folder that compose.py filled")
    parser.add_argument("--seeds", default=f"{FIRST_FOR_REPORTING}:1000000", help="FIRST:STOP; the first were tuned on")
    parser.add_argument("--cache", type=Path, help="where read traces are kept (default: a temporary folder)")
    parser.add_argument("--write", type=Path, help="a file for the answers")
    parser.add_argument("--kept", type=Path, nargs="*", default=[], help="files that --write wrote")
    parser.add_argument("--all", action="store_true", help="a line for each loop and job")
    options = parser.parse_args()
    answers: dict[str, list[Said]] = {"loops": [], "jobs": []}
    for path in options.kept:
        for part, kept in read_kept(path).items():
            answers[part] += kept
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or Path(temporary)
        for folder in folders_of(options.loops, options.seeds):
            answers["loops"] += [ask_loop(folder, name, cache) for name in names_of(folder)]
        for folder in jobs_of(options.jobs, options.seeds) if options.jobs else []:
            answers["jobs"].append(ask_job(folder, cache))
    if options.write is not None:
        write_kept(options.write, answers)
    shown = {
        part: [one for one in of if seed_of(one["name"]) in seeds_of(options.seeds)] for part, of in answers.items()
    }
    print(page(shown["loops"], shown["jobs"], every=options.all))
    return 0


def read_kept(path: Path) -> dict[str, list[Said]]:
    """The answers of a file."""
    kept: dict[str, list[Said]] = json.loads(lzma.decompress(path.read_bytes()))
    return kept


def write_kept(path: Path, answers: dict[str, list[Said]]) -> None:
    """Keep the answers."""
    path.write_bytes(lzma.compress(json.dumps(answers, separators=(",", ":")).encode(), preset=9))


def names_of(folder: Path) -> list[str]:
    """Of the recordings of a seed."""
    return sorted(path.name.removesuffix(TRACE) for path in folder.glob(f"*{TRACE}"))


def jobs_of(folder: Path, seeds: str) -> list[Path]:
    """The folders of the composed jobs of these seeds."""
    found = sorted(path.parent for path in folder.glob("seed*/truth.json"))
    return [path for path in found if seed_of(path.name) in seeds_of(seeds)]


def seed_of(name: str) -> int:
    """Of a loop's or a job's name."""
    return int(name[4:8])


def ask_loop(folder: Path, name: str, cache: Path) -> Said:
    """What Kair says of one process, beside what its loop measured."""
    told = json.loads((folder / f"{name}{TOLD}").read_text(encoding="utf-8"))
    loop, measured = told["loop"], told["measured"]
    return {
        "name": f"{folder.name}/{name}",
        "shape": {key: loop[key] for key in ("model", "way", "sync", "sync_every", "input", "optimizer")},
        "fault": None if told["fault"] is None else told["fault"]["cause"],
        "kernels": told["kernels_of_a_step"],
        "steps": len(measured["steps"]) - measured["first_profiled"],
        "period_us": measured["period_us"],
        "lead_us": measured["lead_us"][measured["first_profiled"]],
        "answer": ask(folder / f"{name}{TRACE}", cache),
    }


def ask_job(folder: Path, cache: Path) -> Said:
    """What Kair says of a composed job, beside its truth."""
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    loop = truth["loop"]
    kept = ("name", "verdict", "absorbed", "period_us", "healthy_period_us", "loss_us", "loss_of_period", "faults")
    return {
        **{key: truth[key] for key in kept},
        "shape": {key: loop[key] for key in ("model", "way", "sync", "sync_every", "input", "optimizer")},
        "costs": [one["costs_of_period"] for one in truth["ranks"]],
        "alone_us": [one["alone_us"] for one in truth["ranks"]],
        "lead_us": min(one["lead_us"] for one in truth["ranks"]),
        "steps": truth["recorded_steps"],
        "answer": ask(folder / "input", cache),
    }


def ask(source: Path, cache: Path) -> Said:
    """The answer to what is recorded there, or the error that kept Kair from one."""
    from kair_engine.errors import KairError
    from kair_engine.recording.opening import open_trace
    from kair_engine.triage.analysis import triage

    try:
        trace = open_trace(source, cache=cache, workers=1)
        result = triage(trace)
    except KairError as error:
        return {"error": str(error)}
    return {
        "verdict": result.verdict,
        **_of_job(trace),
        "first": result.ranking[0].rank,
        "findings": [
            {
                "cause": one.cause,
                "pattern": one.pattern,
                "ranks": [] if one.pattern == "job_wide" else [int(rank) for rank in one.ranks],
                "operator": None if one.operator is None else one.operator[:60],
                "price_us": round(one.time_lost_us_per_step, 1),
            }
            for one in result.findings
        ],
        "warnings": sorted({one.code for one in result.warnings}),
    }


def _of_job(trace: Trace) -> Said:
    """The mean of its steps, whether its hosts were found to run ahead, and its launch queues."""
    queues = trace.job.launch_queue.values()
    return {
        "period_us": round(mean(trace.job.step_times.duration_ns) / 1e3, 1),
        "ahead": trace.job.host_times is not None,
        "queues": [[int(one.depth), bool(one.per_stream)] for one in queues],
    }


def page(loops: Sequence[Said], jobs: Sequence[Said], *, every: bool) -> str:
    """The tables."""
    parts = []
    if loops:
        parts += [f"{len(loops)} recordings of single processes.", aligned(list(loop_table(loops)))]
        parts += ["\n".join(map(loop_line, loops))] if every else []
    if jobs:
        parts += [f"{len(jobs)} composed jobs, none left out.", aligned(list(healthy_table(jobs)))]
        parts += [aligned(list(fault_table(jobs)))]
        parts += ["\n".join(map(job_line, jobs))] if every else []
    return "\n\n".join(parts)


def loop_table(loops: Sequence[Said]) -> Iterator[Row]:
    """Step times and queues by how the loops wait."""
    yield LOOP_HEADS
    groups = _by(loops, lambda one: str(one["shape"]["sync"]))
    for name, of in {**groups, "all": list(loops)}.items():
        answered = [one for one in of if "error" not in one["answer"]]
        ahead = [one for one in answered if one["lead_us"] > AHEAD_US]
        others = [one for one in answered if one["lead_us"] <= AHEAD_US]
        errors = [abs(one["answer"]["period_us"] / one["period_us"] - 1) for one in answered]
        causes = Counter(finding["cause"] for one in answered for finding in _findings(one))
        depths = [depth for one in answered for depth, _ in one["answer"]["queues"]]
        yield (
            name,
            str(len(of)),
            str(len(of) - len(answered)),
            str(len(ahead)),
            _share(ahead, lambda one: one["answer"]["ahead"]),
            _share(others, lambda one: one["answer"]["ahead"]),
            _share(answered, lambda one: abs(one["answer"]["period_us"] / one["period_us"] - 1) <= SAME),
            f"{median(errors):.1%}, at most {max(errors):.1%}" if errors else "–",
            f"{min(depths)}–{max(depths)} of {len(depths)}" if depths else "–",
            ", ".join(f"{cause} {count}" for cause, count in causes.most_common()) or "–",
        )


def healthy_table(jobs: Sequence[Said]) -> Iterator[Row]:
    """What is said of jobs without a fault."""
    yield HEALTHY_HEADS
    healthy = [one for one in jobs if not one["faults"]]
    for name, of in _kinds(healthy):
        accused = [one for one in of if accused_of(one)]
        yield (
            name,
            str(len(of)),
            _share(of, lambda one: bool(_findings(one))),
            _share(of, lambda one: bool(accused_of(one))),
            _share(accused, lambda one: not innocent_of(one)),
            _share(of, lambda one: bool(slower_of(one))),
        )


def fault_table(jobs: Sequence[Said]) -> Iterator[Row]:
    """What is said of jobs with a fault, by what it costs."""
    yield FAULT_HEADS
    faulty = [one for one in jobs if one["faults"]]
    by_fault = _by(faulty, lambda one: str(one["faults"][0]["fault"]))
    for name, of in (*by_fault.items(), *_kinds(faulty)):
        certain = [one for one in of if one["loss_of_period"] >= CERTAIN]
        clear = [one for one in of if one["loss_of_period"] >= CLEAR]
        absorbed = [one for one in of if one["absorbed"]]
        right = [one for one in certain if is_right(one)]
        yield (
            name,
            str(len(certain)),
            _share(certain, names_rank),
            _share(certain, is_right),
            str(len(clear)),
            _share(clear, names_rank),
            _share(clear, is_right),
            _share(right, lambda one: is_priced(one, one["loss_us"])),
            _share(right, lambda one: is_priced(one, peer_cost_us(one))),
            str(len(absorbed)),
            _share(absorbed, lambda one: bool(innocent_of(one))),
            str(len(of) - len(certain) - len(absorbed)),
        )


def accused_of(job: Said) -> set[int]:
    """The ranks that some finding blames."""
    return {rank for finding in _findings(job) for rank in finding["ranks"]}


def slower_of(job: Said) -> set[int]:
    """The ranks that really are slower than their peers, by what they take alone or by what they cost the job."""
    alone: list[float] = job["alone_us"]
    typical = [median([*alone[:rank], *alone[rank + 1 :]]) for rank in range(len(alone))]
    shares = [(own - peers) / job["period_us"] for own, peers in zip(alone, typical, strict=True)]
    return {rank for rank, both in enumerate(zip(shares, job["costs"], strict=True)) if max(both) >= REALLY_SLOWER}


def innocent_of(job: Said) -> set[int]:
    """The accused who are not really slower, nor guilty of what the job lost time by."""
    guilty = set() if job["absorbed"] or not job["faults"] else set(job["faults"][0]["ranks"])
    return accused_of(job) - guilty - slower_of(job)


def names_rank(job: Said) -> bool:
    """Who is guilty is accused, and nobody who is innocent."""
    return set(job["faults"][0]["ranks"]) <= accused_of(job) and not innocent_of(job)


def fitting(job: Said) -> Said | None:
    """The finding that has the guilty rank and the true cause."""
    fault = job["faults"][0]
    found = (one for one in _findings(job) if one["ranks"] == fault["ranks"] and one["cause"] == fault["cause"])
    return next(found, None)


def is_right(job: Said) -> bool:
    """Who is guilty is accused, and of what, and nobody who is innocent."""
    return names_rank(job) and fitting(job) is not None


def is_priced(job: Said, cost_us: float) -> bool:
    """The right finding's price is near this cost."""
    found = fitting(job)
    return found is not None and abs(found["price_us"] - cost_us) <= NEAR * cost_us


def peer_cost_us(job: Said) -> float:
    """What the guilty rank costs beside a peer; its own recording without the fault may have been slower than those."""
    (guilty,) = job["faults"][0]["ranks"]
    return float(job["costs"][guilty]) * float(job["period_us"])


def loop_line(one: Said) -> str:
    """One recording."""
    answer, shape = one["answer"], " ".join(str(value) for value in one["shape"].values())
    measured = f"{one['period_us'] / 1e3:.2f} ms, ahead {one['lead_us'] / 1e3:.1f}"
    head = f"{one['name']:18} {shape} {one['fault'] or '-'}: {measured}"
    if "error" in answer:
        return f"{head}: {answer['error'][:100]}"
    queues = ", ".join(f"{depth}{' per stream' if apart else ''}" for depth, apart in answer["queues"]) or "no queue"
    found = "; ".join(f"{one['cause']} {one['price_us'] / 1e3:.2f}" for one in answer["findings"]) or answer["verdict"]
    told = f"{answer['period_us'] / 1e3:.2f} ms{' ahead' if answer['ahead'] else ''}"
    return f"{head} | {told} ({answer['period_us'] / one['period_us'] - 1:+.1%}), {queues}; {found}"


def job_line(one: Said) -> str:
    """One job."""
    fault = one["faults"][0] if one["faults"] else None
    guilty = "healthy" if fault is None else f"{fault['cause']} {fault['ranks']} costs {one['loss_us'] / 1e3:.2f}"
    costs = " ".join(f"{100 * cost:.0f}" for cost in one["costs"])
    of_period = f"{one['period_us'] / 1e3:.2f} ms ({one['loss_of_period']:.1%}; ranks {costs} %)"
    head = f"{one['name']:32} {guilty} of {of_period}"
    answer = one["answer"]
    if "error" in answer:
        return f"{head} | {answer['error'][:100]}"
    said = "; ".join(f"{x['cause']} {x['ranks']} {x['price_us'] / 1e3:.2f}" for x in answer["findings"])
    mark = "" if fault is None or one["loss_of_period"] < CERTAIN else "right: " if is_right(one) else "WRONG: "
    return f"{head} | {mark}{said or answer['verdict']} ({answer['period_us'] / 1e3:.2f} ms, first {answer['first']})"


def _findings(one: Said) -> list[Said]:
    found: list[Said] = one["answer"].get("findings", [])
    return found


def _by(of: Sequence[Said], key: Callable[[Said], str]) -> dict[str, list[Said]]:
    """In the order of the keys."""
    groups: dict[str, list[Said]] = {}
    for one in sorted(of, key=key):
        groups.setdefault(key(one), []).append(one)
    return groups


def _kinds(jobs: Sequence[Said]) -> list[tuple[str, list[Said]]]:
    """Jobs in which all hosts are ahead at the window's end, those in which some host is not, the longer ones, all."""
    ahead = [one for one in jobs if one["lead_us"] > AHEAD_US]
    behind = [one for one in jobs if one["lead_us"] <= AHEAD_US]
    longer = [one for one in jobs if one["steps"] >= ENOUGH_STEPS]
    named = f"{ENOUGH_STEPS} steps or more"
    return [("all hosts ahead", ahead), ("not ahead", behind), (named, longer), ("all", list(jobs))]


def _share(of: Sequence[Said], test: Callable[[Said], bool]) -> str:
    return f"{sum(map(test, of))} of {len(of)}" if of else "–"


if __name__ == "__main__":
    sys.exit(main())
