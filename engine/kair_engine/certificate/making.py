"""Writes a certificate: what a verdict was worked out from, as far as `verify` can work it out again.

What `verify` would not come to is recorded as stated, and named so: a certificate says no more than it proves.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from kair_engine.arrays import Bools, Ints
from kair_engine.certificate import verify
from kair_engine.errors import InputError, UsageError
from kair_engine.localize.detect import Left
from kair_engine.localize.noise import inflation_of
from kair_engine.localize.peers import NOTHING_POOLED, Columns, Pooled, Spread
from kair_engine.localize.shapes import Steady, roles_left
from kair_engine.localize.signals import Signal, signals_of
from kair_engine.results.triage import Finding, OpenItem, TriageResult
from kair_engine.results.whatif import Fix, FixPrice
from kair_engine.stats import median
from kair_engine.timeline.account import KINDS
from kair_engine.trace.model import Trace, require_steps
from kair_engine.triage.analysis import Investigated, investigated
from kair_engine.triage.ranks.kernel_times import measured_signals
from kair_engine.whatif.model import Baseline

_MOST_REPLAYED: Final = 16
"""Accused or priced findings that are replayed one by one, as triage does."""
_MOST_CELLS: Final = 64 * 64
"""Steps of ranks: of more a certificate has no excess of every step."""
_FEWEST_STEPS: Final = 2
"""Of fewer no variance over steps follows, and the chances stay as recorded."""
_NEAR: Final = 1e-6
"""A figure is worked out as it was printed if it is within this part of it; prices within a nanosecond, too."""

Places = tuple[int, ...]
Recorded = dict[str, Any]


def certificate(
    trace: Trace, result: TriageResult, files: Iterable[Path], rules: Mapping[str, str], gpu_cost: float | None
) -> bytes:
    """Return the certificate of a verdict on a recording that has times of steps. Raises UsageError for any other.

    Raises InputError where recorded figures contradict one another.
    """
    if trace.job.progress:
        raise UsageError("a certificate needs the times of steps, which this recording lacks")
    require_steps(trace)
    try:
        recorded = _recorded(trace, result, investigated(trace, gpu_cost), gpu_cost)
    except verify.Refused as error:
        raise InputError(f"no certificate can be written of this recording: {error}") from None
    document: Recorded = {
        "certificate": "kair.triage",
        "version": verify.VERSION,
        "says": verify.SAYS,
        "rules": dict(rules),
        "inputs": [_file(path) for path in files],
        "recorded": recorded,
        "derived": verify.derived(recorded),
    }
    return verify.encoded({**document, "sha256": verify.digest(document)})


def _recorded(trace: Trace, result: TriageResult, of: Investigated, gpu_cost: float | None) -> Recorded:
    job, seen = trace.job, of.seen
    recorded: Recorded = {
        "job": job.name,
        "world_size": job.world_size,
        "gpu_cost": None if gpu_cost is None else float(gpu_cost),
        "ranks": list(job.ranks),
        "steps": list(seen.trace.steps),
        "length_ns": _lengths(seen.trace),
        "longest": False,
        "account": _account(of),
        "bubble_ns": None,
        "looks": [_look(left, job.ranks) for left in seen.found.detections.left],
        "excess_quarter_ns": {},
        "replays": None,
        "findings": [],
        "together": None,
        "accused_together": None,
        "open": [_open(one) for one in result.open],
        "shared_us": of.shared_us,
        "verdict": None,
    }
    step_us = verify.derived(recorded)["step_time_us"]
    recorded["longest"] = not math.isclose(step_us, result.step_time_us, rel_tol=_NEAR)
    _state_chances(recorded, seen.found.detections.left)
    _add_steps(recorded, of)
    _add_bar(recorded, result)
    _add_findings(recorded, result, _replay(of, result.findings))
    if verify.derived(recorded)["verdict"] != result.verdict:
        recorded["verdict"] = result.verdict
    return recorded


def _lengths(trace: Trace) -> list[list[int]]:
    """Return (steps × ranks), 0 where a rank has no whole step."""
    times, place = trace.job.step_times, {int(rank): at for at, rank in enumerate(trace.job.ranks)}
    row = {step: at for at, step in enumerate(trace.steps)}
    lengths = [[0] * len(place) for _ in row]
    for rank, step, ns in zip(times.rank, times.step, times.duration_ns, strict=True):
        if step in row and rank in place and rank not in trace.job.cut_off.get(step, ()):
            lengths[row[step]][place[rank]] = ns
    return lengths


def _account(of: Investigated) -> Recorded:
    """Return the rows of the steps that were divided, by kind; without kinds that no rank spends time on."""
    spent, steps = of.seen.tables.parts.spent_ns, of.seen.trace.steps
    divided = [step for step in steps if step in spent]
    sums = {step: spent[step].sum(axis=1).astype("int64") for step in divided}
    by_kind = {kind: [sums[step][at].tolist() for step in divided] for at, kind in enumerate(KINDS)}
    return {
        "steps": [steps.index(step) for step in divided],
        "ns": {kind: rows for kind, rows in by_kind.items() if any(map(any, rows))},
    }


def _look(left: Left, ranks: Sequence[int]) -> Recorded:
    return {
        "members": [ranks[place] for place in left.members],
        "tests": left.tests,
        "rows": [list(row) for row in left.rows],
        "operators": [[row.name, row.chance] for row in left.operators],
        "silent": left.silent,
        "tests_by_steps": [],
        "stated": None if left.rows else left.chance,
    }


def _state_chances(recorded: Recorded, every: Sequence[Left]) -> None:
    """State the chances that do not follow from their rows."""
    for look, left in zip(recorded["looks"], every, strict=True):
        if look["stated"] is None:
            only = verify.derived({**recorded, "looks": [{**look, "tests": 0}]})["looks"][0]["chance"]
            look["stated"] = None if math.isclose(only, left.chance, rel_tol=_NEAR) else left.chance


def _add_steps(recorded: Recorded, of: Investigated) -> None:
    """Add what ranks take beyond their role in every step, where the chances of a look follow from that."""
    job, kernel = of.seen.found.job, of.seen.kernel
    if len(job.ranks) * len(job.steps) > _MOST_CELLS or len(job.steps) < _FEWEST_STEPS or not recorded["looks"]:
        return
    table = signals_of(job, measured_signals(job, kernel.processor, kernel.given, kernel.held))
    steady = [one for one in table if "steady" in one.shapes and one.asked is None]
    excess = {one.name: np.rint(one.above_ns * 4).astype(np.int64).tolist() for one in steady}
    remain, used = np.ones(len(job.ranks), dtype=bool), set[str]()
    for look, left in zip(recorded["looks"], of.seen.found.detections.left, strict=True):
        for one in steady if left.rows else ():
            test = _test(one, left.members[0], remain, job.role)
            known = next(row.chance for row in left.rows if (row.name, row.shape) == (one.name, "steady"))
            _, chance = verify.of_steps(excess[one.name], test)
            if abs(math.log(chance / known)) < verify.NEAR_CHANCE:
                look["tests_by_steps"].append(test)
                used.add(one.name)
        remain[list(left.members)] = False
    recorded["excess_quarter_ns"] = {name: rows for name, rows in excess.items() if name in used}


def _test(signal: Signal, place: int, left: Bools, role: Ints) -> Recorded:
    """Return what a steady test knows besides the ranks' excess in every step; places among the ranks."""
    own = role == role[place]

    def spread(members: Bools) -> Spread:
        return Spread(float(median(signal.usual_ns[members])), float(median(signal.wide_ns[members])))

    means, pooled = Steady([signal], role).means, NOTHING_POOLED
    others = [members for members in roles_left(role, left) if not members[place]]
    if others:
        pooled = Pooled.together([Pooled.of(means.at(members), spread(members)) for members in others])
    of_role, usual = signal.above_ns[:, own], spread(left & own)
    return {
        "name": signal.name,
        "rank": place,
        "role": np.flatnonzero(own).tolist(),
        "left": np.flatnonzero(own & left).tolist(),
        "inflation": inflation_of(len(of_role), Columns.of(of_role).correlation),
        "usual_ns": usual.usual_ns,
        "wide_ns": usual.wide_ns,
        "pooled": [float(np.sum(pooled.squares)), pooled.df],
    }


def _add_bar(recorded: Recorded, result: TriageResult) -> None:
    """Add what ranks wait in the ideal job, where the bar follows from it and the account."""
    if result.bar is None:
        return
    by_rank = {int(one.rank): one.parts for one in result.bar.ranks}
    told = [by_rank.get(rank, result.bar.parts) for rank in recorded["ranks"]]
    recorded["bubble_ns"] = [next(part.us for part in parts if part.part == "bubble") * 1e3 for parts in told]
    again = verify.derived(recorded)["bar_us"]
    near = (math.isclose(again[one.part], one.us, rel_tol=_NEAR, abs_tol=1e-3) for one in result.bar.parts)
    if not all(near):
        recorded["bubble_ns"] = None


def _open(one: OpenItem) -> Recorded:
    whole = one.us_per_step / one.share_of_step if one.share_of_step else 1.0
    return {"kind": one.kind, "ranks": list(one.ranks), "us_per_step": one.us_per_step, "of_us": whole}


def _replay(of: Investigated, findings: Sequence[Finding]) -> Recorded | None:
    """Return the step times that prices follow from; None where the recording cannot be replayed, or in part only."""
    replays = of.seen.replays
    fixes = {at: one.fix for at, one in enumerate(findings) if one.fix and one.priced_by == "replay"}
    if not fixes or not replays.sample.is_whole:
        return None
    accused = tuple(at for at in fixes if findings[at].pattern != "job_wide")
    asked: list[Places] = [(at,) for at in list(fixes)[:_MOST_REPLAYED]]
    for places in (tuple(fixes), accused) if len(fixes) > 1 else ():
        asked += [places, *(tuple(other for other in places if other != at) for at in accused[:_MOST_REPLAYED])]
    asked = [places for places in dict.fromkeys(asked) if places]
    undone: list[tuple[Fix, ...]] = [tuple(fix for at in places for fix in fixes[at]) for places in asked]
    with suppress(InputError, UsageError):
        recorded, *times = replays.model().replay([Baseline.RECORDED, *undone]).times.tolist()
        without = [{"findings": list(places), "ns": ns} for places, ns in zip(asked, times, strict=True)]
        return {"recorded_ns": recorded, "without": without}
    return None


def _add_findings(recorded: Recorded, result: TriageResult, replays: Recorded | None) -> None:
    """Add the findings, and what several cost together: by the replays where these come to what was printed."""
    recorded["replays"], findings = replays, result.findings
    p_values = [one["p_value"] for one in verify.derived(recorded)["looks"]]
    recorded["findings"] = [_finding(one, recorded["looks"], p_values) for one in findings]
    for at, one in enumerate(findings):
        _choose(recorded, recorded["findings"][at], "price", _replays_come_to(at, one))
    replayed = [at for at, one in enumerate(findings) if one.fix and one.priced_by == "replay"]
    accused = [at for at in replayed if findings[at].pattern != "job_wide"]
    for name, price, places in (
        ("together", result.together, replayed),
        ("accused_together", result.accused_together, accused),
    ):
        if price is not None:
            stated = {"us": price.saved_us, "of_us": price.saved_us + price.step_time_us}
            recorded[name] = {"findings": places, "price": stated}
            _choose(recorded, recorded[name], "price", _saved_is(name, price))
    for at, one in enumerate(findings):
        if one.least_us_per_step is not None and one.most_us_per_step is not None and recorded["accused_together"]:
            first = math.isclose(one.time_lost_us_per_step, one.least_us_per_step, abs_tol=1e-3)
            recorded["findings"][at]["part"] = one.most_us_per_step if first else one.least_us_per_step
            _choose(recorded, recorded["findings"][at], "part", _replays_come_to(at, one))


def _finding(one: Finding, looks: Sequence[Recorded], p_values: Sequence[float]) -> Recorded:
    """Return a finding whose price is stated; p follows from the first look at some of its ranks that comes to it."""
    p = one.p_value
    accusing = (
        at
        for at, (look, of_look) in enumerate(zip(looks, p_values, strict=True))
        if p is not None and set(look["members"]) <= set(one.ranks) and math.isclose(of_look, p, rel_tol=_NEAR)
    )
    lost_us, slowdown = one.time_lost_us_per_step, one.slowdown
    before_us = lost_us * slowdown / (slowdown - 1) if slowdown > 1 else max(lost_us * 2, 1.0)
    return {
        "cause": one.cause,
        "pattern": one.pattern,
        "ranks": list(one.ranks),
        "operator": one.operator,
        "look": next(accusing, None),
        "p_value": p,
        "price": {"us": lost_us, "of_us": before_us},
        "part": None,
    }


def _replays_come_to(at: int, one: Finding) -> Callable[[Recorded], bool]:
    names = ("time_lost_us_per_step", "slowdown", "gpu_hours_per_day", "least_us_per_step", "most_us_per_step")

    def come(derived: Recorded) -> bool:
        found = derived["findings"][at]
        pairs = ((found[name], getattr(one, name)) for name in names if found[name] is not None)
        return all(math.isclose(mine, its, rel_tol=_NEAR, abs_tol=1e-3) for mine, its in pairs)

    return come


def _saved_is(name: str, price: FixPrice) -> Callable[[Recorded], bool]:
    return lambda derived: math.isclose(derived[name]["saved_us"], price.saved_us, rel_tol=_NEAR, abs_tol=1e-3)


def _choose(recorded: Recorded, of: Recorded, field: str, follows: Callable[[Recorded], bool]) -> None:
    """Take a figure from the replays, if what was printed follows from them; else leave it as stated."""
    stated, of[field] = of[field], "replay"
    with suppress(verify.Refused, TypeError, StopIteration):
        if follows(verify.derived(recorded)):
            return
    of[field] = stated


def _file(path: Path) -> Recorded:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": found}
