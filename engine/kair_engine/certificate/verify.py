"""Checks a certificate of `kair triage --certificate` by arithmetic alone; it needs nothing but Python.

    python verify.py out.json

This proves the arithmetic, not that the recording is honest. Whatever is under `derived` is worked out anew from what
is under `recorded`, and every row of the account must add up to its step. Who wrote the recorded figures is not proved.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

SAYS: Final = "This proves the arithmetic, not that the recording is honest."
VERSION: Final = "1.0"
MOST_BYTES: Final = 16 << 20
_MOST_DF, _MOST_CELLS, _MOST_FINDINGS = 10_000, 10_000_000, 1_000
"""What takes more than a few seconds is refused: nobody knows who wrote a certificate."""
FALSE_ALARM_RATE, RANK_SHARE, LEAVES_OPEN = 0.01, 0.75, 0.05
"""One of a hundred healthy jobs may be accused; the tests of ranks may use so much of that; so large a part of the step
that nothing explains leaves the verdict open."""
VERDICTS: Final = ("straggler", "job_wide", "no_straggler", "inconclusive")
BAR: Final = ("compute", "bubble", "communication", "stragglers", "job_wide", "other")
_PART_OF_KIND: Final = {"compute": "compute", "copies": "compute", "transfer": "transfer", "waiting": "waiting"} | {
    **dict.fromkeys(("queued", "begins", "launching"), "other"),
    "unmatched": "unmatched",
}
"""All other kinds are what all ranks lose alike: input and hosts."""
_HOURS_PER_DAY, _MOST, _ROUNDING = 24.0, 1 << 62, 1e-12
_TRIM, _PRIOR, NEAR_CHANCE = 0.2, 6.0, 3e-3
"""The tails of trimmed means, the prior's degrees of freedom, and how far off the logarithm of a chance may be."""


Json = Any
"""Whatever a certificate may hold."""


class Refused(ValueError):  # noqa: N818  (it is an answer, and no error of the program)
    """The certificate does not hold: the text says what does not follow."""


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return the one text of a document. Raises ValueError for figures that are no numbers."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode() + b"\n"


def digest(document: Mapping[str, Any]) -> str:
    """Return the digest of all but the digest."""
    return hashlib.sha256(encoded({key: value for key, value in document.items() if key != "sha256"})).hexdigest()


def check(text: bytes) -> dict[str, Any]:
    """Return the certificate, if all of it follows. Raises Refused."""
    if len(text) > MOST_BYTES:
        raise Refused(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise Refused("it is no certificate: no object")
        if encoded(document) != text:
            raise Refused("its text was changed: it is not written as certificates are")
        if document.get("sha256") != digest(document):
            raise Refused("its digest is another one: something was changed")
        require(document)
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError):
        raise Refused("it is no certificate: not JSON, or nested too deeply") from None
    except ValueError as error:
        raise (error if isinstance(error, Refused) else Refused(f"it is no certificate: {str(error)[:80]}")) from None
    return document


def require(document: Mapping[str, Any]) -> None:
    """Raise Refused with the first thing that does not follow; the digest is not looked at."""
    if set(document) != {"certificate", "version", "says", "rules", "inputs", "recorded", "derived", "sha256"}:
        raise Refused("it is no certificate: other fields")
    if (document["certificate"], document["version"], document["says"]) != ("kair.triage", VERSION, SAYS):
        raise Refused(f"it is no certificate of version {VERSION}")
    try:
        rules, files, of = document["rules"], document["inputs"], document["recorded"]
        words = (*rules.values(), rules["kair"], of["job"], *(one["name"] for one in files))
        if not all(isinstance(one, str) for one in words) or not all(type(one) is int for one in of["ranks"]):
            raise Refused("its names are no words, or its ranks no numbers")
        again = derived(of)
    except (LookupError, TypeError, AttributeError, ArithmeticError, StopIteration) as error:
        raise Refused(f"its recorded figures are incomplete or wrong: {type(error).__name__} {error}"[:120]) from None
    for place, stated, known in _pairs(document["derived"], again, "derived"):
        if not _same(stated, known):
            raise Refused(f"{place} does not follow: it says {str(stated)[:40]}, which comes to {str(known)[:40]}")


def derived(of: Mapping[str, Any]) -> dict[str, Any]:
    """Work out all that follows from what was recorded; figures have nine digits. Raises Refused for sums that differ.

    What is null was not recorded so that it could be worked out: `stated` names it.
    """
    ranks, lengths = of["ranks"], of["length_ns"]
    if not ranks or len(set(ranks)) != len(ranks) or len(lengths) != len(of["steps"]):
        raise Refused("recorded.length_ns has not one row for each step")
    for row in lengths:
        _counts(row, len(ranks), "recorded.length_ns")
    middle: Callable[[list[int]], float] = max if of["longest"] else _median
    step_ns = _mean([middle([one for one in row if one]) for row in lengths])
    looks = _looks(of["looks"], of["excess_quarter_ns"])
    findings = [_finding(one, at, of, looks, step_ns) for at, one in enumerate(of["findings"][:_MOST_FINDINGS])]
    opened = [_number(one["us_per_step"]) / _number(one["of_us"]) for one in of["open"]]
    result = {
        "account_ns": _account(of["account"], lengths, len(ranks)),
        "step_time_us": step_ns / 1e3,
        "bar_us": _bar(of),
        "looks": looks,
        "findings": findings,
        "together": _together(of, "together", findings, step_ns),
        "accused_together": _together(of, "accused_together", findings, step_ns),
        "open_shares": opened,
        "verdict": _verdict(of, findings, opened),
        "stated": list(_stated(of)),
    }
    return dict(_rounded(result))


def _account(account: Mapping[str, Any], lengths: Sequence[Sequence[int]], ranks: int) -> dict[str, int]:
    """Return the sums by kind. Raises Refused where a step's rows do not add up to its length on a rank."""
    places, by_kind = account["steps"], account["ns"]
    if len(set(places)) != len(places) or any(len(rows) != len(places) for rows in by_kind.values()):
        raise Refused("recorded.account has not one row for each of its steps")
    for kind, rows in by_kind.items():
        for row in rows:
            _counts(row, ranks, f"recorded.account.{kind}")
    for row, place in enumerate(places):
        for rank in range(ranks):
            found = sum(rows[row][rank] for rows in by_kind.values())
            if found != lengths[place][rank]:
                where = f"step {row + 1} of the account, rank {rank + 1} of the list"
                raise Refused(f"{where}: its rows add up to {found} ns, and the step took {lengths[place][rank]} ns")
    return {kind: sum(map(sum, rows)) for kind, rows in by_kind.items()}


def _bar(of: Mapping[str, Any]) -> dict[str, float] | None:
    """Return where the mean step goes; of waiting the recorded part is what ranks wait in the ideal job too."""
    if of["bubble_ns"] is None:
        return None
    by_kind, places, whole = of["account"]["ns"], of["account"]["steps"], dict.fromkeys(BAR, 0.0)
    for rank, ideal in enumerate(of["bubble_ns"]):
        parts = dict.fromkeys(("compute", "transfer", "waiting", "unmatched", "job_wide", "other"), 0)
        for kind, rows in by_kind.items():
            parts[_PART_OF_KIND.get(kind, "job_wide")] += sum(row[rank] for row in rows)
        seen = sum(of["length_ns"][place][rank] > 0 for place in places)
        bubble = min(parts["waiting"], _number(ideal) * seen)
        communication = parts["transfer"] + (parts["unmatched"] if len(of["ranks"]) == 1 else 0)
        other = parts["other"] + (0 if len(of["ranks"]) == 1 else parts["unmatched"])
        of_rank = (parts["compute"], bubble, communication, parts["waiting"] - bubble, parts["job_wide"], other)
        for name, ns in zip(BAR, of_rank, strict=True):
            whole[name] += ns
    cells = sum(one > 0 for place in places for one in of["length_ns"][place])
    return {name: ns / cells / 1e3 for name, ns in whole.items()}


def _looks(looks: Sequence[Mapping[str, Any]], excess: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return of each look at all ranks the chance of who left, and its p, corrected for all that was looked at."""
    found, least = list[dict[str, Any]](), math.inf
    cells = ((len(excess[one["name"]]) + 500) * len(one["role"]) for look in looks for one in look["tests_by_steps"])
    if sum(cells) > _MOST_CELLS:
        raise Refused("recorded.looks has more tests than any triage makes")
    for look in reversed(looks):
        t_values = {}
        for test in look["tests_by_steps"]:
            name, shown = test["name"], [row for row in look["rows"] if row[:2] == [test["name"], "steady"]]
            t_values[name], by_steps = of_steps(excess[name], test)
            if abs(math.log(by_steps / _number(shown[0][3]))) > NEAR_CHANCE:
                raise Refused(f"the chance of {name} does not follow from its steps: {by_steps:.4g}")
        chance = _number(look["stated"]) if look["stated"] is not None else _of_rows(look)
        least = min(least, chance * _number(look["tests"]))
        found.append({"chance": chance, "p_value": min(1.0, least / RANK_SHARE), "t": t_values})
    if looks and found[0]["p_value"] >= FALSE_ALARM_RATE:
        raise Refused("the last of recorded.looks accuses nobody")
    return found[::-1]


def of_steps(rows: Sequence[Sequence[int]], test: Mapping[str, Any]) -> tuple[float, float]:
    """Return t of a rank's excess, and the chance of that: Student's, moderated by what healthy ranks differ by."""
    steps, cut, of_rank = len(rows), int(len(rows) * _TRIM), dict[int, tuple[float, float]]()
    ordered = {rank: sorted(_number(row[rank]) / 4 for row in rows) for rank in test["role"]}
    usual = _median([_variance(values) for values in ordered.values()])
    for rank, values in ordered.items():
        kept = values[cut : steps - cut]
        own = _variance([min(max(one, kept[0]), kept[-1]) for one in values]) * (steps / len(kept)) ** 2
        of_rank[rank] = math.fsum(kept) / len(kept), max(usual, own) * _number(test["inflation"]) / steps
    left, noise = [of_rank[rank] for rank in test["left"]], of_rank[test["rank"]][1]
    count, mean, (squares, more) = len(left), _mean([one for one, _ in left]), map(_number, test["pooled"])
    above, df = (of_rank[test["rank"]][0] - mean) * count / (count - 1), count - 2.0
    within = math.fsum((one - mean) ** 2 for one, _ in left) - above**2 * (count - 1) / count
    if more:
        within += squares * (max(_number(test["usual_ns"]), 1e-6) ** 2 + _median([one for _, one in left]))
        df += min(more, _MOST_DF)
    variance = max(max(within, 0.0) / df if df else 0.0, noise)
    by_prior = []
    for weight, deviation in ((0.9, test["usual_ns"]), (0.1, max(test["usual_ns"], test["wide_ns"]))):
        prior = max(_number(deviation), 1e-6) ** 2 + noise
        t = above / math.sqrt((variance * df + prior * _PRIOR) / (df + _PRIOR) * (1 + 1 / (count - 1)))
        fits = df / 2 * math.log(prior) + (df + _PRIOR) / 2 * math.log1p(df * variance / (_PRIOR * prior))
        by_prior.append((t, student_tail(t, df + _PRIOR), math.log(weight) - fits))
    (t, usual_chance, first), (_, wide_chance, second) = by_prior
    wide = math.exp(min(second - first, 700.0))
    return t, (usual_chance + wide * wide_chance) / (1 + wide)


def student_tail(t: float, df: float) -> float:
    """Return P(T > t) within a thousandth by Simpson's rule, one half below 0: t is the cotangent of an angle."""
    if t <= 0:
        return 0.5
    edge, parts = math.atan2(math.sqrt(df), t), 4 * math.ceil(df) + 100
    power = [math.sin(edge * at / parts) ** (df - 1) * (4 if at % 2 else 2) for at in range(1, parts)]
    area = (math.fsum(power) + math.sin(edge) ** (df - 1)) * edge / parts / 3
    return max(float(area) * math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi), 1e-300)


def _of_rows(look: Mapping[str, Any]) -> float:
    """Put the chances of one rank's signals together; all its operators are one of them."""
    rows = [(_number(weight), _number(chance)) for _, _, weight, chance in look["rows"]]
    if look["operators"]:
        silent = (_number(look["silent"]), 0.5)
        rows.append((1.0, cauchy([*((1.0, _number(chance)) for _, chance in look["operators"]), silent])))
    return cauchy(rows)


def cauchy(rows: Sequence[tuple[float, float]]) -> float:
    """Put (weight, chance) together, however they depend on one another (Liu and Xie 2020)."""
    total = math.fsum(weight / math.tan(math.pi * min(max(chance, 1e-300), 0.5)) for weight, chance in rows)
    return math.atan2(1.0, total / math.fsum(weight for weight, _ in rows)) / math.pi


def _finding(
    one: Mapping[str, Any], at: int, of: Mapping[str, Any], looks: Sequence[Mapping[str, float]], step_ns: float
) -> dict[str, Any]:
    """Return p and the prices of one finding."""
    p_value = one["p_value"] if one["p_value"] is None else _number(one["p_value"])
    if not isinstance(one["cause"], str) or not all(type(rank) is int for rank in one["ranks"]):
        raise Refused(f"finding {at + 1} has no cause, or ranks that are no numbers")
    if one["look"] is not None:
        if not set(of["looks"][one["look"]]["members"]) <= set(one["ranks"]):
            raise Refused(f"finding {at + 1} is not about those whom its look accuses")
        p_value = looks[one["look"]]["p_value"]
    before, after = _before_after(of, one["price"], (at,), step_ns)
    result = {"p_value": p_value, **_prices(before, after, of)}
    together = of["accused_together"]
    if one["part"] is None or together is None:
        return result | {"least_us_per_step": None, "most_us_per_step": None}
    all_before, all_after = _before_after(of, together["price"], together["findings"], step_ns)
    others = tuple(place for place in together["findings"] if place != at)
    last = _replayed(of, others)[1] - all_after if one["part"] == "replay" else _number(one["part"]) * 1e3
    parts = [min(max(ns, 0.0), max(all_before - all_after, 0.0)) / 1e3 for ns in (before - after, last)]
    return result | {"least_us_per_step": min(parts), "most_us_per_step": max(parts)}


def _prices(before: float, after: float, of: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step, and a day of all devices, would be shorter by; nothing costs less than nothing."""
    after = min(before, after)
    hours = (1 - after / before) * of["world_size"] * _HOURS_PER_DAY
    return {
        "time_lost_us_per_step": (before - after) / 1e3,
        "slowdown": before / after,
        "throughput_gain": before / after - 1,
        "gpu_hours_per_day": hours,
        "cost_per_day": None if of["gpu_cost"] is None else hours * _number(of["gpu_cost"]),
    }


def _together(
    of: Mapping[str, Any], name: str, findings: Sequence[Mapping[str, Any]], step_ns: float
) -> dict[str, Any] | None:
    """Return what several save together: no more than the step, and whether it is no less than each of them."""
    if of[name] is None:
        return None
    before, after = _before_after(of, of[name]["price"], of[name]["findings"], step_ns)
    saved = (before - after) / 1e3
    each = [findings[at] for at in of[name]["findings"]]
    at_least = max((one["time_lost_us_per_step"] for one in each), default=0.0)
    return {"saved_us": saved, "step_time_us": after / 1e3, "no_less_than_each": saved * (1 + _ROUNDING) >= at_least}


def _before_after(of: Mapping[str, Any], price: Json, places: Sequence[int], step_ns: float) -> tuple[float, float]:
    """Return the mean step, ns, as recorded and without some findings: replayed, or as stated."""
    if price == "replay":
        return _replayed(of, places)
    before, saved = _number(price["of_us"]) * 1e3, _number(price["us"]) * 1e3
    if not 0 < before <= 2 * max(step_ns, 1.0) or saved >= before:
        raise Refused(f"a stated price of finding {[at + 1 for at in places]} is more than the step")
    return before, before - saved


def _replayed(of: Mapping[str, Any], places: Sequence[int]) -> tuple[float, float]:
    """Return the mean replayed step, ns, as recorded and without some findings."""
    replays = of["replays"]
    times = next(one["ns"] for one in replays["without"] if tuple(one["findings"]) == tuple(places))
    if len(times) != len(replays["recorded_ns"]) or not all(_number(one) > 0 for one in times):
        raise Refused("recorded.replays have not the same steps")
    return _mean(replays["recorded_ns"]), _mean(times)


def _verdict(of: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> str:
    """Return what findings and what is left open come to."""
    if of["verdict"] is not None:
        return str(VERDICTS[VERDICTS.index(of["verdict"])])
    if any(one["pattern"] != "job_wide" for one in of["findings"]):
        return "straggler"
    large = [one for one, share in zip(of["open"], shares, strict=True) if share >= LEAVES_OPEN]
    shared = _number(of["shared_us"])
    small = [one for one in large if not one["ranks"] or one["us_per_step"] <= shared]
    whole = [one for one in large if one["kind"] in {"no_peer", "few_steps"} and one["us_per_step"] >= one["of_us"]]
    if findings and all(one in small or one in whole for one in large):
        return "job_wide"
    return "inconclusive" if large else "no_straggler"


def _stated(of: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of what is only stated: it does not follow from what was recorded."""
    yield from (name for name in ("bubble_ns", "verdict") if (of[name] is None) == (name == "bubble_ns"))
    yield from (f"looks.{at}.chance" for at, one in enumerate(of["looks"]) if one["stated"] is not None)
    for at, one in enumerate(of["findings"]):
        yield from (f"findings.{at}.p_value" for _ in range(one["look"] is None and one["p_value"] is not None))
        yield from (f"findings.{at}.time_lost_us_per_step" for _ in range(one["price"] != "replay"))
        yield from (f"findings.{at}.part" for _ in range(one["part"] not in (None, "replay")))
    for name in ("together", "accused_together"):
        yield from (f"{name}.saved_us" for _ in range(of[name] is not None and of[name]["price"] != "replay"))


def _counts(row: Sequence[Any], length: int, where: str) -> None:
    if len(row) != length or not all(type(one) is int and 0 <= one < _MOST for one in row):
        raise Refused(f"{where} has not one count of nanoseconds for each rank")


def _number(value: Json) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) >= _MOST:
        raise Refused(f"{str(value)[:40]} is no figure")
    return float(value)


def _mean(values: Sequence[Any]) -> float:
    return math.fsum(map(_number, values)) / len(values)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((one - mean) ** 2 for one in values) / (len(values) - 1)


def nine_digits(value: float) -> float:
    """Round a figure as certificates do."""
    return float(f"{value:.9g}")


def _rounded(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return nine_digits(_number(value)) if isinstance(value, float) else value


def _same(stated: Json, known: Json) -> bool:
    """Whether two values are equal; of figures the ninth digit may be rounded either way on another machine."""
    if isinstance(known, float):
        near = (nine_digits(known * (1 + by)) for by in (0.0, -_ROUNDING, _ROUNDING))
        return type(stated) in (int, float) and stated in near
    return type(stated) is type(known) and bool(stated == known)


def _pairs(stated: Json, known: Json, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (where, what is stated, what is known) of every value."""
    if isinstance(known, dict) and isinstance(stated, dict) and stated.keys() == known.keys():
        for key, one in known.items():
            yield from _pairs(stated[key], one, f"{place}.{key}")
    elif isinstance(known, list) and isinstance(stated, list) and len(stated) == len(known):
        for at, one in enumerate(known):
            yield from _pairs(stated[at], one, f"{place}.{at}")
    else:
        yield place, stated, known


def main(words: Sequence[str]) -> int:
    """Check one file, and say so. Returns the exit status: 3 for what does not hold."""
    print(SAYS)
    try:
        document = check(Path(words[0]).read_bytes())
    except (Refused, OSError, IndexError) as error:
        print(f"refused: {error}")
        return 3
    print(f"holds: {document['derived']['verdict']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
