"""Clocks of ranks that meet in several process groups, and late arrivals counted within each."""

import random
from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import trace

from kair_engine.blame.analysis import blame
from kair_engine.timeline.clocks import synchronise
from kair_engine.trace.loading import load_step
from kair_engine.triage.analysis import triage


def grid(tp: int = 2, dp: int = 3, late: int = 4, by: int = 400) -> str:
    """One step of dp × tp ranks: a collective in each tp pair, then one in each dp group; `late` computes longer."""
    lines = ["step 0: 0+20000"]
    for rank in range(tp * dp):
        compute = 1000 + (by if rank == late else 0)
        pair, place = divmod(rank, tp)
        met = 1100 + (by if late // tp == pair else 0)
        # Both dp groups have a member of the late rank's pair, and wait for it.
        begin, done = met + 50, 1350 + by
        lines.append(
            f"{rank} gpu7 | gemm 0+{compute} | tp@tp{pair}#0 {compute}+{met - compute} | copy {met}+50 "
            f"| dp@dp{place}#0 {begin}+{done - begin}"
        )
    return "\n".join(lines)


@pytest.mark.parametrize("ahead", [0, 3, 4])
def test_clocks_are_fitted_across_process_groups(tmp_path: Path, ahead: int) -> None:
    made = trace(tmp_path, grid(), shift={ahead: 5000})
    sync = synchronise(load_step(made, 0))
    expected = np.zeros(6)
    expected[ahead] = 5e6
    assert sync.clocks.offset_ns == pytest.approx(expected, abs=2_000)
    assert sync.collectives.rejected == 0


@pytest.mark.parametrize("ahead", [-300_000, -7000, 0, 7000])
def test_stages_that_share_no_collective_are_put_on_one_clock_by_what_they_send(tmp_path: Path, ahead: int) -> None:
    """A receive ends 20 µs after the send began: clocks that are further off than that are seen to be."""
    table = """
        step 0: 0+10000
        0 gpu7 | gemm 0+1000 | act@pp#0 1000+30 :send | grad@pp#1 1100+2420 :recv
        1 gpu7 | act@pp#0 0+1020 :recv | gemm 1100+2400 | grad@pp#1 3500+30 :send
        """
    sync = synchronise(load_step(trace(tmp_path, table, shift={1: ahead}), 0))
    off = sync.clocks.offset_ns[1] - sync.clocks.offset_ns[0]
    assert off == pytest.approx(1000 * ahead, abs=20_000)


def test_a_shifted_clock_moves_no_blame(tmp_path: Path) -> None:
    straight = blame(trace(tmp_path / "a", grid()))
    shifted = blame(trace(tmp_path / "b", grid(), shift={0: 5000, 4: -3000}))
    assert [(c.rank, c.operator, c.cause) for c in straight.root_causes][:1] == [(4, "gemm", "compute")]
    assert [(c.rank, c.operator, round(c.blamed_us)) for c in shifted.root_causes] == [
        (c.rank, c.operator, round(c.blamed_us)) for c in straight.root_causes
    ]


@pytest.mark.slow
def test_in_a_pair_somebody_is_always_last(tmp_path: Path) -> None:
    """Ranks 0 and 1 alone share sixteen collectives, each late by turns of a coin: nobody is to be accused."""
    for seed in range(10):
        coin = random.Random(seed)
        lines = ["step 0: 0+16500"]
        calls: list[list[str]] = [[], []]
        for call in range(16):
            late = coin.randrange(2)
            for rank in (0, 1):
                begin = call * 1000 + (400 if rank == late else 0)
                calls[rank].append(f"reduce@pair#{call} {begin}+{call * 1000 + 500 - begin}")
        lines += [f"{rank} gpu7 | " + " | ".join(calls[rank]) for rank in (0, 1)]
        lines.append("2-7 gpu7 | gemm 0+100")
        assert triage(trace(tmp_path / str(seed), "\n".join(lines))).findings == ()
