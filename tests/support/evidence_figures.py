"""What sentences of evidence say, held against the JSON of the command that they name."""

import re
from collections.abc import Callable
from typing import Any

import pytest

Data = dict[str, Any]
Check = Callable[[re.Match[str], Data], None]

_NUMBER = r"[\d.]+(?:e[+-]\d+)?"
_DURATION = rf"{_NUMBER} (?:µs|ms|s)"
_RANKS = r"ranks? [\d, –]+"
_CLASSES = {
    "own compute": "compute",
    "fetching": "input",
    "keeping": "host",
    "sends and receives": "communication",
}


def check(sentence: str, data: Data) -> str:
    """Which kind of sentence it is; fails where a figure in it is not the data's."""
    for kind, (pattern, compare) in KINDS.items():
        if found := re.fullmatch(pattern, sentence):
            compare(found, data)
            return kind
    pytest.fail(f"no figure of this sentence is checked: {sentence}")


def us(text: str) -> Any:  # noqa: ANN401
    """A duration as it was printed: what rounds to it is equal to it."""
    number, unit = text.split(" ")
    return printed(number, {"µs": 1.0, "ms": 1e3, "s": 1e6}[unit])


def percent(text: str) -> Any:  # noqa: ANN401
    """A share as it was printed."""
    return printed(text, 0.01)


def printed(number: str, unit: float = 1.0) -> Any:  # noqa: ANN401
    """A number as it was printed, in units of so much."""
    digits = len(number.partition(".")[2].partition("e")[0])
    exponent = int(number.partition("e")[2] or 0)
    return pytest.approx(float(number) * unit, rel=1e-9, abs=0.501 * 10.0 ** (exponent - digits) * unit)


def ranks_of(text: str) -> list[int]:
    """`ranks 4–7`, `ranks 2, 5` or `rank 3`."""
    listed = text.split(" ", 1)[1]
    first, _, last = listed.partition("–")
    return list(range(int(first), int(last) + 1)) if last else [int(rank) for rank in listed.split(", ")]


def _excess(found: re.Match[str], data: Data) -> None:
    scores = {score["rank"]: score for score in data["scores"]}
    ranks = ranks_of(found["who"])
    name = next(name for words, name in _CLASSES.items() if words in found["what"])
    excess = _mean(scores[rank]["excess_us"][name] for rank in ranks)
    if others := re.search(r"the other (?:(\d+) ranks|rank) of", found["than"]):
        role = scores[ranks[0]]["role"]
        rest = [score for rank, score in scores.items() if score["role"] == role and rank not in ranks]
        assert len(rest) == int(others[1] or 1)
        excess -= _mean(score["excess_us"][name] for score in rest)
    assert excess == us(found["cost"])
    assert excess / data["step_time_us"] == percent(found["share"])
    assert all(scores[rank]["flagged"] for rank in ranks)


def _slow_operator(found: re.Match[str], data: Data) -> None:
    (row,) = [row for row in data["slow_operators"] if [row["rank"]] == ranks_of(found["who"])]
    assert row["operator"] == found["operator"]
    assert row["excess_us"] == us(found["cost"])
    assert row["excess_us"] / data["step_time_us"] == percent(found["share"])


def _delays(found: re.Match[str], data: Data) -> None:
    scores = {score["rank"]: score for score in data["scores"]}
    (rank,) = ranks_of(found["who"])
    counted = scores.values()
    if found["what"] != "large delays":
        counted = [score for score in counted if score["role"] == scores[rank]["role"]]
    assert scores[rank]["large_delays"] == int(found["k"])
    assert sum(score["large_delays"] for score in counted) == int(found["m"])
    assert len(data["steps"]) == int(found["steps"])


def _came_last(found: re.Match[str], data: Data) -> None:
    mine = [row for row in data["by_rank"] if row["rank"] in ranks_of(found["who"])]
    assert sum(row["arrived_last"] for row in mine) == int(found["k"])
    assert data["collectives"] == int(found["m"])
    assert sum(row["blamed_us"] for row in mine) == printed(found["waited"], 1e6)
    assert sum(row["share"] for row in mine) == percent(found["share"])


def _made_late(found: re.Match[str], data: Data) -> None:
    known = [
        (_place(cause), cause["rank"], cause["synchronisations"], cause["blamed_us"])
        for cause in data["root_causes"]
        if cause["operator"] is not None
    ]
    for part in found["list"].split("; "):
        one = re.fullmatch(rf"(.+?)(?: on rank (\d+))? \(({_DURATION}) over (\d+) collectives?\)", part)
        assert one is not None, part
        same = [row for row in known if row[0] == one[1] and row[2] == int(one[4]) and row[3] == us(one[3])]
        assert [row for row in same if one[2] is None or row[1] == int(one[2])], part


def _place(cause: Data) -> str:
    if cause["operator"] == "step begin":
        return "late already when the step began"
    return f"idle before {cause['operator']}" if cause["is_edge"] else str(cause["operator"])


def _slow_link(found: re.Match[str], data: Data) -> None:
    name = found["group"] or found["edge"]
    (link,) = [link for link in data["slow_communicators"] if link["group"] == name]
    assert link["own_us"] == us(found["own"])
    assert link["expected_us"] == us(found["expected"])
    assert link["siblings"] == int(found["siblings"])
    assert (link["own_us"] - link["expected_us"]) / data["step_time_us"] == percent(found["share"])


def _in_common(found: re.Match[str], data: Data) -> None:
    shared = set(ranks_of(found["who"]))
    assert sum(shared <= set(link["ranks"]) for link in data["slow_communicators"]) == int(found["links"])


def _stage(found: re.Match[str], data: Data) -> None:
    pattern = _pattern(data, "stage_imbalance")
    compute = pattern["figures"]
    own, mean = compute[found["stage"]], _mean(compute.values())
    assert (own, mean) == (us(found["own"]), us(found["mean"]))
    assert (own, len(compute)) == (max(compute.values()), int(found["stages"]))
    assert own / mean == printed(found["times"])
    assert pattern["lost_us"] / data["step_time_us"] == percent(found["share"])


def _batches(found: re.Match[str], data: Data) -> None:
    figures = _pattern(data, "sequence_imbalance")["figures"]
    assert figures["correlation"] == printed(found["correlation"])
    assert figures["variation"] == percent(found["variation"])


def _longest_batch(found: re.Match[str], data: Data) -> None:
    assert _pattern(data, "sequence_imbalance")["lost_us"] / data["step_time_us"] == percent(found["share"])


def _scattered(found: re.Match[str], data: Data) -> None:
    pattern = _scattered_pattern(data)
    assert pattern["figures"]["delays"] == int(found["delays"])
    assert len(pattern["ranks"]) == int(found["ranks"])
    assert (len(pattern["steps"]), len(data["steps"])) == (int(found["hit"]), int(found["steps"]))
    assert (pattern["cause"] == "garbage_collection") == (found["what"] == "garbage collection")


def _longest_delays(found: re.Match[str], data: Data) -> None:
    assert _scattered_pattern(data)["lost_us"] / data["step_time_us"] == percent(found["share"])


def _replayed(found: re.Match[str], data: Data) -> None:
    # Of several fixes all together come last; remedies take none.
    (cost,) = data["fixes"][-1:] or [one for one in data["remedies"] if one["remedy"] == _REMEDIES[found["what"]]]
    after, before = cost["step_time_us"], cost["step_time_us"] + cost["saved_us"]
    assert min(after, before) == us(found["after"])
    assert before == us(found["before"])


def _covered(found: re.Match[str], data: Data) -> None:
    assert data["fixes"][-1]["fix"] == "all together"
    assert data["fixes"][-1]["saved_us"] == us(found["saved"])


def _scattered_pattern(data: Data) -> Data:
    (pattern,) = [pattern for pattern in data["patterns"] if "delays" in pattern["figures"]]
    return pattern


def _pattern(data: Data, cause: str) -> Data:
    (pattern,) = [pattern for pattern in data["patterns"] if pattern["cause"] == cause]
    return pattern


def _mean(values: Any) -> float:  # noqa: ANN401
    listed = list(values)
    return float(sum(listed) / len(listed))


_REMEDIES = {
    "with even stages": "even_stages",
    "with microbatches dealt to the ranks by their length": "sorted_microbatches",
}

KINDS: dict[str, tuple[str, Check]] = {
    "excess": (
        rf"(?P<who>{_RANKS}) spends? (?P<cost>{_DURATION}) a step \((?P<share>{_NUMBER})%\) (?:each )?more on "
        r"(?P<what>.+) than (?P<than>(?:its|their) role's median|the other .+ of (?:its|their) role)(?:, in the mean)?",
        _excess,
    ),
    "operator": (
        rf"(?P<who>{_RANKS}) spends (?P<cost>{_DURATION}) a step \((?P<share>{_NUMBER})%\) more in "
        r"(?P<operator>.+) than its role's median",
        _slow_operator,
    ),
    "delays": (
        rf"(?P<who>{_RANKS}): (?P<k>\d+) of the (?P<m>\d+) (?P<what>large delays|host pauses between collectives in "
        r"its role) in (?P<steps>\d+) steps?, through .+",
        _delays,
    ),
    "came last": (
        rf"(?P<who>{_RANKS}) came last to (?P<k>\d+) of (?P<m>\d+) collectives?; peers waited (?P<waited>{_NUMBER}) "
        rf"rank-seconds for (?:it|them), (?P<share>{_NUMBER})% of all waiting",
        _came_last,
    ),
    "made late": (r"what made (?:it|them) late: (?P<list>.+)", _made_late),
    "link": (
        rf"(?:collectives of process group (?P<group>.+) take|(?P<edge>rank \d+ → rank \d+) takes) "
        rf"(?P<own>{_DURATION}) a step, waiting excluded; the (?P<siblings>\d+) siblings? (?P<expected>{_DURATION}) "
        rf"\(median\): (?P<share>{_NUMBER})% of the step more",
        _slow_link,
    ),
    "links in common": (rf"(?P<links>\d+) slow links have (?P<who>{_RANKS}) in common", _in_common),
    "stage": (
        rf"(?P<stage>.+) computes (?P<own>{_DURATION}) a step, the (?P<stages>\d+) stages (?P<mean>{_DURATION}) in the "
        rf"mean \((?P<times>{_NUMBER}) times that\): even stages would save about (?P<share>{_NUMBER})% of the step",
        _stage,
    ),
    "batches": (
        r"within a rank, forward and backward time vary together over the steps \(correlation "
        rf"(?P<correlation>{_NUMBER}), median of ranks; forward varies by (?P<variation>{_NUMBER})%\): batches of "
        "different length",
        _batches,
    ),
    "longest batch": (
        rf"waiting for the longest batch costs about (?P<share>{_NUMBER})% of the step",
        _longest_batch,
    ),
    "scattered": (
        r"(?P<delays>\d+) large delays? on (?P<ranks>\d+) ranks in (?P<hit>\d+) of (?P<steps>\d+) steps, through "
        r"(?P<what>.+), on no rank more often than chance has it",
        _scattered,
    ),
    "replayed": (
        rf"replayed (?P<what>[^,]+), a step takes (?P<after>{_DURATION}) instead of (?P<before>{_DURATION})",
        _replayed,
    ),
    "covered": (
        "that is little: without it, other ranks would have come nearly as late; all findings fixed together save "
        rf"(?P<saved>{_DURATION})",
        _covered,
    ),
    "longest delays": (rf"the longest of each step costs (?P<share>{_NUMBER})% of the step", _longest_delays),
}
