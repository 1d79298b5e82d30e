"""Jobs whose hosts run ahead of their devices on the command line: what is said of them, and of no others."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from markupsafe import escape
from support import cli_samples
from support.answers import answered_once
from support.cli_samples import Outcome, assert_valid, kair, store_variables
from support.kept_cases import assert_kept
from support.places import RUN_AHEAD, SAMPLES
from support.run_ahead_builder import write_run_ahead

from kair_engine.ranks import Rank
from kair_engine.results.triage import Absorbed, TriageResult
from kair_engine.results.whatif import AbsorbedFix
from kair_tui.render.answer import JobInfo, PageOptions
from kair_tui.render.delays import absorbed_fix_in_words, absorbed_in_words, absorbs_in_words, lead_in_words
from kair_tui.render.info import VIEW as INFO
from kair_tui.render.page import Page
from kair_tui.render.report.templates import html, markdown
from kair_tui.render.report.triage import Found, triage_report
from kair_tui.render.timeline_drawing import part_in_view, timeline_headline
from kair_tui.render.triage import triage_in_words
from kair_tui.render.verdict import summary

INPUT = Absorbed((Rank(1),), "input", "enumerate(DataLoader)", 11_400.0, 0.0, 55_400.0, 22_700.0)
STEP_US = 39_800.0
SYNCHRONISED = str(SAMPLES / "slow_operator")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a job whose rank 1 has a slow input, which costs nothing."""
    folder = tmp_path_factory.mktemp("run_ahead")
    with pytest.MonkeyPatch.context() as patch, answered_once():
        store_variables(patch, folder)
        yield str(write_run_ahead(folder / "job"))


def of_job(*absorbed: Absorbed, **changed: object) -> TriageResult:
    """A triage that accuses nobody."""
    told = vars(cli_samples.triage("mlp")) | {"findings": (), "warnings": (), "verdict": "no_straggler"}
    told |= {"absorbed": absorbed, "step_time_us": STEP_US, **changed}
    return TriageResult(**{field.name: told[field.name] for field in fields(TriageResult)})


def data(outcome: Outcome, command: str) -> dict[str, Any]:
    assert outcome.status == 0, outcome.err
    document = json.loads(outcome.out)
    assert_valid(document, command)
    found: dict[str, Any] = document["data"]
    return found


# What is absorbed, in words.


UNSURE = replace(INPUT, ahead_us=None)
PAUSES = replace(INPUT, ranks=(Rank(4), Rank(5)), cause="periodic_pause", costs_us_per_step=120.0)
ABSORBED = {
    "why it costs nothing": INPUT,
    "not where that is unsure": UNSURE,
    "what it costs": PAUSES,
    "what it costs, unsure": replace(UNSURE, cause="host", costs_us_per_step=120.0),
}
NO_STRAGGLER = {
    "the longest that is absorbed": of_job(INPUT),
    "how many more": of_job(replace(INPUT, longer_us_per_step=3.0), INPUT),
    "unsure": of_job(UNSURE),
    "none is absorbed": of_job(),
}
FIXES = {
    "a fix": AbsorbedFix("rank=1+kind=input", (Rank(1),), 0.0, 55_400.0, 22_700.0),
    "a fix of several": AbsorbedFix("rank=1,2+kind=gc:3", (Rank(1), Rank(2)), -90.0, None, 22_700.0),
}
AHEAD = replace(cli_samples.rank(), timed_on="device", ahead_us=55_400.0, slack_us_per_step=22_700.0)
LEADS = {"no lead": cli_samples.rank(), "a lead": AHEAD, "a lead that is lost": replace(AHEAD, ahead_us=None)}


def test_what_is_absorbed_is_told_with_why_it_costs_nothing() -> None:
    said: dict[str, str | None] = {name: absorbed_in_words(one, STEP_US) for name, one in ABSORBED.items()}
    said |= {name: summary(of) for name, of in NO_STRAGGLER.items()}
    said |= {name: absorbed_fix_in_words(fix, STEP_US) for name, fix in FIXES.items()}
    assert_kept("absorbed", said | {name: lead_in_words(rank) for name, rank in LEADS.items()})


@pytest.mark.parametrize(
    ("depths", "per_stream", "told"),
    [
        ({0: 52, 1: 52}, False, "launch queue  52 launches"),
        ({0: 1022, 1: 1022}, True, "launch queue  1,022 launches on each stream"),
        ({0: 1, 1: 1}, False, "launch queue  1 launch"),
        ({0: 60, 1: 52}, False, "launch queue  52-60 launches"),
        ({}, None, "launch queue  never seen full"),
    ],
)
def test_info_tells_how_far_hosts_can_run_ahead(depths: dict[int, int], per_stream: bool | None, told: str) -> None:
    known = replace(cli_samples.info(), launch_queue_depth=depths, launch_queue_per_stream=per_stream)
    page = Page(PageOptions(width=80))
    INFO.body(replace(known, timed_on="device"), page)
    assert told in page.getvalue().splitlines()
    assert "step times    on the devices: hosts run ahead of them" in page.getvalue().splitlines()
    page = Page(PageOptions(width=80))
    INFO.body(known, page)
    assert "launch queue" not in page.getvalue()


def test_moments_before_the_step_are_no_negative_times() -> None:
    result = replace(cli_samples.timeline(), timed_on="device", earliest_us=-80.0)
    around = replace(result.around, operation=replace(result.around.operation, begin_us=-50.0))
    assert "aten::add 50.0 µs before the step: " in timeline_headline(replace(result, around=around))
    for begin, end, told in (
        (0.0, 200.0, "the whole step of 200 µs"),
        (-50.0, 200.0, "the whole step of 200 µs, and 50.0 µs before it"),
        (-50.0, 20.0, "0 µs to 20.0 µs of 200 µs, and 50.0 µs before it"),
        (-50.0, -20.0, "50.0 µs to 20.0 µs before the step of 200 µs"),
        (10.0, 20.0, "10.0 µs to 20.0 µs of 200 µs"),
    ):
        assert part_in_view(replace(result, begin_us=begin, end_us=end)) == told


# Where it is shown.


def test_triage_shows_it_in_every_format(tiny: str) -> None:
    table = kair("triage", tiny).out.splitlines()
    assert table[0].startswith(
        "no straggler: 3 ranks, 4 steps of 999 µs; rank 1's input takes 120 µs a step longer, which costs"
    )
    (line,) = (line for line in table if line.startswith("absorbed: "))
    assert line.startswith("absorbed: rank 1's input takes 120 µs a step longer than its peers'; its host is 1.32 ms")
    (branch,) = (line for line in kair("triage", tiny, "-o", "tree").out.splitlines() if "absorbed: " in line)
    assert branch.endswith(line)
    (wide,) = (line for line in kair("triage", tiny, "-o", "wide").out.splitlines() if line.startswith("absorbed: "))
    assert wide == f"{line}, in enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    (one,) = data(kair("triage", tiny, "--json"), "triage")["absorbed"]
    assert f"absorbed: {one['sentence']}" == line
    assert kair("triage", tiny, "-o", "csv").out.count("\n") == 2, "the columns, and the verdict"
    header, *rows = map(json.loads, kair("triage", tiny, "-o", "ndjson").out.splitlines())
    assert header["data"]["absorbed"] == [one]
    assert {row["record"] for row in rows} == {"rank", "end"}


def test_a_report_says_what_costs_nothing() -> None:
    found = Found(
        job=JobInfo("job", "/traces/job", 2, (0, 1), (40, 41, 42)),
        triage=triage_in_words(of_job(INPUT)),
        profiles=(),
        blame="no waiting",
        whatif="no replay",
        warnings=(),
    )
    report = triage_report(found, lambda *words: " ".join(words), "now")
    sentence = absorbed_in_words(INPUT, STEP_US)
    assert f"## What costs nothing\n\n- absorbed: {sentence}\n" in markdown(report)
    assert f'<h2>What costs nothing</h2>\n<ul class="tree"><li>absorbed: {escape(sentence)}' in html(report)
    silent = triage_report(replace(found, triage=triage_in_words(of_job())), lambda *words: " ".join(words), "now")
    assert "What costs nothing" not in markdown(silent)


def test_steps_have_the_hosts_time_beside_the_devices(tiny: str) -> None:
    said = kair("steps", tiny, "-o", "wide").out.splitlines()
    assert said[0].startswith(
        "3 ranks: step 999 µs, mean of 4 steps (2-5), on the devices: hosts run ahead; the slowest"
    )
    assert any(line.split() == ["step", "rank", "begin", "duration", "host", "operations"] for line in said)
    found = data(kair("steps", tiny, "--json"), "steps")
    assert (found["timed_on"], {row["host_us"] for row in found["steps"]}) == ("device", {390})
    other = kair("steps", SYNCHRONISED, "-o", "wide").out.splitlines()
    assert "on the devices" not in other[0]
    assert any(line.split() == ["step", "rank", "begin", "duration", "operations"] for line in other)


def test_a_rank_is_shown_with_its_lead(tiny: str) -> None:
    said = kair("rank", tiny, "--rank", "1").out
    assert said.startswith("rank 1: no part of its step is slower ")
    assert "; its step takes 999 µs (on the devices: hosts run ahead), its role's 999 µs\n" in said
    assert "\nhost: 1.32 ms ahead of its device at least; it could take 609 µs a step longer before the de" in said
    assert "\noperations completed over the step, those on the device\n" in said
    assert data(kair("rank", tiny, "--rank", "1", "--json"), "rank")["timed_on"] == "device"
    other = kair("rank", SYNCHRONISED, "--rank", "1").out
    assert "ahead" not in other
    assert "\noperations completed over the step\n" in other


def test_a_timeline_can_be_asked_for_what_comes_before_the_step(tiny: str) -> None:
    said = kair("timeline", tiny, "--step", "2", "--around", "1", "--at", "-1500", "--unfold", "1").out
    assert " 1.50 ms before the step: 150 µs instead of 30.0 µs" in said.splitlines()[0]
    assert "threads work for it up to 1.50 ms before that" in said
    found = data(kair("timeline", tiny, "--step", "2", "--cursor", "1@-1450", "--json"), "timeline")
    (under,) = found["under"]
    assert under["operator"].startswith("enumerate(DataLoader)")
    part = kair("timeline", tiny, "--step", "2", "--from", "-1500", "--to", "100", "-o", "svg").out
    assert "and 1.50 ms before it" in "".join(Xml.fromstring(part).itertext())
    assert "run ahead" not in kair("timeline", SYNCHRONISED).out


def test_pinpoint_explains_starts_before_the_step(tiny: str) -> None:
    explained = "a start before 0: work of a host that runs ahead, before its device begins the step"
    assert explained in kair("pinpoint", tiny, "--rank", "1").out
    assert explained not in kair("pinpoint", SYNCHRONISED, "--rank", "2").out


def test_whatif_tells_of_fixes_that_hosts_absorb(tiny: str) -> None:
    asked = ("whatif", tiny, "--only-fixes", "--fix", "rank=1+kind=input")
    line = "absorbed: with rank=1+kind=input a step takes as long: rank 1's host is 1.32 ms ahead of its device (it "
    assert line in kair(*asked).out
    assert line in kair(*asked, "-o", "tree").out
    (one,) = data(kair(*asked, "--json"), "whatif")["absorbed"]
    assert (one["fix"], one["ranks"]) == ("rank=1+kind=input", [1])
    assert "absorbed" not in kair("whatif", tiny, "--only-fixes", "--fix", "rank=1+kind=compute").out


@pytest.mark.slow
def test_sensitivity_says_how_much_hosts_absorb(tiny: str) -> None:
    asked = ("sensitivity", tiny, "--draws", "20", "--fault")
    told = "slow host: hosts run ahead: until a rank's host takes 609 µs a step longer, or once 1.32 ms, nobody waits"
    assert told in kair(*asked, "slow_host").out
    assert "hosts run ahead" not in kair(*asked, "slow_device").out
    found = data(kair(*asked, "slow_host", "--json"), "sensitivity")
    assert found["absorbs_once_us"] == 1325
    not_always = replace(cli_samples.sensitivity(), absorbs_us_per_step=19_700.0)
    assert absorbs_in_words(not_always) == (
        "hosts run ahead: until a rank's host takes 19.7 ms a step longer, nobody waits for it"
    )


@pytest.mark.slow
@pytest.mark.skipif(not RUN_AHEAD.exists(), reason="the cases are not beside this checkout")
def test_a_simulated_job_with_a_slow_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    job = str(RUN_AHEAD / "input_absorbed" / "input")
    report = tmp_path / "report.md"
    said = kair("triage", job, "--report", str(report)).out
    assert said.startswith(
        "no straggler: 8 ranks, 10 steps of 39.8 ms; rank 1's input takes 11.4 ms a step longer, which costs"
    )
    assert "## What costs nothing" in report.read_text()
    assert "launch queue  126 launches" in kair("info", job).out
