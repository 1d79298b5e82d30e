"""Where recordings are: this repository's samples, and real traces beside the checkout, which may be absent."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_traces"
RECORDINGS = ROOT / "tests" / "recordings"
"""Small ones of other profilers; a README beside each says where it is from."""
TRACES = ROOT.parent / "shared" / "traces"
MEGATRON = TRACES / "megatron-tp8"
BYTEDANCE = TRACES / "bytedance"
CASES = ROOT.parent / "shared" / "cases"
CASES2 = ROOT.parent / "shared" / "cases2"
RUN_AHEAD = CASES / "run_ahead"
"""Simulated jobs whose hosts run ahead of their devices."""
