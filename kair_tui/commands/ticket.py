"""`kair ticket`: writes a finding to hand over, as Markdown, and the commands that drain its hosts."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from kair.app.fingerprint import fingerprint
from kair.app.identities import Scheduling, identities_of, scheduling_of
from kair.app.question import Question
from kair_engine.causes import CAUSES
from kair_engine.errors import KairError, UsageError
from kair_engine.results.money import GpuCost
from kair_engine.results.ticket import DrainCommand, TicketResult, TimelinePicture
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.model import Job
from kair_tui import __version__
from kair_tui.cli.asking import Asker
from kair_tui.cli.options import EVIDENCE, GPU_COST, Option
from kair_tui.commands.configuration import drain_words
from kair_tui.commands.report_file import MARKDOWN, require_form, write_text
from kair_tui.commands.triage_report import lines_of
from kair_tui.render.oneline import cost_in_words
from kair_tui.render.report.triage import Ask
from kair_tui.render.text import spaced, to_ascii
from kair_tui.render.ticket import number_of, ticket_of, ticket_text
from kair_tui.render.units import plural, ranks_in_words
from kair_tui.render.verdict import cause_in_words

RENDERER = "kair_tui.render.ticket"
_LONGEST_REASON: Final = 200
"""The most characters of a reason: a scheduler shows it in one column."""


def run(
    asker: Asker,
    *,
    finding: Annotated[
        int | None,
        Option("--finding", "Which finding, by its number. Default: the first that accuses a rank.", "N", 1),
    ] = None,
    gpu_cost: Annotated[GpuCost | None, GPU_COST] = None,
    evidence: Annotated[Sequence[str], EVIDENCE] = (),
    report: Annotated[
        Path | None,
        Option("--report", "Also write it to this .md file, and the timeline as .svg next to it.", metavar="FILE"),
    ] = None,
    drain: Annotated[bool, Option("--drain", "Only print the commands that drain the accused hosts.")] = False,
    yes: Annotated[bool, Option("--yes", "With --drain: run the commands. Default: they are printed.")] = False,
) -> TicketResult:
    """Ask for the triage, and return one of its findings as a ticket.

    Raises UsageError for a missing finding, a report that cannot be written, and hosts that must not be drained;
    InputError if named evidence cannot be read.
    """
    if yes and not drain:
        raise UsageError("--yes belongs to --drain", "kair ticket JOB --drain --yes")
    require_form(report, MARKDOWN, "a ticket is .md", "kair ticket JOB --report incident.md")
    # Checked before any host is drained.
    if report is not None and (report.is_dir() or not os.access(report.parent, os.W_OK)):
        raise UsageError(f"--report {report} cannot be written", "choose another place")
    trace = asker.trace
    answer = asker.ask(Question.of("triage", gpu_cost=gpu_cost, evidence=evidence))
    asker.session.keep(answer)
    triaged: TriageResult = answer.result
    number = _chosen(triaged, finding) or number_of(triaged)
    ask = lines_of(asker, gpu_cost, evidence)
    accused = None if number is None else triaged.findings[number - 1]
    commands, why_not = _drain_commands(trace.job, triaged, accused)
    if drain and why_not is not None:
        raise UsageError(f"no drain command: {why_not}", _drainable(triaged, number, accused))
    picture, timeline = _timeline(asker, accused, ask, draws=report is not None)
    if report is not None and picture is not None:
        timeline = replace(timeline, file=report.with_suffix(".svg").name)
    ticket = replace(
        ticket_of(triaged, number, ask, fingerprint(trace, triaged, __version__), timeline),
        drain=tuple(_run(*one) if yes else DrainCommand(one[0], shlex.join(one[1])) for one in commands),
        not_drained=why_not,
        drained=yes,
        warnings=(*trace.job.warnings, *triaged.warnings),
    )
    if report is not None:
        if picture is not None:
            write_text(report.with_suffix(".svg"), picture)
        write_text(report, ticket_text(ticket))
    return replace(ticket, asked="drain") if drain else ticket


def _chosen(triaged: TriageResult, number: int | None) -> int | None:
    there = len(triaged.findings)
    if number is not None and number > there:
        raise UsageError(f"--finding {number}: there {'is' if there == 1 else 'are'} {plural(there, 'finding')}")
    return number


def _timeline(asker: Asker, accused: Finding | None, ask: Ask, *, draws: bool) -> tuple[str | None, TimelinePicture]:
    """Return the picture, if one is wanted and possible, and the note about it."""
    around = accused.ranks[0] if accused is not None and accused.ranks else None
    words = [] if around is None else ["--around", str(around)]
    shown_by = TimelinePicture(f"{ask('timeline', *words, '-o', 'svg')} > timeline.svg")
    if not asker.trace.steps or asker.trace.job.is_recorded_only:
        kind = "history of steps, none of them sampled,"
        if not asker.trace.steps:
            kind = "log" if asker.trace.job.is_log else "recording of calls without times"
        return None, TimelinePicture(None, why_none=f"A {kind} has no timeline.")
    if not draws:
        return None, shown_by
    from kair_tui.render.timeline import VIEW

    assert VIEW.picture is not None
    try:
        return VIEW.picture(asker.ask(Question.of("timeline", around=around)).result), shown_by
    except KairError as error:
        return None, TimelinePicture(None, why_none=f"There is no timeline: {error}.")


_Drain = tuple[str, list[str]]
"""A host, and the words of the command that drains it."""


def _drain_commands(job: Job, triaged: TriageResult, accused: Finding | None) -> tuple[list[_Drain], str | None]:
    """Return the commands; if there are none, also the reason, as part of a sentence.

    Raises UsageError if the site's command is invalid.
    """
    if (why_not := _not_by_draining(triaged, accused)) is not None:
        return [], why_not
    assert accused is not None  # otherwise there is a reason
    from kair_mitigate.draining import drain_commands

    template, reason = drain_words(), _reason(job, triaged, accused)
    scheduling = scheduling_of(job, triaged.sources)
    commands = []
    for host in accused.hosts:
        device, schedulers = _devices(job, accused, host), scheduling.knowing(host)
        try:
            words = drain_commands(host, reason, schedulers, device=device, job=job.name, template=template)
        except ValueError as error:
            return [], str(error)
        if not words:
            return [], _by_hand(host, scheduling)
        commands += [(host, command) for command in words]
    return commands, None


def _by_hand(host: str, scheduling: Scheduling) -> str:
    """Return how to take out a host that no scheduler knows, as part of a sentence."""
    if host in scheduling.pods:
        return f"{host} is a pod; cordon its node, which `kubectl get pods -A -o wide` shows"
    return f"take {host} out of service by hand (neither the recording nor evidence shows Slurm or Kubernetes)"


def _not_by_draining(triaged: TriageResult, accused: Finding | None) -> str | None:
    """Return why draining does not help or is not possible, as part of a sentence; None if it may help."""
    if triaged.verdict != "straggler" or accused is None or not accused.ranks:
        return "no rank is accused"
    who = ranks_in_words(accused.ranks)
    row = CAUSES[accused.cause]
    # Only this one sign of a hang is known to be the host's fault.
    is_of_host = "unheard" in accused.shows
    if row.not_by_draining is not None and not is_of_host:
        return f"{row.words} of {who}: {row.not_by_draining}"
    explained = next((one for one in accused.explanations if one.word == "explains"), None)
    if explained is not None and _goes_with_job(explained.part):
        from kair_tui.render.explanations import part_in_words

        return f"the cause ({part_in_words(explained.part)}) goes with the job to any host"
    return None if accused.hosts else f"the recording does not say on which host {who} runs"


def _goes_with_job(part: str) -> bool:
    from kair_engine.evidence.parts import PARTS  # imported late, as few findings are explained

    return part in PARTS and PARTS[part].goes_with_job


def _drainable(triaged: TriageResult, number: int | None, accused: Finding | None) -> str | None:
    """Return a hint: how to set a command if draining helps, else which finding has hosts that can be drained."""
    if _not_by_draining(triaged, accused) is None:
        return "kair ticket --help shows how to set your site's command"
    there = [
        at for at, one in enumerate(triaged.findings, 1) if at != number and _not_by_draining(triaged, one) is None
    ]
    return f"--finding {there[0]} may have one" if there else None


def _reason(job: Job, triaged: TriageResult, accused: Finding) -> str:
    """Return the scheduler's record, such as `kair job123: rank 16, compute, thermal, 41.0 ms a step, 12.0 %`."""
    parts = [spaced(one.part) for one in accused.explanations if one.word == "explains"]
    words = [f"kair {job.name}: {ranks_in_words(accused.ranks)}", cause_in_words(accused.cause), *parts[:1]]
    if not CAUSES[accused.cause].stops_job:
        # Schedulers' records have no brackets.
        words.append(cost_in_words(accused, triaged).replace(" (", ", ").replace(")", ""))
    return to_ascii(", ".join(words))[:_LONGEST_REASON]


def _devices(job: Job, accused: Finding, host: str) -> str:
    """Return the devices of the accused ranks on that host, in words; empty if none is known."""
    known = identities_of(job)
    there = (known.get(rank) for rank in accused.ranks if job.hosts.get(rank) == host)
    return "; ".join(words for one in there if one is not None and (words := one.device_in_words()))


def _run(host: str, words: list[str]) -> DrainCommand:
    from kair_mitigate.draining import run_command

    ran = run_command(words)
    return DrainCommand(host, shlex.join(words), ran.status, ran.failed, ran.said)
