"""One simulated job at a time: writes its table, asks every method, and compares the answers with the truth.

Jobs whose hosts run ahead are written as traces and read: which step a kernel belongs to is a part of the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fault_model import Truth
from host_faults import ClockSkew
from kineto import write_kineto
from peer_rules import least_waiting, least_waiting_beyond_chance, slow_kernels
from recording import Columns, Recording
from run_ahead import ABSORBED
from scenarios import Scenario, scenarios
from scoring import Answer, Claim, Score, answer_of, lowest_p, same_claims, score, struck
from simulator import JobSpec, simulate, simulate_ahead
from table import write_table

from kair_engine.blame.paper import blame_paper
from kair_engine.localize.analysis import localize
from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage

PEERS: dict[str, Callable[[Columns], Answer]] = {
    "least waiting": least_waiting,
    "least waiting, Grubbs' test": least_waiting_beyond_chance,
    "kernels below 75 %": slow_kernels,
}
METHODS = ("robust", "paper", *PEERS)


@dataclass(frozen=True)
class Trial:
    """One job's scores, one per method that saw it, `robust` always; what is not asked of a job is None."""

    key: str
    """Of its scenario."""
    seed: int
    scores: dict[str, Score]
    step_us: float
    """Where hosts run ahead, the devices' period."""
    cost_us: float
    """What the faults cost per step: the job's time less that of the same job without them."""
    lowest_p: float | None
    unskewed_alike: bool | None
    """Whether the answer is the same as where all clocks agree."""
    said: str
    """The robust answer, for whoever looks into a failure."""


@dataclass(frozen=True)
class Batch:
    """Jobs of one scenario that are simulated together."""

    key: str
    seeds: tuple[int, ...]
    compared: frozenset[int]
    """Of the seeds, those whose jobs all methods see."""
    calibrated: frozenset[int]
    """Of the seeds, those whose jobs' p-value is taken."""


def run_batch(batch: Batch) -> list[Trial]:
    """The trials of a batch, without those of jobs that their fault never struck."""
    scenario = next(one for one in scenarios() if one.key == batch.key)
    specs = [scenario.spec(seed) for seed in batch.seeds]
    if scenario.runs_ahead:
        return [_ahead_trial(scenario, spec) for spec in specs]
    faulty = simulate(specs)
    healthy = simulate([spec.healthy() for spec in specs]) if any(spec.faults for spec in specs) else faulty
    trials = []
    for spec, recording, without in zip(specs, faulty, healthy, strict=True):
        if all(map(struck, recording.truths)):
            try:
                trials.append(_trial(scenario, spec, recording, without, batch))
            except Exception as error:
                error.add_note(f"{scenario.key}, seed {spec.seed}")
                raise
    return trials


def _trial(scenario: Scenario, spec: JobSpec, recording: Recording, healthy: Recording, batch: Batch) -> Trial:
    with TemporaryDirectory(prefix="kair-accuracy-") as folder:
        trace = write_table(recording, Path(folder))
        answers = {"robust": answer_of(triage(trace))}
        if spec.seed in batch.compared:
            columns = recording.columns()
            answers["paper"] = _paper(trace)
            answers |= {name: rule(columns) for name, rule in PEERS.items()}
        p_value = lowest_p(localize(trace)) if spec.seed in batch.calibrated else None
    step_us = recording.step_time_ns / 1e3
    cost_us = step_us - healthy.step_time_ns / 1e3
    return Trial(
        key=scenario.key,
        seed=spec.seed,
        scores={method: score(recording.truths, answer) for method, answer in answers.items()},
        step_us=step_us,
        cost_us=cost_us,
        lowest_p=p_value,
        unskewed_alike=_unskewed_alike(spec, answers["robust"]),
        said=f"{_truth(recording.truths)}, costs {cost_us / step_us:.1%} | {_said(answers['robust'])}",
    )


def _ahead_trial(scenario: Scenario, spec: JobSpec) -> Trial:
    """A job whose hosts run ahead; where its launch queue hides what is wrong, nothing is."""
    faulty, healthy = simulate_ahead([spec, spec.healthy()])
    step_us, cost_us = faulty.period_ns / 1e3, (faulty.period_ns - healthy.period_ns) / 1e3
    with TemporaryDirectory(prefix="kair-accuracy-") as folder:
        write_kineto(faulty, Path(folder) / "input", compress=False)
        try:
            answer = answer_of(triage(open_trace(Path(folder) / "input", cache=Path(folder) / "cache", workers=1)))
        except Exception as error:
            error.add_note(f"{scenario.key}, seed {spec.seed}")
            raise
    truths = faulty.truths if cost_us >= ABSORBED * step_us else ()
    return Trial(
        key=scenario.key,
        seed=spec.seed,
        scores={"robust": score(truths, answer)},
        step_us=step_us,
        cost_us=cost_us,
        lowest_p=None,
        unskewed_alike=None,
        said=f"{_truth(faulty.truths)}, costs {cost_us / step_us:.1%}, queue {faulty.ahead.queue} | {_said(answer)}",
    )


def _paper(trace: Trace) -> Answer:
    """The paper ranks by stage 1 and draws no verdict: here outliers beyond 3 on the first rank accuse it."""
    first = localize(trace, method="paper").scores[0].rank
    causes = blame_paper(trace, rank=first, operator=None, limit=1).root_causes
    claims = tuple(Claim(cause.cause, frozenset({first}), cause.operator) for cause in causes[:1])
    return Answer("straggler" if claims else "no_straggler", first, claims)


def _unskewed_alike(spec: JobSpec, answer: Answer) -> bool | None:
    faults = tuple(fault for fault in spec.faults if not isinstance(fault, ClockSkew))
    if len(faults) == len(spec.faults):
        return None
    with TemporaryDirectory(prefix="kair-accuracy-") as folder:
        trace = write_table(simulate([replace(spec, faults=faults)])[0], Path(folder))
        return same_claims(answer, answer_of(triage(trace)))


def _truth(truths: Sequence[Truth]) -> str:
    return "; ".join(map(_one_truth, truths)) or "healthy"


def _one_truth(truth: Truth) -> str:
    steps = f" in {sum(map(bool, truth.by_step))} steps" if truth.by_step else ""
    return f"{truth.fault} {_ranks(truth.group or truth.ranks)}{steps}"


def _said(answer: Answer) -> str:
    claims = (
        f"{claim.cause} {_ranks(sorted(claim.ranks)) or 'nobody'} {claim.operator or ''}" for claim in answer.claims
    )
    return f"{answer.verdict}: {'; '.join(claims) or '-'}; first {answer.first}"


def _ranks(ranks: Sequence[int]) -> str:
    return " ".join(map(str, ranks[:8])) + (f" … ({len(ranks)})" if len(ranks) > 8 else "")
