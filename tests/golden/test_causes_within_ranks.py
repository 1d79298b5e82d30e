"""Causes that follow from what of a rank is slower and what is not, re-created from public reports."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_samples import kair
from support.places import CASES2

ONSET = CASES2.parent / "repro" / "b2_onset_factor"
pytestmark = [
    pytest.mark.skipif(not CASES2.is_dir(), reason="the cases are not beside the checkout"),
    pytest.mark.usefixtures("own_places"),
    pytest.mark.slow,
]


def triage(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The answer, and its findings, once it was printed for people, too."""
    answer = json.loads(kair("triage", str(folder), "--json").out)["data"]
    return answer, answer["findings"]


def evidence(finding: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = (one for one in finding["evidence"] if one["kind"] == kind)
    return dict(found)


def test_attention_that_takes_longer_alone_is_how_sequences_are_packed() -> None:
    """Rank 5's flash attention takes 13.57 ms a step, the median peer's 4.06; its other kernels 23.8."""
    _, (finding,) = triage(CASES2 / "varlen_attention_persistent" / "input")
    assert (finding["ranks"], finding["cause"]) == ([5], "uneven_work")
    shown = evidence(finding, "one_family")
    assert shown["about"] == "attention"
    assert shown["figures"]["excess_us_per_step"] == pytest.approx(9_510, rel=0.01)
    assert shown["figures"]["ratio"] == pytest.approx(13.57 / 4.06, rel=0.01)
    assert shown["figures"]["others_ratio"] == pytest.approx(1.0, abs=0.005)
    assert shown["figures"]["others_share"] == pytest.approx(23.8 / 37.4, rel=0.01)
    text = json.dumps(finding)
    assert "cu_seqlens" in text
    assert not any(word in text for word in ("drain it", "ECC", "clocks", "no larger batch"))


def test_half_of_the_devices_are_of_an_older_model() -> None:
    answer, (finding,) = triage(CASES2 / "half_the_gpus_older" / "input")
    assert (finding["ranks"], finding["cause"]) == ([4, 5, 6, 7], "device_model")
    shown = evidence(finding, "device_models")
    assert "A100" in shown["about"].split(";")[0] and "H100" in shown["about"].split(";")[1]
    assert shown["figures"]["ratio"] == pytest.approx(58.6 / 28.1, rel=0.01)
    assert (shown["figures"]["least_ratio"], shown["figures"]["most_ratio"]) == pytest.approx((1.55, 2.4), rel=0.03)
    assert finding["time_lost_us_per_step"] == pytest.approx(30_600, rel=0.02)
    assert "2.08×" in answer["summary"] and "A100" in answer["summary"]
    assert "Nothing is broken" in finding["suggestion"] and "drain" not in finding["suggestion"]
    models = [one for one in answer["differences"] if one["what"] == "device model"]
    assert [(one["ranks"], one["accused"]) for one in models] == [([4, 5, 6, 7], True)]


def test_memory_that_all_ranks_free_and_allocate_in_each_step_is_the_allocators() -> None:
    answer, (finding,) = triage(CASES2 / "cuda_free_on_all" / "input")
    assert (answer["verdict"], finding["cause"], finding["ranks"]) == ("job_wide", "allocator", [])
    assert finding["time_lost_us_per_step"] == pytest.approx(6_900, rel=0.1)
    assert "expandable_segments:True" in finding["suggestion"] and "num_alloc_retries" in finding["suggestion"]


def test_one_loss_is_told_once() -> None:
    answer, (finding,) = triage(CASES2 / "two_ranks_counted_twice" / "input")
    assert (answer["verdict"], finding["ranks"], finding["cause"]) == ("straggler", [1], "launch_bound")
    assert finding["time_lost_us_per_step"] == pytest.approx(590, rel=0.03)


def test_a_device_that_became_slow_midway_has_its_factor_from_then_on() -> None:
    answer, (finding,) = triage(ONSET)
    assert (finding["ranks"], finding["cause"], finding["since"]) == ([2], "compute", 20)
    assert evidence(finding, "whole_device")["figures"]["ratio"] == pytest.approx(1.80, abs=0.01)
    assert "1.80×" in answer["summary"]
