"""`kair ticket` and `kair triage --oneline`: what is handed over says all, harms nobody, and drains nothing unasked."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support import cli_samples
from support.cli_samples import HOSTILE, Outcome, answering, assert_valid, kair, store_variables
from support.places import SAMPLES

from kair_engine.causes import CAUSES
from kair_engine.evidence.parts import PARTS
from kair_engine.ranks import Rank
from kair_engine.results.confirm import ConfirmRun
from kair_engine.results.evidence import Difference, Explanation, Happening
from kair_engine.results.evidence_kinds import Excess, LargerBatch, Unheard
from kair_engine.results.ticket import TicketResult
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.digest import recording_digest
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.measures import EvidenceSource
from kair_mitigate.draining import drain_commands, drain_template
from kair_tui.render.answer import Document, PageOptions
from kair_tui.render.oneline import oneline
from kair_tui.render.ticket import VIEW, ticket_of, ticket_text
from kair_tui.render.triage import suggestion_of, triage_in_words
from kair_tui.render.written import written

SAMPLE = SAMPLES / "slow_operator"
recorded = pytest.mark.skipif(not SAMPLE.exists(), reason="the sample traces are not recorded yet")
HTML = '</style><script>alert(1)</script><img src=x onerror="a()">'
MARKS = "](javascript:c) ![x](http://h/p.png) www.h.org `code` ``` | cell | **b** @oncall #12 <!-- $x$ ~~s~~\n# h\n- l"
EVIL = f"{HOSTILE} {HTML} {MARKS}\ud800"
DEVICE = "node7 GPU 3, GPU-5f3e0000-1111-2222-3333-444455556666, 0000:1b:00.0"


def found(**changed: Any) -> TriageResult:  # noqa: ANN401
    """A triage that accuses rank 16 on node7, its finding changed so."""
    told = (Excess(41_000.0, 0.12, ranks=(Rank(16),), about="compute"),)
    finding = Finding("compute", "persistent", (16,), ("node7",), None, None, (1, 2, 3), 1e-9, 41_000.0, 1.14, told)
    result = TriageResult("straggler", (replace(finding, **changed),), (), 340_000.0, 1e6, 0.0, (1, 2, 3), ())
    return triage_in_words(result)


def explained(text: str = "SW_THERMAL_SLOWDOWN", **changed: Any) -> Explanation:  # noqa: ANN401
    of = Explanation(
        part="thermal",
        word="explains",
        rank=Rank(16),
        entity=f"gpu:{text}",
        device=f"node7 GPU 3 {text}",
        measure="gpu_sm_clock",
        own=1395.0,
        peers=1755.0,
        unit="MHz",
        predicted_us=38_000.0,
        measured_us=41_000.0,
        text=text,
        tried=412,
        command=text,
    )
    return replace(of, **changed)


def ask(*words: str) -> str:
    return shlex.join(["kair", *words])


def handed_over(triage: TriageResult) -> TicketResult:
    """The ticket of its first finding."""
    told = cli_samples.ticket()
    return ticket_of(triage, 1, ask, told.fingerprint, told.timeline)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No scheduler is seen, and nothing is configured."""
    store_variables(monkeypatch, tmp_path)
    for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "KAIR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def program(place: Path, name: str, status: int = 0) -> Path:
    """A command on the path that writes down how it was called, a line a word; where, is returned."""
    asked = place / f"{name}-asked"
    file = place / "bin" / name
    file.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {asked}\necho gone wrong >&2\nexit {status}\n')
    file.chmod(0o755)
    return asked


def configured(place: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (place / "kair.toml").write_text(text)
    monkeypatch.setenv("KAIR_CONFIG", str(place / "kair.toml"))


def drained(
    monkeypatch: pytest.MonkeyPatch,
    triage: TriageResult,
    *options: str,
    job: str = "job123",
    scheduled: tuple[str, ...] = ("job:4711",),
) -> Outcome:
    """`kair ticket --drain` of a job whose triage is known, and that recorded what scheduled it."""
    trace = cli_samples.trace(job)
    device = DeviceIdentity(pci="0000:1b:00.0", index=3)
    of = replace(
        trace.job, hosts={16: "node7"}, identity={16: RankIdentity(16, "node7", device=device, scheduled=scheduled)}
    )
    with answering(monkeypatch, {"triage": triage}, replace(trace, job=of)):
        return kair("ticket", "--drain", *options)


@pytest.mark.slow
@recorded
def test_a_ticket_says_who_why_what_it_costs_and_how_to_see_it(place: Path) -> None:
    outcome = kair("ticket", str(SAMPLE), "--gpu-cost", "2")
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith("# \\[kair\\] rank 2 on node0: compute, ")
    title = outcome.out.splitlines()[0]
    assert re.search(r"[\d.]+ ms a step \([\d.]+ %\)$", title)
    sections = dict(re.findall(r"(?ms)^## (.*?)\n\n(.*?)(?=\n## |\Z)", outcome.out))
    assert [*sections] == [
        "What it costs",
        "Proofs",
        "What explains it",
        "Timeline",
        "What to do",
        "See it yourself",
        "Fingerprint",
    ]
    assert "GPU-hours, " in sections["What it costs"], "and money"
    assert re.findall(r"(?m)^\d\.", sections["Proofs"]) == ["1.", "2.", "3."]
    for line in re.findall(r"(?m)^- `(.*)`$", sections["See it yourself"]):
        assert kair(*shlex.split(line)[1:]).status == 0, line
    drawn, _, _ = re.findall("`(.*)`", sections["Timeline"])[0].partition(" > ")
    assert kair(*shlex.split(drawn)[1:]).out.startswith("<svg")
    assert not (place / "bin").exists() or not any((place / "bin").iterdir())


@pytest.mark.slow
@recorded
@pytest.mark.usefixtures("place")
def test_the_record_is_what_the_schema_says() -> None:
    document = json.loads(kair("ticket", str(SAMPLE), "--json").out)
    assert_valid(document, "ticket")
    data = document["data"]
    assert (data["verdict"], data["finding"], len(data["proofs"])) == ("straggler", 1, 3)
    assert data["fingerprint"]["ranks"] == [0, 1, 2, 3]
    assert (data["drain"], "take node0 out of service" in data["not_drained"]) == ([], True)
    rows = kair("ticket", str(SAMPLE), "-o", "csv").out.splitlines()
    assert (rows[0], len(rows)) == ("source,sentence,command", 4)


@pytest.mark.slow
@recorded
@pytest.mark.usefixtures("place")
def test_the_report_links_a_timeline_that_lies_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "the incident).md"
    outcome = kair("ticket", str(SAMPLE), "--report", str(file))
    assert outcome.status == 0, outcome.err
    assert "![What ranks did around the delay](<the%20incident%29.svg>)" in file.read_text()
    assert file.with_suffix(".svg").read_text().startswith("<svg")
    assert file.read_text() == outcome.out
    assert kair("ticket", str(SAMPLE), "--report", str(tmp_path / "incident.html")).status == 2
    assert kair("ticket", str(SAMPLE), "--finding", "9").status == 2


@pytest.mark.slow
@recorded
@pytest.mark.usefixtures("place")
def test_a_healthy_job_has_a_ticket_that_says_so() -> None:
    outcome = kair("ticket", str(SAMPLES / "healthy"))
    assert outcome.out.startswith("# \\[kair\\] no straggler: 4 ranks, 12 steps\n")
    assert "drain" not in outcome.out
    refused = kair("ticket", str(SAMPLES / "healthy"), "--drain")
    assert (refused.status, "no rank is accused" in refused.err) == (2, True)


def hostile() -> TriageResult:
    """Every text that a trace, telemetry or a log can hold is hostile."""
    bare = cli_samples.triage(EVIL)
    excluded, unseen = (explained(EVIL, word=word, part=EVIL) for word in ("excluded", "not_observed"))
    finding = replace(bare.findings[0], devices=(EVIL,), explanations=(explained(EVIL, rank=Rank(1)), excluded, unseen))
    differs = Difference(EVIL, (Rank(1),), (EVIL,), EVIL, EVIL, 2, "job", EVIL)
    happened = Happening(0, 5, "xid", 63.0, EVIL, EVIL, EVIL, (Rank(1),), True, 0, 2.0, True, 1)
    hostile_one: TriageResult = replace(bare, findings=(finding,), differences=(differs,), happenings=(happened,))
    return hostile_one


def test_names_become_no_marks_links_elements_or_mentions() -> None:
    triage = hostile()

    def evil_ask(*words: str) -> str:
        return shlex.join(["kair", *words, EVIL])

    told = cli_samples.ticket(EVIL)
    ticket = ticket_of(triage, 1, evil_ask, told.fingerprint, told.timeline)
    ticket = replace(ticket, drain=told.drain)
    text = ticket_text(ticket)
    for name in ("What differs", "What happened", "What explains it", "What to do", "Fingerprint"):
        assert f"\n## {name}\n" in text
    # What stands between backticks is shown as it is.
    prose = re.sub(r"(?ms)(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert not re.search(r"(?<!\\)[<](?!!-- -->)", prose), "no element"
    assert not re.search(r"(?<!\\)\]\(|(?<!\\)!\[", prose), "no link, no image"
    assert not re.search(r"(?i)\w://\w|www\.\w|@\w|#\d", prose), "nothing that becomes a link, nobody who is called"
    assert "|" not in prose.replace(r"\|", ""), "no table"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
    # No name begins a line: every line is one of the ticket's own.
    assert not [line for line in text.splitlines() if re.match("- l|# h", line)]


def shown_as(ticket: TicketResult) -> Document:
    return Document("ticket", ticket, None, ())


@pytest.mark.parametrize("color", [True, False], ids=["colour", "no colour"])
def test_a_terminal_shows_a_ticket_drawn_and_names_in_it_do_nothing(color: bool) -> None:
    told = cli_samples.ticket(f"{EVIL} [bold]b[/bold] :boom: &#27;[31m <http://h.org> [l](http://h.org)")
    drawn = written(shown_as(told), VIEW, "table", PageOptions(width=90, color=color))
    shown = re.sub(r"\x1b\[[\d;]*m", "", drawn) if color else drawn
    assert all(one.isprintable() or one == "\n" for one in shown)
    assert max(map(cell_len, shown.split("\n"))) <= 90
    assert {"What it costs", "Proofs", "What to do"} <= set(shown.split("\n"))
    assert all(text in " ".join(shown.split()) for text in ("[bold]b[/bold]", ":boom:", "&#27;[31m", "**b**"))
    assert written(shown_as(told), VIEW, "table", PageOptions(color=color)) == ticket_text(told)
    assert written(shown_as(told), VIEW, "md", PageOptions(width=90, color=color)) == ticket_text(told)
    assert written(shown_as(told), VIEW, "table", PageOptions(width=90, ascii_only=True)).isascii()


def test_a_terminal_shows_drain_commands_as_they_are_typed() -> None:
    told = replace(cli_samples.ticket("a" * 200), asked="drain")
    assert written(shown_as(told), VIEW, "table", PageOptions(width=90)) == ticket_text(told)


def test_evidence_names_the_part_in_title_proofs_and_suggestion() -> None:
    gone, unseen = explained(word="excluded", part="power_cap"), explained(word="not_observed", part="ecc")
    triage = found(explanations=(unseen, gone, explained()), devices=(DEVICE,))
    ticket = handed_over(triage)
    part = PARTS["thermal"].words
    assert ticket.title == f"[kair] rank 16 on node7: compute ({part}), 41.0 ms a step (12.1 %)"
    assert [one.source for one in ticket.proofs] == ["evidence", "recording"]
    assert "1,395 MHz" in ticket.proofs[0].sentence
    assert "1,755 MHz" in ticket.proofs[0].sentence
    assert [one.word for one in ticket.parts] == ["explains", "excluded", "not_observed"], "the surest first"
    text = ticket_text(ticket)
    assert f"- device: {DEVICE}" in text
    assert text.index("- **explains**") < text.index("- excluded") < text.index("- not observed")
    assert triage.findings[0].suggestion != found().findings[0].suggestion, "of the part, not of the cause"
    consistent = found(explanations=(explained(word="consistent"),))
    assert [one.source for one in handed_over(consistent).proofs] == ["recording", "evidence"]
    assert consistent.findings[0].suggestion == found().findings[0].suggestion == suggestion_of(found().findings[0])
    assert "No part explains it." in ticket_text(handed_over(consistent))


def test_a_host_that_sleeps_for_a_larger_batch_is_not_told_to_look_for_sleeps() -> None:
    sleeps = explained(part="sleeps")
    alone = found(cause="host", explanations=(sleeps,)).findings[0]
    assert alone.suggestion == "Look for time.sleep, polling or a rate limit in what rank 16's script does."
    larger = LargerBatch(8192.0, 4096.0, 1.0, ranks=(Rank(16),))
    given = found(cause="host", explanations=(sleeps,), evidence=(larger,)).findings[0]
    assert given.suggestion.endswith("Compare how batches, experts or layers are distributed.")
    assert given.evidence[0].sentence.endswith("8.19 kB in a step, peers 4.1 kB: 100.0 % more to compute with")


def test_delays_are_the_first_proof_or_speak_against_it() -> None:
    run = ConfirmRun(
        accused=(Rank(16),),
        place="before_forward",
        dose_us=100.0,
        effects=(),
        p=0.001,
        verdict="confirmed",
        held_up_by=(Rank(16),),
        saving_us=90.0,
        saving_low_us=80.0,
        saving_high_us=100.0,
        would_see_us=None,
        steps_needed=0,
        steps_covered=10,
        steps_used=10,
        noise_us=None,
        cost_us=1.0,
        budget=0.01,
    )
    proven = replace(found(), confirmed=run)
    ticket = handed_over(proven)
    assert (ticket.proofs[0].source, ticket.against) == ("delays", ())
    cleared = replace(found(), confirmed=replace(run, verdict="withdrawn", held_up_by=()))
    ticket = handed_over(cleared)
    assert [one.source for one in ticket.proofs] == ["recording"]
    assert "rank 16 does not hold up the job" in ticket.against[0]


@pytest.mark.slow
@recorded
@pytest.mark.usefixtures("place")
def test_one_line_says_who_why_what_it_costs_and_how_sure() -> None:
    line = kair("triage", str(SAMPLE), "--oneline").out
    assert re.fullmatch(
        r"slow_operator: straggler: rank 2 on node0: compute, [\d.]+ ms a step \([\d.]+ %\), p <1e-6, 12 steps\n", line
    )
    assert kair("triage", str(SAMPLE), "-o", "oneline").out == line
    assert kair("triage", str(SAMPLE), "--oneline", "--fields", "rank").status == 2
    assert kair("localize", str(SAMPLE), "--oneline").status == 2
    assert kair("shell", str(SAMPLE), "-c", "triage --oneline").out == line


def test_one_line_names_device_and_part() -> None:
    line = oneline(found(devices=(DEVICE,), explanations=(explained(),)), "job123")
    assert line.startswith("job123: straggler: rank 16 on node7 GPU 3, GPU-5f3e0000, 0000:1b:00.0: compute (")
    assert line.endswith("41.0 ms a step (12.1 %), p <1e-6, 3 steps")
    assert len(line) <= 200


def test_one_line_has_the_money_that_a_fix_saves_and_none_where_it_saves_none() -> None:
    def line(**changed: Any) -> str:  # noqa: ANN401
        return oneline(found(cost_per_day=1234.5, currency="EUR", **changed), "job123")

    assert line().endswith("41.0 ms a step (12.1 %), 1,234.50 EUR a day, p <1e-6, 3 steps")
    assert "EUR" not in line(slowdown=1.0) + line(cause="hang", slowdown=1.0)
    assert "a day" not in oneline(found(), "job123")


@given(st.text(), st.text(), st.text(), st.sampled_from([*CAUSES]), st.sets(st.integers(0, 9999), max_size=40))
def test_one_line_stays_one_of_two_hundred_characters(
    job: str, host: str, device: str, cause: str, ranks: set[int]
) -> None:
    accused = tuple(sorted(ranks))
    paid = {"cost_per_day": 1e9, "currency": "EUR"}
    triage = found(cause=cause, hosts=(host, host), devices=(device,), ranks=accused, operator=host, edge=host, **paid)
    line = oneline(triage, job)
    assert line.splitlines() == [line]
    assert line.isprintable() or not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", line)
    assert len(line) <= 200


def test_hosts_are_drained_by_slurm_where_its_job_was_recorded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = program(place, "scontrol")
    printed = drained(monkeypatch, found())
    assert printed.status == 0, printed.err
    assert printed.out == (
        "scontrol update NodeName=node7 State=DRAIN 'Reason=kair job123: rank 16, compute, 41.0 ms a step, 12.1 %'\n"
    )
    assert not asked.exists(), "nothing runs unasked"
    ran = drained(monkeypatch, found(), "--yes")
    assert (ran.status, ran.out.endswith(": exit status 0: gone wrong\n")) == (0, True)
    assert asked.read_text().splitlines() == [
        "update",
        "NodeName=node7",
        "State=DRAIN",
        "Reason=kair job123: rank 16, compute, 41.0 ms a step, 12.1 %",
    ]


@pytest.mark.usefixtures("place")
def test_the_scheduler_that_recorded_ranks_ran_under_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = drained(monkeypatch, found(), scheduled=("pod:ml/train-7",))
    assert (printed.status, printed.out) == (0, "kubectl cordon node7\n")
    both = drained(monkeypatch, found(), scheduled=("pod:ml/train-7", "job:4711")).out.splitlines()
    assert [line.split()[0] for line in both] == ["scontrol", "kubectl"], "Slurm within Kubernetes"


@pytest.mark.parametrize(("kind", "command"), [("slurm", "scontrol update"), ("kubernetes", "kubectl cordon")])
@pytest.mark.usefixtures("place")
def test_evidence_about_the_job_s_hosts_shows_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    about = replace(found(), sources=(EvidenceSource("a file", kind, hosts=("Node7", "node8")),))
    assert drained(monkeypatch, about, scheduled=()).out.startswith(command)
    elsewhere = replace(found(), sources=(EvidenceSource("a file", kind, hosts=("node8",)),))
    assert drained(monkeypatch, elsewhere, scheduled=()).status == 2, "another cluster's events"


@pytest.mark.parametrize("name", ["kubectl", "scontrol"])
def test_what_can_be_asked_here_says_nothing_of_what_ran_the_job(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = program(place, name)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    outcome = drained(monkeypatch, found(), "--yes", scheduled=())
    assert (outcome.status, outcome.out, asked.exists()) == (2, "", False)
    assert outcome.err.startswith("kair: error: no drain command: take node7 out of service by hand (")
    assert "\nhint: kair ticket --help " in outcome.err
    configured(place, monkeypatch, "[drain]\ncommand = 'site-drain {host}'")
    assert drained(monkeypatch, found(), scheduled=()).out == "site-drain node7\n"


@pytest.mark.usefixtures("place")
def test_a_pod_is_no_node_that_could_be_cordoned(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = drained(monkeypatch, found(), scheduled=("pod:ml/node7",))
    assert (outcome.status, outcome.out) == (2, "")
    assert "node7 is a pod; cordon its node" in outcome.err
    assert drained(monkeypatch, found(), scheduled=("pod:ml/node7", "job:4711")).out.startswith("scontrol update")


def test_the_site_s_own_command_is_filled_in_word_by_word(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = program(place, "site-drain", status=3)
    program(place, "scontrol")
    configured(place, monkeypatch, """[drain]\ncommand = "site-drain --why '{reason}; {job}' {host} {device}"\n""")
    told = drained(monkeypatch, found(), job="a; touch /tmp/$(id) `id`")
    assert told.status == 0, told.err
    words = shlex.split(told.out)
    assert (words[0], words[3:]) == ("site-drain", ["node7", "node7 GPU 3, 0000:1b:00.0"])
    assert not set("$`()\\'\"&|<>") & set(words[2]), "nothing that a shell would do something with"
    assert not asked.exists()
    ran = drained(monkeypatch, found(), "--yes")
    assert (ran.status, "exit status 3: gone wrong" in ran.out) == (1, True)
    assert asked.read_text().splitlines()[2] == "node7"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[drain]\ncommand = 'drain {hots}'", "{hots} is not known"),
        ("[drain]\ncommand = 'drain'", "no {host}"),
        ("[drain]\ncommand = '{host}'", "the program"),
        ('[drain]\ncommand = "drain \'{host}"', "No closing quotation"),
        ("[drain]\ncommand = ['drain']", "no text"),
        ("[drain\n", "no TOML"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    configured(place, monkeypatch, text)
    outcome = drained(monkeypatch, found())
    assert (outcome.status, outcome.out) == (2, "")
    assert said in outcome.err
    assert "kair.toml" in outcome.err


@pytest.mark.parametrize(
    "host", ["node7; rm -rf x", "$(id)", "--all", "ALL", "", "a b", "node[1-9]", "node7,node8", "node7\n"]
)
@pytest.mark.usefixtures("place")
def test_what_is_no_host_s_name_drains_nothing(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    outcome = drained(monkeypatch, found(hosts=(host,)), "--yes")
    assert (outcome.status, outcome.out) == (2, "")
    assert "is no host's name" in outcome.err


@given(st.text(), st.text(), st.text())
def test_what_is_filled_in_stays_in_its_word_and_holds_nothing_for_a_shell(reason: str, device: str, job: str) -> None:
    template = drain_template("ssh admin@{host} drain {reason} '{device} {job}'")
    (words,) = drain_commands("node7", reason, (), device=device, job=job, template=template)
    assert (len(words), words[:3]) == (5, ["ssh", "admin@node7", "drain"])
    assert re.fullmatch(r"[A-Za-z0-9 ._,:/+%=-]*", words[3] + words[4])
    assert not words[3].startswith("-")


@pytest.mark.parametrize(
    "changed",
    [
        {"cause": "uneven_work"},
        {"cause": "garbage_collection"},
        {"cause": "input"},
        {"cause": "profiler"},
        {"cause": "hang"},
        {"hosts": ()},
        {"explanations": (explained(part="cpu_quota"),)},
    ],
)
def test_where_draining_does_not_help_it_is_refused_with_a_reason(
    place: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    asked = program(place, "scontrol")
    outcome = drained(monkeypatch, found(**changed), "--yes")
    assert (outcome.status, outcome.out, asked.exists()) == (2, "", False)
    assert outcome.err.startswith("kair: error: no drain command: ")


@pytest.mark.usefixtures("place")
def test_a_host_that_is_not_heard_can_be_drained_though_the_job_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    told = drained(monkeypatch, found(cause="hang", evidence=(Unheard(ranks=(Rank(16),)),)))
    assert (told.status, "NodeName=node7" in told.out) == (0, True)


@recorded
@pytest.mark.usefixtures("place")
def test_in_a_shell_options_of_what_acts_are_written_out() -> None:
    outcome = kair("shell", str(SAMPLE), "-c", "default x = --yes; ticket --drain $x")
    assert outcome.status == 2
    assert "options are written out" in outcome.err
    assert kair("ticket", str(SAMPLE), "--yes").status == 2


def test_a_recording_is_known_again_wherever_it_lies_and_no_other_is() -> None:
    job = cli_samples.job()
    assert recording_digest(replace(job, name="other", source="/elsewhere")) == recording_digest(job)
    later = replace(job.step_times, duration_ns=(100_000_000, 110_000_001))
    assert recording_digest(replace(job, step_times=later)) != recording_digest(job)


@pytest.mark.slow
@pytest.mark.parametrize("text", ['[drain]\ncomand = "x {host}"\n', 'drain = "x {host}"\n'])
def test_a_misspelt_setting_has_no_other_command_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "kair.toml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("KAIR_CONFIG", str(file))
    outcome = kair("ticket", str(SAMPLE), "--drain")
    assert outcome.status == 2 and outcome.out == ""
    assert "[drain] has command, and nothing else" in outcome.err


def test_no_host_is_drained_before_the_ticket_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "there.md").mkdir()
    outcome = kair("ticket", str(SAMPLE), "--drain", "--report", str(tmp_path / "there.md"))
    assert outcome.status == 2 and "cannot be written" in outcome.err
    assert not (tmp_path / "there.svg").exists()
