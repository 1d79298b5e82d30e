"""Opens the log of a job's steps where no trace is named, and answers what a log can answer."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kair_engine.errors import InputError
from kair_engine.readers.formats import is_job_log, is_log_of_records, read_head
from kair_engine.recording.opening import find_files, job_name
from kair_engine.trace.model import Job, StepTimes, Trace, short_warning

if TYPE_CHECKING:
    from kair_engine.results.triage import TriageResult, Verdict
    from kair_engine.results.views import StepsResult
    from kair_engine.steplog.lines import StepLines

_MOST_FILES: Final = 10_000
FORMAT: Final = "log"
"""Of a job of which its log is all that is known."""


def log_of(paths: Sequence[Path], pattern: str | None) -> "StepLines | None":
    """Return the lines about steps in the named text files; None if there are none.

    Raises UsageError for an invalid pattern, InputError if no line matches it or a file cannot be read.
    """
    files = [file for path in paths for file in (find_files(path).files if path.is_dir() else (path,))]
    if len(files) > _MOST_FILES or not files or not all(map(_is_text, files)):
        if pattern is not None:
            raise InputError(f"{paths[0]} is no log: --log-pattern is for lines of text", "leave --log-pattern out")
        return None
    from kair_engine.steplog.reading import pattern_of, read_steps, require_readable  # few recordings are a log

    form = None if pattern is None else pattern_of(pattern)
    lines = read_steps(sorted(files, key=_by_numbers), form)
    if lines is None and form is not None:
        raise InputError(f"no line of {paths[0]} is of --log-pattern", "the groups are step, and time (seconds) or ms")
    if lines is not None:
        require_readable(lines)
    return lines


def _is_text(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        head = read_head(file)
        return is_job_log(head) or is_log_of_records(head)
    except (OSError, InputError):
        return False


def _by_numbers(file: Path) -> list[tuple[int, str]]:
    """Sorts names as people count: rank2 before rank10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", str(file))]


def job_of_log(lines: "StepLines", name: str, paths: Sequence[Path]) -> Trace:
    """Return a job of which only a log is known; it has no steps for other analyses.

    `name` is the path as given, or a stand-in if none was.
    """
    warnings = []
    if lines.dropped:
        text = f"the log has {lines.dropped + len(lines.step):,} lines of steps: the last {len(lines.step):,} are read"
        warnings.append(short_warning("last_steps", text))
    if lines.form.note:
        warnings.append(short_warning("log_times", lines.form.note))
    job = Job(
        name=job_name(paths[0]) if name == str(paths[0]) else name,
        source=name if len(paths) == 1 else ", ".join(map(str, paths)),
        format=FORMAT,
        world_size=lines.world_size or 0,
        ranks=lines.ranks,
        hosts={},
        layout=None,
        device=None,
        has_device=False,
        absolute_time=False,
        steps=(),
        step_times=StepTimes(),
        operations=0,
        warnings=tuple(warnings),
    )
    return Trace(job, (), (), lines=lines)


def with_log(found: "TriageResult", trace: Trace, gpu_cost: float | None = None) -> "TriageResult":
    """Return the verdict with what the log says of steps; ranks that stand out by their own lines are accused."""
    from kair_engine.steplog.analysis import judge
    from kair_engine.steplog.lines import StepLines
    from kair_engine.triage.of_log import findings_of_log

    if not isinstance(trace.lines, StepLines) or trace.steps:
        return found
    log = judge(trace.lines)
    verdict: Verdict = "straggler" if log.ranks and not found.findings else found.verdict
    median = next((one.step_us for one in reversed(log.attempts) if one.step_us is not None), 0.0)
    findings = found.findings or findings_of_log(log, trace.job, gpu_cost)
    return replace(found, log=log, verdict=verdict, findings=findings, step_time_us=found.step_time_us or median)


def verdict_of_log() -> "TriageResult":
    """Return the verdict on a job of which only a log is known: who is slow stays open."""
    from kair_engine.results.triage import TriageResult

    return TriageResult("inconclusive", (), (), 0.0, None, None, (), ())


def steps_of_log(trace: Trace) -> "StepsResult":
    """Return the time of every step in the log, and mark those that took longer."""
    from kair_engine.steplog.analysis import steps_of
    from kair_engine.steplog.lines import StepLines

    assert isinstance(trace.lines, StepLines)
    return steps_of(trace.lines)
