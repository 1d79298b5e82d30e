"""`kair triage --report`: one file that says all, in which names from a trace are text and nothing else."""

import html as html_entities
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from support import cli_samples
from support.cli_samples import HOSTILE, kair, store_variables
from support.places import SAMPLES

from kair.app.jobs import JobSource
from kair.app.session import Session
from kair_engine.ranks import Rank
from kair_engine.results.evidence_kinds import ShownBy
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.triage import RankedRank
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_tui.cli.asking import Asker
from kair_tui.commands.triage_report import lines_of
from kair_tui.render.answer import JobInfo
from kair_tui.render.drawing import RAMP
from kair_tui.render.report.pictures import around_delay, differs, document, score_grid
from kair_tui.render.report.templates import html, markdown
from kair_tui.render.report.triage import Found, triage_report
from kair_tui.render.triage import options_of
from kair_tui.render.warnings import WarningInWords

SAMPLE = SAMPLES / "slow_operator"
HTML = '</style></title><script>alert(1)</script><img src=x onerror="a()">&lt;"\'><svg/onload=b()>'
MARKS = "](javascript:c) ![x](http://h/p.png) www.h.org `code` ``` | cell | **b** @oncall <!-- $x$ ~~s~~ # h"
EVIL = f"{HOSTILE} {HTML} {MARKS}\ud800"
TAGS = {"html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "h1", "h2", "h3", "p"}
TAGS |= {"strong", "code", "dl", "div", "dt", "dd", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "figure"}
TAGS |= {"figcaption", "svg", "rect", "text", "path", "line", "polyline", "circle"}


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


def asking(trace: Trace) -> Asker:
    """Whoever asks about a trace that is not read."""
    chosen = None if trace.steps == trace.job.steps else trace.steps
    session = Session(replace(trace, steps=trace.job.steps), JobSource("job", Path("job"), stored=False))
    return Asker(session, chosen)


def evil() -> Found:
    """Every text that a trace can hold is hostile."""
    return Found(
        job=JobInfo(EVIL, EVIL, 3, (0, 1), (40, 41, 42)),
        triage=cli_samples.triage(EVIL),
        profiles=(cli_samples.rank(EVIL),),
        blame=cli_samples.blame(EVIL),
        whatif=cli_samples.whatif(EVIL),
        warnings=(WarningInWords("evil", EVIL),),
        timeline=cli_samples.timeline(EVIL),
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


@pytest.mark.slow
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
    pictures = (
        "where the step goes, the delay, the step with it fixed, every rank's score, the curve of the accused one"
    )
    assert page.read_text().count("<svg") == 5, pictures
    for name in ("timeline", "fixed"):
        assert f"](incident.{name}.svg)" in text.read_text()
        assert (tmp_path / f"incident.{name}.svg").exists()
    assert "with rank=2+kind=compute: step " in shown.text
    for title in ("Every rank", "Rank 2 and its peers", "Whom ranks waited for", "What it costs"):
        assert title in shown.text
        assert f"## {title}" in text.read_text()
    commands = {html_entities.unescape(one) for one in re.findall("<code>(.*?)</code>", page.read_text())}
    assert {shlex.split(one)[1] for one in commands} == {"triage", "timeline", "localize", "blame", "rank", "whatif"}
    assert all(f"`{one}`" in text.read_text() for one in commands)
    assert all(str(SAMPLE) in one and "--step 4-9" in one for one in commands)
    (triage,) = (one for one in commands if one.startswith("kair triage"))
    assert kair(*shlex.split(triage)[1:]).out == outcome.out


def test_a_command_that_is_pasted_runs_nothing_but_kair(tmp_path: Path) -> None:
    operator = "x$(touch owned);`id`'*"
    shown = ShownBy("whatif", fixes=(Fix(operators=(operator,)),))
    trace = replace(cli_samples.trace(), job=replace(cli_samples.job(), source=f"/traces/{operator}"), steps=(40, 42))
    line = lines_of(asking(trace), 2.0)(shown.analysis, *options_of(shown))
    assert shlex.split(line)[2:5] == [f"/traces/{operator}", "--fix", f"op={operator}"]
    assert shlex.split(line)[5:] == ["--step", "40,42", "--gpu-cost", "2"]
    stored = replace(trace.job, stored_in=str(tmp_path / "job123" / "recording-1"))
    line = lines_of(asking(replace(trace, job=stored, steps=stored.steps)), None)("blame")
    assert line == f"kair blame job123 --store {tmp_path}"


def test_what_cannot_be_answered_is_said_in_its_place() -> None:
    found = evil()
    silent = Found(found.job, found.triage, (), "Not to be had: no waiting.", "Not to be had: no replay.", ())
    text = markdown(triage_report(silent, asked, "now"))
    assert "Not to be had: no waiting." in text
    assert "Not to be had: no replay." in text


def row(rank: int, host: str | None, score: float = 0.1) -> RankedRank:
    return RankedRank(Rank(rank), host, "all", score, score > 1, 0.0, 0.0)


def test_each_host_has_a_row_of_the_grid() -> None:
    """Ranks are not numbered host by host: each is where its host is."""
    drawn = score_grid([row(3, "node-b", 9.0), row(2, "node-a"), row(1, "node-b"), row(0, "node-a")])
    assert drawn.signs == (f"node-a |{RAMP[1] * 2}|", f"node-b |{RAMP[1]}{RAMP[-1]}|")
    assert "a row for each host" in drawn.caption
    places = {cell[0].text: (cell.get("x"), cell.get("y")) for cell in drawn.svg if cell.tag == "rect"}
    at = {text.split()[1]: place for text, place in places.items() if text is not None}
    assert at["0"][1] == at["2"][1] != at["1"][1] == at["3"][1]
    assert at["0"][0] == at["1"][0] != at["2"][0] == at["3"][0]


@pytest.mark.parametrize("hosts", [("a", "a", "a"), ("a", None, "b"), (None, None, None)])
def test_where_hosts_tell_nothing_ranks_are_in_order(hosts: tuple[str | None, ...]) -> None:
    drawn = score_grid([row(rank, host) for rank, host in enumerate(hosts)])
    assert "rank 0 at the top left, 8 in a row" in drawn.caption
    assert len(drawn.signs) == 1


def test_many_hosts_make_no_endless_picture_and_long_names_keep_their_ends() -> None:
    ranks = [row(rank, f"a-very-long-cluster-name-node-{rank // 8:04d}") for rank in range(2048)]
    drawn = score_grid(ranks)
    assert float(drawn.svg.attrib["viewBox"].split()[3]) <= 256 * 4 + 8
    assert drawn.signs[255].startswith("…er-name-node-0255 |")


def curve(own: float, low: float, high: float) -> RankProfileResult:
    points = tuple(replace(one, completed=own, peers_low=low, peers_high=high) for one in cli_samples.rank().curve)
    return replace(cli_samples.rank(), curve=points)


def test_a_curve_is_shown_where_the_rank_differs_from_its_peers() -> None:
    """Outside by 0.05 of a band of 0.02 is far, by 0.03 it is not; nothing is without peers."""
    assert differs(curve(0.40, 0.45, 0.47))
    assert differs(curve(0.52, 0.45, 0.47))
    assert not differs(curve(0.42, 0.45, 0.47))
    assert not differs(curve(0.46, 0.45, 0.47))
    alone = tuple(replace(one, peers_low=None, peers_high=None) for one in curve(0.4, 0.0, 0.0).curve)
    assert not differs(replace(curve(0.4, 0.0, 0.0), curve=alone))


@pytest.mark.slow
def test_a_healthy_job_has_neither_curve_nor_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    text = kair("triage", str(SAMPLES / "healthy"), "-o", "md").out
    assert "## Every rank" in text
    assert "beside its peers" not in text
    assert "Around the delay" not in text


def test_the_timeline_of_a_report_stands_by_itself_beside_markdown() -> None:
    drawn = around_delay(cli_samples.timeline("aten::add"))
    assert not any("{" in one.tag for one in drawn.svg.iter()), "no namespace, which HTML would print"
    alone = fromstring(document(drawn))
    assert alone.tag == "{http://www.w3.org/2000/svg}svg"
    assert drawn.svg.get("xmlns") is None, "the one in the page stays as it is"
    report = triage_report(replace(evil(), timeline=cli_samples.timeline("aten::add")), asked, "now")
    assert "![Around the delay](a%20b.timeline.svg)" in markdown(report, {"timeline": "a b.timeline.svg"})
    assert "![Around" not in markdown(report)
