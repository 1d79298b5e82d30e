"""What the figures of evidence are, held against the JSON of the command that is named beside them."""

from collections.abc import Callable
from typing import Any

import pytest

from kair_engine.results.evidence_kinds import TOGETHER
from kair_tui.render.units import count, duration, one_decimal, percent, ratio

Data = dict[str, Any]
Check = Callable[[Data, Data], None]

_EXACT = 1e-9


def check(evidence: Data, data: Data) -> str:
    """Which kind of evidence it is; fails where a figure in it is not the data's."""
    _CHECKS[evidence["kind"]](evidence, data)
    return str(evidence["kind"])


def unsaid_figures(evidence: Data) -> list[str]:
    """The figures that the sentence does not say as they are written for people; sums of what it lists left out."""
    return [
        name
        for name, value in evidence["figures"].items()
        if name not in _SUMS and _written(name, value) not in evidence["sentence"]
    ]


_SUMS = {"blamed_us"}
_OF_STOPS: dict[str, Callable[[float], str]] = {
    "per_step": one_decimal,
    "together": lambda value: "together" if value > TOGETHER else "each rank at moments of its own",
}


def _written(name: str, value: float) -> str:
    if name in _OF_STOPS:
        return _OF_STOPS[name](value)
    if name == "waited_us":
        return f"{duration(value)} in total"
    if "_us" in name:
        return duration(value)
    if name.startswith("share") or name == "variation":
        return percent(value)
    if name.endswith("ratio") or name == "correlation":
        return ratio(value) if name != "correlation" else f"{value:.2f}"
    return "the other rank of" if (name, value) == ("others_of_role", 1) else count(int(value))


def _equal(value: float) -> Any:  # noqa: ANN401
    return pytest.approx(value, rel=_EXACT)


def _excess(evidence: Data, data: Data) -> None:
    scores, ranks = {score["rank"]: score for score in data["scores"]}, evidence["ranks"]
    figures, name = evidence["figures"], evidence["about"]
    excess = _mean(scores[rank]["excess_us"][name] for rank in ranks)
    if "others_of_role" in figures:
        role = scores[ranks[0]]["role"]
        rest = [score for rank, score in scores.items() if score["role"] == role and rank not in ranks]
        assert len(rest) == figures["others_of_role"]
        excess -= _mean(score["excess_us"][name] for score in rest)
    assert figures["excess_us_per_step"] == _equal(excess)
    assert figures["share_of_step"] == _equal(excess / data["step_time_us"])
    assert all(scores[rank]["flagged"] for rank in ranks)


def _slow_operator(evidence: Data, data: Data) -> None:
    of_rank = [row for row in data["slow_operators"] if [row["rank"]] == evidence["ranks"]]
    (row,) = [row for row in of_rank if row["operator"] == evidence["about"]]
    assert row["excess_us"] == _equal(evidence["figures"]["excess_us_per_step"])
    assert row["excess_us"] / data["step_time_us"] == _equal(evidence["figures"]["share_of_step"])


def _whole_device(evidence: Data, data: Data) -> None:
    """Localize shows the excess that the ratio is made of, and the peers; what these take is in no table of it."""
    scores, figures, ranks = {score["rank"]: score for score in data["scores"]}, evidence["figures"], evidence["ranks"]
    role = scores[ranks[0]]["role"]
    healthy = [score for score in scores.values() if score["role"] == role and not score["flagged"]]
    assert len([score for score in healthy if score["rank"] not in ranks]) == figures["peers"]
    excess = _mean(scores[rank]["excess_us"]["compute"] for rank in ranks)
    assert 0 < excess < (figures["ratio"] - 1) * data["step_time_us"]
    assert figures["least_ratio"] <= figures["ratio"] <= figures["most_ratio"]
    assert all(scores[rank]["flagged"] for rank in ranks)


def _delays(evidence: Data, data: Data) -> None:
    scores, figures = {score["rank"]: score for score in data["scores"]}, evidence["figures"]
    (rank,) = evidence["ranks"]
    counted = scores.values()
    if evidence["kind"] == "host_pauses":
        counted = [score for score in counted if score["role"] == scores[rank]["role"]]
    assert scores[rank]["large_delays"] == figures["delays"]
    assert sum(score["large_delays"] for score in counted) == figures["of_all"]
    assert len(data["steps"]) == figures["steps"]


def _came_last(evidence: Data, data: Data) -> None:
    mine, figures = [row for row in data["by_rank"] if row["rank"] in evidence["ranks"]], evidence["figures"]
    assert sum(row["arrived_last"] for row in mine) == figures["arrived_last"]
    assert data["collectives"] == figures["collectives"]
    assert sum(row["blamed_us"] for row in mine) == _equal(figures["waited_us"])
    assert sum(row["share"] for row in mine) == _equal(figures["share_of_waiting"])


def _made_late(evidence: Data, data: Data) -> None:
    assert evidence["root_causes"]
    for cause in evidence["root_causes"]:
        assert cause in data["root_causes"]
    assert sum(cause["blamed_us"] for cause in evidence["root_causes"]) == _equal(evidence["figures"]["blamed_us"])


def _slow_link(evidence: Data, data: Data) -> None:
    name, figures = evidence["about"].removeprefix("process group "), evidence["figures"]
    (link,) = [link for link in data["slow_links"] if link["group"] == name]
    assert link["own_us"] == _equal(figures["self_us"])
    assert link["expected_us"] == _equal(figures["expected_us"])
    assert link["siblings"] == figures["siblings"]
    assert (link["own_us"] - link["expected_us"]) / data["step_time_us"] == _equal(figures["share_of_step"])


def _links_in_common(evidence: Data, data: Data) -> None:
    shared = set(evidence["ranks"])
    assert sum(shared <= set(link["ranks"]) for link in data["slow_links"]) == evidence["figures"]["links"]


def _uneven_stages(evidence: Data, data: Data) -> None:
    pattern, figures = _pattern(data, "stage_imbalance"), evidence["figures"]
    compute = pattern["figures"]
    assert compute[evidence["about"]] == max(compute.values()) == _equal(figures["self_us"])
    assert (len(compute), _mean(compute.values())) == (figures["stages"], _equal(figures["mean_us"]))
    assert pattern["lost_us"] / data["step_time_us"] == _equal(figures["share_of_step"])


def _uneven_batches(evidence: Data, data: Data) -> None:
    assert evidence["figures"] == _pattern(data, "sequence_imbalance")["figures"]


def _longest_batch(evidence: Data, data: Data) -> None:
    lost = _pattern(data, "sequence_imbalance")["lost_us"] / data["step_time_us"]
    assert lost == _equal(evidence["figures"]["share_of_step"])


def _changing_ranks(evidence: Data, data: Data) -> None:
    pattern, figures = _delay_pattern(data), evidence["figures"]
    assert pattern["figures"]["delays"] == figures["delays"]
    assert (len(pattern["ranks"]), pattern["ranks"]) == (figures["ranks"], evidence["ranks"])
    assert (len(pattern["steps"]), len(data["steps"])) == (figures["hit_steps"], figures["steps"])
    assert pattern["cause"] == evidence["about"]


def _longest_delays(evidence: Data, data: Data) -> None:
    assert _delay_pattern(data)["lost_us"] / data["step_time_us"] == _equal(evidence["figures"]["share_of_step"])


def _host_stops(evidence: Data, data: Data) -> None:
    assert evidence["figures"] == {name: _equal(data["host_stops"][name]) for name in evidence["figures"]}


def _replayed(evidence: Data, data: Data) -> None:
    # Of several fixes all together come last; remedies take none.
    remedy = _REMEDIES.get(evidence["about"])
    (cost,) = data["fixes"][-1:] or [one for one in data["remedies"] if one["remedy"] == remedy]
    after, before = cost["step_time_us"], cost["step_time_us"] + cost["saved_us"]
    assert evidence["figures"] == {"after_us": _equal(min(after, before)), "before_us": _equal(before)}


def _others_nearly_as_late(evidence: Data, data: Data) -> None:
    assert data["fixes"][-1]["fix"] == "all together"
    assert data["fixes"][-1]["saved_us"] == _equal(evidence["figures"]["saved_together_us"])


def _delay_pattern(data: Data) -> Data:
    (pattern,) = [pattern for pattern in data["patterns"] if "delays" in pattern["figures"]]
    return pattern


def _pattern(data: Data, cause: str) -> Data:
    (pattern,) = [pattern for pattern in data["patterns"] if pattern["cause"] == cause]
    return pattern


def _mean(values: Any) -> float:  # noqa: ANN401
    listed = list(values)
    return float(sum(listed) / len(listed))


_REMEDIES = {"stage_imbalance": "even_stages", "sequence_imbalance": "sorted_microbatches"}

_CHECKS: dict[str, Check] = {
    "excess": _excess,
    "slow_operator": _slow_operator,
    "whole_device": _whole_device,
    "large_delays": _delays,
    "host_pauses": _delays,
    "came_last": _came_last,
    "made_late": _made_late,
    "slow_link": _slow_link,
    "links_in_common": _links_in_common,
    "uneven_stages": _uneven_stages,
    "uneven_batches": _uneven_batches,
    "longest_batch": _longest_batch,
    "delays_on_changing_ranks": _changing_ranks,
    "longest_delays": _longest_delays,
    "host_stops": _host_stops,
    "replayed": _replayed,
    "others_nearly_as_late": _others_nearly_as_late,
}
