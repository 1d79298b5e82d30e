"""Twenty-three situations of public reports that were answered wrongly, re-created: their right answers."""

import re
from dataclasses import dataclass

import pytest
from kinds import in_words
from kinds import triage as run
from support.answers import answered_once, recorded
from support.places import CASES2

from kair_engine.results.triage import TriageResult

pytestmark = pytest.mark.skipif(not CASES2.is_dir(), reason="the cases are not beside the checkout")


@dataclass(frozen=True)
class Right:
    """What a case's `expected.md` says; patterns are of regular expressions, '' where it says nothing."""

    verdict: str
    ranks: tuple[int, ...] = ()
    """All that are accused; empty for nobody."""
    cause: str = ""
    """Of the first finding; '' where there is none."""
    operator: str = ""
    ms: tuple[float, float] = (0, 0)
    """What a step is shorter by without all that is accused, or without what is job-wide: at least, at most."""
    steps: tuple[int, ...] = ()
    """Named by the finding, or in the text."""
    says: tuple[str, ...] = ()
    """What the text holds, whatever the case of its letters."""
    first_line: tuple[str, ...] = ()
    """The same of the one-sentence answer."""
    never: tuple[str, ...] = ()
    """What it does not hold."""


def answer(case: str) -> TriageResult:
    """All that `kair triage` says; its verdict is worked out once for all tests of the case."""
    with answered_once():
        return run(recorded(CASES2 / case / "input"))


UNEVEN = "uneven|imbalance|place"
HOST = "host|pause|log|end_of_step"
CASES = {
    "cp_unbalanced_causal": Right(
        "job_wide", (), UNEVEN, "flash", (6.2, 8.4), says=("mesh_cp|place", "zigzag|head-tail"), never=("ECC",)
    ),
    "cuda_free_on_all": Right(
        "job_wide", (), "alloc|memory", ms=(6.2, 7.6), says=("cudaFree|allocator", "expandable_segments")
    ),
    "culprit_trace_missing": Right("inconclusive", first_line=(r"\brank 3\b",), never=(r"no straggler",)),
    "docker_json_log": Right("straggler", (2,), "hang", "reduce_scatter", first_line=(r"\b640\b",)),
    "ecc_in_log": Right(
        "straggler", (4,), "hang", first_line=("uncorrectable ECC",), says=("drain", "reported no time-out", r"\b220\b")
    ),
    "elastic_killed_rank": Right(
        "straggler", (3,), "hang", first_line=("SIGKILL",), says=("OOM killer", "dmesg", r"91,?822")
    ),
    "end_of_step_host": Right("straggler", (0,), HOST, ms=(13.6, 15.4)),
    "end_of_step_logging_marked": Right(
        "straggler", (0,), HOST, ms=(12.7, 15.0), steps=(10, 15, 20, 25), says=("log_metrics",)
    ),
    "eval_on_rank0_set_aside": Right(
        "inconclusive", steps=(19,), says=(r"\brank 0\b",), first_line=(r"\brank 0\b", r"\b19\b"), never=("cut off",)
    ),
    "half_the_gpus_older": Right(
        "straggler",
        (4, 5, 6, 7),
        "compute|device",
        ms=(29.1, 32.1),
        says=("A100", r"\b2\.(0[5-9]|1)"),
        never=(r"1\.35",),
    ),
    "hccl_notify_log": Right("straggler", (24,), "hang", "all_reduce", says=(r"remote rank: \[24\]", "4 ranks wait")),
    "loader_every_8th_all_ranks": Right("job_wide", (), "input", ms=(22.5, 27.5), steps=(16, 24, 32)),
    "monitored_barrier_log": Right(
        "straggler", (4, 5, 6, 7), "hang", "monitored_barrier", says=("failed to pass monitoredBarrier", "4 ranks wait")
    ),
    "ray_dedup_log": Right("inconclusive", first_line=("RAY_DEDUP_LOGS=0", "worker-", "network", "all 3")),
    "ray_two_jobs_log": Right(
        "straggler", (3,), "hang", "_all_gather_base", says=("17,?284", "ReferenceModelRayActor, pid 5803")
    ),
    "recompile_one_step": Right(
        "inconclusive",
        steps=(36,),
        says=("compil",),
        first_line=(r"\brank 2\b", r"\b36\b"),
        never=("record 24 steps more",),
    ),
    "rl_rollout_lengths": Right("job_wide", (), f"{UNEVEN}|changing|compute", ms=(7.5, 11.5)),
    "smi_csv_not_tied": Right(
        "straggler", (3,), "compute", ms=(194, 214), says=("thermal|temperature", r"1,?395", r"1,?980", "may be|assum")
    ),
    "subgroup_watchdog_log": Right("straggler", (14,), "hang", "all_reduce", first_line=(r"\b212\b",)),
    "two_ranks_counted_twice": Right("straggler", (1,), "launch|host", ms=(0.53, 0.65)),
    "two_slow_ranks_price": Right(
        "straggler", (1, 6), "compute", ms=(5.2, 5.8), first_line=(r"\b5\.[45]\d* (of the 36\.3 )?ms",)
    ),
    "varlen_attention_persistent": Right(
        "straggler",
        (5,),
        "uneven|compute|data",
        "flash",
        (8.4, 9.9),
        says=("pack|sequence|length",),
        never=("no larger batch", "ECC"),
    ),
    "xpu_blocking_call": Right("straggler", (2,), "compute|device", ms=(6.5, 7.3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_a_reported_situation_is_answered_rightly(case: str) -> None:
    right = CASES[case]
    result = answer(case)
    accusing = [finding for finding in result.findings if finding.ranks and finding.pattern != "job_wide"]
    assert (result.verdict, sorted({rank for finding in accusing for rank in finding.ranks})) == (
        right.verdict,
        list(right.ranks),
    ), result.summary
    text = in_words(result)
    if right.cause:
        first = result.findings[0]
        assert re.search(right.cause, first.cause)
        assert re.search(right.operator, f"{first.operator} {first.edge}")
        least, most = right.ms
        assert least <= _cost_ms(result) <= most
    if right.steps:
        named = any(finding.steps == right.steps for finding in result.findings)
        assert named or all(re.search(rf"\b{step}\b", text) for step in right.steps)
    for pattern in right.says:
        assert re.search(pattern, text, re.IGNORECASE), pattern
    for pattern in right.first_line:
        assert re.search(pattern, result.summary, re.IGNORECASE), pattern
    for pattern in right.never:
        assert not re.search(pattern, text, re.IGNORECASE), pattern


def test_one_loss_is_told_once() -> None:
    """The median of two ranks is half of what the slow one has: no loss of its own."""
    result = answer("two_ranks_counted_twice")
    assert [finding.ranks for finding in result.findings] == [(1,)]


@pytest.mark.slow
def test_a_step_in_the_middle_is_read() -> None:
    """All four ranks recorded step 19 whole; its length is that of rank 0's evaluation."""
    assert 19 in answer("eval_on_rank0_set_aside").steps


def _cost_ms(result: TriageResult) -> float:
    accusing = [finding for finding in result.findings if finding.ranks]
    if len(accusing) > 1 and result.together is not None:
        return result.together.saved_us / 1e3
    return result.findings[0].time_lost_us_per_step / 1e3
