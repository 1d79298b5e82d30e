"""`kair triage --report`: one file that says all, in which names from a trace are text and nothing else."""

import html as html_entities
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support import cli_samples
from support.cli_samples import HOSTILE, kair, store_variables
from support.places import SAMPLES

from kair_engine.results.triage import ShownBy
from kair_engine.results.whatif import Fix
from kair_tui.commands.triage_report import _asker
from kair_tui.render.answer import JobInfo
from kair_tui.render.report.html import html
from kair_tui.render.report.markdown import markdown
from kair_tui.render.report.triage import Found, triage_report
from kair_tui.render.triage import options_of
from kair_tui.render.warnings import WarningInWords

SAMPLE = SAMPLES / "slow_operator"
HTML = '</style></title><script>alert(1)</script><img src=x onerror="a()">&lt;"\'><svg/onload=b()>'
MARKS = "](javascript:c) ![x](http://h/p.png) www.h.org `code` ``` | cell | **b** @oncall <!-- $x$ ~~s~~ # h"
EVIL = f"{HOSTILE} {HTML} {MARKS}\ud800"
TAGS = {"html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "h1", "h2", "h3", "p"}
TAGS |= {"strong", "code", "dl", "div", "dt", "dd", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "figure"}
TAGS |= {"figcaption", "svg", "rect", "text", "path", "line"}


class Elements(HTMLParser):
    """What a browser makes of a page: its elements, their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def evil() -> Found:
    """Every text that a trace can hold is hostile."""
    return Found(
        job=JobInfo(EVIL, EVIL, 3, (0, 1), (40, 41, 42)),
        triage=cli_samples.triage(EVIL),
        profiles=(cli_samples.rank(EVIL),),
        blame=cli_samples.blame(EVIL),
        whatif=cli_samples.whatif(EVIL),
        warnings=(WarningInWords("evil", EVIL),),
    )


def asked(*words: str) -> str:
    return shlex.join(["kair", *words, EVIL])


def test_names_from_a_trace_make_no_elements() -> None:
    page = html(triage_report(evil(), asked, EVIL))
    found = Elements(page)
    assert found.tags <= TAGS, found.tags - TAGS
    assert not any(name.startswith("on") or name in ("src", "href", "style") for name in found.attributes)
    assert "<script>alert(1)</script>" in found.text, "names are there, as text"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", page)
    assert "default-src 'none'" in html_entities.unescape(page)


def test_names_from_a_trace_make_no_marks_links_or_mentions() -> None:
    text = markdown(triage_report(evil(), asked, EVIL))
    # What stands between backticks, on a line or in a block, is shown as it is.
    prose = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$|(?<![`\\])(`+)(?!`).*?(?<!`)\2(?!`)", "", text)
    assert not re.search(r"(?<!\\)[<](?!!-- -->)", prose), "no element"
    assert not re.search(r"(?<!\\)\]\(|(?<!\\)!\[", prose), "no link, no image"
    assert not re.search(r"(?i)\w://\w|www\.\w|@\w", prose), "nothing that becomes a link, nobody who is called"
    assert all(line.count("|") - line.count(r"\|") in (0, *range(3, 9)) for line in prose.splitlines())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample traces are not recorded yet")
def test_a_report_says_all_that_was_found_and_how_to_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    page, text = tmp_path / "incident.html", tmp_path / "incident.md"
    for file in (page, text):
        outcome = kair("triage", str(SAMPLE), "--step", "4-9", "--report", str(file), "--gpu-cost", "2")
        assert outcome.status == 0, outcome.err
        assert outcome.out.startswith("straggler: rank 2 (compute, "), "the answer is printed all the same"
    shown = Elements(page.read_text())
    headline = outcome.out.splitlines()[0]
    assert headline in shown.text
    assert headline in text.read_text()
    assert not shown.tags & {"script", "link", "img", "iframe", "a"}
    assert page.read_text().count("<svg") == 2, "every rank's score, and the curve of the accused one"
    for title in ("Every rank", "Rank 2 beside its peers", "Whom ranks waited for", "What it costs"):
        assert title in shown.text
        assert f"## {title}" in text.read_text()
    commands = {html_entities.unescape(one) for one in re.findall("<code>(.*?)</code>", page.read_text())}
    assert {shlex.split(one)[1] for one in commands} == {"triage", "localize", "blame", "rank", "whatif"}
    assert all(f"`{one}`" in text.read_text() for one in commands)
    assert all(str(SAMPLE) in one and "--step 4-9" in one for one in commands)
    (triage,) = (one for one in commands if one.startswith("kair triage"))
    assert kair(*shlex.split(triage)[1:]).out == outcome.out


def test_a_command_that_is_pasted_runs_nothing_but_kair(tmp_path: Path) -> None:
    operator = "x$(touch owned);`id`'*"
    shown = ShownBy("whatif", fixes=(Fix(operators=(operator,)),))
    trace = replace(cli_samples.trace(), job=replace(cli_samples.job(), source=f"/traces/{operator}"), steps=(40, 42))
    line = _asker(trace, 2.0)(shown.analysis, *options_of(shown))
    assert shlex.split(line)[2:5] == [f"/traces/{operator}", "--fix", f"op={operator}"]
    assert shlex.split(line)[5:] == ["--step", "40,42", "--gpu-cost", "2"]
    stored = replace(trace.job, stored_in=str(tmp_path / "job123" / "recording-1"))
    line = _asker(replace(trace, job=stored, steps=stored.steps), None)("blame")
    assert line == f"kair blame job123 --store {tmp_path}"


def test_a_report_of_another_kind_or_nowhere_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_variables(monkeypatch, tmp_path)
    for name, what in (("a.pdf", "a report is .html or .md"), ("none/a.html", "there is no folder")):
        outcome = kair("triage", str(SAMPLE), "--report", str(tmp_path / name))
        assert (outcome.status, outcome.out) == (2, "")
        assert what in outcome.err
    assert list(tmp_path.glob("**/a.*")) == []


def test_what_cannot_be_answered_is_said_in_its_place() -> None:
    found = evil()
    silent = Found(found.job, found.triage, (), "Not to be had: no waiting.", "Not to be had: no replay.", ())
    text = markdown(triage_report(silent, asked, "now"))
    assert "Not to be had: no waiting." in text
    assert "Not to be had: no replay." in text
