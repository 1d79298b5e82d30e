"""Runs the whole investigation of a job, once and in order: `triage` on every face.

The engine judges the recording. What lies next to it is joined here: the history of steps, a baseline, devices,
evidence, differences between ranks, experiments and the ledger.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from kair.app.question import Given
from kair_engine.ranks import Rank
from kair_engine.results.confirm import ConfirmRun
from kair_engine.results.localize import ChosenBaseline
from kair_engine.results.triage import TriageResult
from kair_engine.trace.model import short_warning

if TYPE_CHECKING:
    from kair_engine.trace.model import Job, Trace
    from kair_engine.triage.history.rows import StepHistory

_NOT_SAMPLED: Final = short_warning(
    "not_sampled",
    "none of these steps was sampled: the verdict follows from each step's recorded time on each rank",
)
Result = TypeVar("Result", bound=TriageResult)


def triage(
    given: Given, *, gpu_cost: float | None = None, evidence: Sequence[str] = (), only_rank: Rank | None = None
) -> tuple[TriageResult, Callable[[TriageResult], None] | None]:
    """Return the verdict with all that is known of the job, and a function that keeps it.

    Nothing is kept for chosen steps, or for a job outside the store. `only_rank` is only checked here, because verdict
    and ledger are the whole job's; `about` narrows the answer. Raises InputError if named evidence cannot be read,
    UsageError for a rank that left no trace.
    """
    from kair.app.explaining import with_evidence
    from kair.app.step_history import hang_of, history_of_steps, silence_of
    from kair_engine.triage.hangs.standing import beside

    given.require_rank(only_rank)
    trace, baseline = given.trace, given.baseline
    folder, key = _kept_under(trace, baseline, gpu_cost)
    is_whole = trace.steps == trace.job.steps
    stands = hang_of(trace.job) if is_whole else None
    history = history_of_steps(trace)
    judged = _known(folder, key)
    if judged is None:
        judged = _judged(trace, history, gpu_cost)
    if baseline is not None and trace.steps and judged.against_baseline is None:
        from kair_engine.comparison.analysis import with_baseline

        judged = with_baseline(judged, trace, baseline)
    whole = judged if stands is None else beside(stands, judged)
    if is_whole and stands is None and (silent := silence_of(trace.job)) is not None:
        whole = replace(whole, warnings=(silent, *whole.warnings))
    if trace.lines is not None:
        from kair.app.logs import with_log

        whole = with_log(whole, trace, gpu_cost)
    found = with_evidence(trace, _with_devices(whole, trace), evidence)
    found = _with_differences(found, trace, baseline)
    found = replace(found, confirmed=_confirmed(trace, found))
    found, put_down = _with_ledger(trace, found, history)
    if folder is None or key is None:
        return found, None if put_down is None else lambda _: put_down()
    return found, partial(_write, folder, key, judged, put_down)


def about(result: Result, rank: Rank) -> Result:
    """Return the answer with the findings about one rank; the verdict and the joint price stay the job's."""
    findings = tuple(finding for finding in result.findings if rank in (*finding.ranks, *finding.seen_on))
    ranking = sorted(result.ranking, key=lambda row: row.rank != rank)
    return replace(result, findings=findings, ranking=tuple(ranking))


def _write(
    folder: Path, key: str, judged: TriageResult, put_down: Callable[[], None] | None, shown: TriageResult
) -> None:
    """Keep the verdict for the list of jobs, the judgement for whoever asks next, predictions in the ledger."""
    from kair_engine.store.kept_answers import keep_triage, keep_verdict

    keep_verdict(folder, shown.verdict, shown.summary or shown.verdict)
    keep_triage(folder, key, judged)
    if put_down is not None:
        put_down()


def state_beside(job: "Job") -> Hashable:
    """Return a value that changes with anything next to a recording that its verdict depends on.

    That is its evidence; for a stored job also the steps that capture records, and experiments.
    """
    from kair.app.evidence import folder_of
    from kair.app.places import capture_places, state_of_files

    folders = [folder_of(job)]
    if job.stored_in is not None:
        places = capture_places(job.stored_in)
        folders += [places.steps, places.scopes, places.hangs, places.confirm, places.status]
    return tuple(map(state_of_files, folders))


def is_captured(job: "Job") -> bool:
    """Return whether a coordinator watches the job, or has watched it."""
    from kair.app.places import capture_places

    return job.stored_in is not None and capture_places(job.stored_in).status.exists()


def _kept_under(
    trace: "Trace", baseline: ChosenBaseline | None, gpu_cost: float | None
) -> tuple[Path | None, str | None]:
    """Where the verdict on a stored job is kept, and under which key; None for chosen steps."""
    job = trace.job
    if job.stored_in is None or trace.steps != job.steps or job.is_recorded_only:
        return None, None
    from kair_engine.store.kept_answers import code_of, key_of
    from kair_engine.trace.json_text import encode_json

    compared = None if baseline is None else (baseline.name, baseline.named, encode_json(baseline.profile))
    folder = Path(job.stored_in)
    return folder, key_of(folder, compared, gpu_cost, state_beside(job), code_of(Path(__file__).parent))


def _known(folder: Path | None, key: str | None) -> TriageResult | None:
    if folder is None or key is None:
        return None
    from kair_engine.store.kept_answers import kept_triage

    return kept_triage(folder, key)


def _judged(trace: "Trace", history: "StepHistory | None", gpu_cost: float | None) -> TriageResult:
    """Return what the sampled steps say together with all others; of chosen steps alone, what these say."""
    from kair.app.step_history import without_steps
    from kair_engine.triage.analysis import triage as judge
    from kair_engine.triage.history.analysis import joined
    from kair_engine.whatif.prices import require_cost

    if trace.job.is_log:
        from kair.app.logs import verdict_of_log

        return verdict_of_log()
    if trace.job.is_recorded_only:
        require_cost(gpu_cost)
        if history is None or not len(history.steps):
            return without_steps(trace.job)
        found = _of_rows(trace, history, gpu_cost)
        return found if trace.steps == trace.job.steps else replace(found, warnings=(*found.warnings, _NOT_SAMPLED))
    found = judge(trace, gpu_cost=gpu_cost)
    if history is not None and not trace.job.progress:
        found = joined(found, history, trace.job, gpu_cost)
    return found


def _of_rows(trace: "Trace", history: "StepHistory", gpu_cost: float | None) -> TriageResult:
    """Return what the recorded times of steps say, or those of collectives."""
    from kair_engine.triage.history.analysis import triage_of_rows
    from kair_engine.triage.inspector.rows import InspectorLog
    from kair_engine.triage.inspector.verdict import judge_inspector

    if isinstance(trace.lines, InspectorLog):
        return judge_inspector(trace.lines, history, trace.job, gpu_cost)
    return triage_of_rows(history, trace.job, gpu_cost)


def _with_devices(found: TriageResult, trace: "Trace") -> TriageResult:
    """With what to look up the devices of what was found by."""
    if not found.findings:
        return found
    from kair.app.identities import identities_of
    from kair_engine.evidence.devices import with_devices

    return with_devices(found, identities_of(trace.job))


def _with_differences(found: TriageResult, trace: "Trace", baseline: ChosenBaseline | None) -> TriageResult:
    """With what differs between ranks, and what changed since the attempt before and since the baseline was saved."""
    from kair.app.identities import all_identities_of, identities_of

    identities = identities_of(trace.job)
    if not identities:
        return found
    from kair_engine.evidence.changes import changes, last_attempts
    from kair_engine.evidence.differences import differences

    accused = {rank for finding in found.findings for rank in finding.ranks}
    differing = [*differences(identities, accused, {row.rank: row.role for row in found.ranking})]
    attempts = last_attempts(all_identities_of(trace.job))
    differing += changes(attempts.before, attempts.now, str(attempts.number), "attempt", accused)
    if baseline is not None:
        differing += changes(baseline.profile.identity, identities, baseline.name, "job", accused)
    return replace(found, differences=tuple(differing))


def _confirmed(trace: "Trace", found: TriageResult) -> ConfirmRun | None:
    """Return what delays proved about the first rank that is accused, else about any; None where nobody asked."""
    from kair_engine.store.confirmed import latest_confirmed
    from kair_engine.store.remote import fetch_confirmed

    if trace.job.stored_in is None:
        return None
    folder = Path(trace.job.stored_in).parent / "confirm"
    fetch_confirmed(folder.parent.parent, folder.parent.name)
    accused = next((finding.ranks[0] for finding in found.findings if len(finding.ranks) == 1), None)
    return latest_confirmed(folder, accused) or latest_confirmed(folder)


def _with_ledger(
    trace: "Trace", found: TriageResult, history: "StepHistory | None"
) -> tuple[TriageResult, Callable[[], None] | None]:
    """With how earlier prices came out, and the records of the job's devices; and what writes its own predictions."""
    is_whole = trace.steps == trace.job.steps and bool(found.steps or found.history_steps)
    if trace.job.stored_in is None or not is_whole:
        return found, None
    from kair.app.ledger import with_ledger

    return with_ledger(trace.job, found, history)
