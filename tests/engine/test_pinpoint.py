"""Stage 2, robust: which of one rank's operations differ from their peers'."""

from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import Row, build, trace

from kair_engine.errors import UsageError
from kair_engine.pinpoint import pinpoint
from kair_engine.results.pinpoint import Outlier
from kair_engine.trace.model import Trace

KERNELS = {"embed": 40.0, "attention": 100.0, "mlp": 200.0}


def job(folder: Path, *, ranks: int = 6, steps: int = 5, slow: dict[tuple[int, str], float] | None = None) -> Trace:
    """Kernels one after another, 2 % apart between ranks and steps; `slow` makes one rank's operator longer."""
    random = np.random.default_rng(3)
    rows = []
    for step in range(steps):
        for rank in range(ranks):
            at = step * 1000.0
            for name, length in KERNELS.items():
                took = length * random.normal(1, 0.02) * (slow or {}).get((rank, name), 1)
                rows.append(Row(rank, "gpu7", name, at, took, step))
                at += took
            rows.append(Row(rank, "gpu7", "allreduce", at, step * 1000 + 900 - at, step, group="dp", seq=step))
    return build(folder, rows, {(rank, step): (step * 1000, 1000) for rank in range(ranks) for step in range(steps)})


def which(outliers: tuple[Outlier, ...]) -> set[str]:
    return {outlier.operator for outlier in outliers}


def test_a_slow_operator_is_an_outlier_in_every_step(tmp_path: Path) -> None:
    result = pinpoint(job(tmp_path, slow={(4, "attention"): 1.5}), rank=4)
    assert which(result.outliers) == {"attention"}
    assert sorted(outlier.step for outlier in result.outliers) == [0, 1, 2, 3, 4]
    first = result.outliers[0]
    assert first.duration_us == pytest.approx(150, rel=0.1)
    assert first.expected_duration_us == pytest.approx(100, rel=0.1)
    assert first.score == pytest.approx((first.duration_us - first.expected_duration_us) / 1000)
    assert first.duration_z is not None and first.duration_z > 10
    assert first.p_value is not None and first.p_value < 0.05
    assert result.tested == 5 * len(KERNELS)
    assert list(result.outliers) == sorted(result.outliers, key=lambda outlier: -outlier.score)


def test_its_victims_have_no_outliers_although_they_waited(tmp_path: Path) -> None:
    made = job(tmp_path, slow={(4, "attention"): 1.5})
    for rank in (0, 1, 2, 3, 5):
        assert pinpoint(made, rank=rank).outliers == ()


def test_faster_than_the_peers_is_no_outlier(tmp_path: Path) -> None:
    assert pinpoint(job(tmp_path, slow={(4, "attention"): 0.5}), rank=4).outliers == ()


@pytest.mark.parametrize(("step_us", "found"), [(10_000, {"gemm"}), (20_000, set())])
def test_what_costs_less_than_a_third_of_a_percent_is_left_out(tmp_path: Path, step_us: int, found: set[str]) -> None:
    # 50 µs of the step, and 25 times the spread.
    made = trace(tmp_path, f"step 0: 0+{step_us}\n0-4 gpu7 | gemm 0+100\n5 gpu7 | gemm 0+150")
    assert which(pinpoint(made, rank=5).outliers) == found


def test_a_device_that_idles_for_its_host_is_an_outlier_of_start(tmp_path: Path) -> None:
    result = pinpoint(
        trace(
            tmp_path,
            """
            step 0: 0+1000
            0-4 main | launch 0+5 ^1 | launch 6+5 ^2
            0-4 gpu7 | gemm 10+100 ^1 | relu 110+100 ^2
            5   main | launch 0+5 ^1 | launch 400+5 ^2
            5   gpu7 | gemm 10+100 ^1 | relu 410+100 ^2
            """,
        ),
        rank=5,
    )
    (found,) = result.outliers
    assert (found.operator, found.duration_us, found.expected_duration_us) == ("relu", 100, 100)
    assert found.start_z is not None and found.duration_z is not None
    assert found.start_z > 100 > found.duration_z
    assert found.score == pytest.approx(0.29)  # from gemm's end at 110 to the launch at 400


def test_an_operators_spread_is_that_of_all_steps(tmp_path: Path) -> None:
    # In step 0 the peers happen to agree and rank 4 does not; over all steps gemm is as noisy as that. The number of
    # copies differs from step to step, and must not part gemm from itself.
    rows = []
    for step in range(10):
        peers = [100, 100.5, 99.5, 100] if step == 0 else [100, 140, 60, 100]
        for rank, length in enumerate([*peers, 160 if step == 0 else 100]):
            rows.append(Row(rank, "gpu7", "gemm", step * 1000, length, step))
            rows += [Row(rank, "gpu7", "copy", step * 1000 + 300 + 10 * i, 5, step) for i in range(step + 1)]
    made = build(tmp_path, rows, {(rank, step): (step * 1000, 1000) for rank in range(5) for step in range(10)})
    assert pinpoint(made, rank=4).outliers == ()


def test_only_so_many_are_listed_but_all_are_counted(tmp_path: Path) -> None:
    result = pinpoint(job(tmp_path, slow={(4, "attention"): 1.5}), rank=4, limit=2)
    assert (len(result.outliers), result.total_outliers) == (2, 5)


def test_a_rank_without_peers_has_no_outliers_and_is_told_so(tmp_path: Path) -> None:
    result = pinpoint(trace(tmp_path, "0 gpu7 | gemm 0+10\n1 gpu7 | gemm 0+90"), rank=1)
    assert (result.outliers, result.tested) == ((), 0)
    assert [warning.code for warning in result.warnings] == ["few_peers"]


def test_an_unknown_rank_is_turned_down(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rank 9 left no trace"):
        pinpoint(trace(tmp_path, "0 gpu7 | gemm 0+10"), rank=9)


def test_healthy_ranks_have_hardly_any_outliers(tmp_path: Path) -> None:
    made = job(tmp_path, ranks=8, steps=12)
    assert sum(pinpoint(made, rank=rank).total_outliers for rank in range(8)) <= 1
