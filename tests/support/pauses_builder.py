"""A table for trace_builder: ranks whose hosts pause between collectives."""

RANKS = 8
Pauses = dict[int, list[int]]
"""rank → the stretches of each step in which its host pauses for 50 µs."""


def table(steps: int, stretches: int, pausing: Pauses) -> str:
    """Steps of 100 µs per stretch: a kernel of 20 µs, and an all-reduce that all leave at its end.

    Kernels are launched 30 µs ahead, but for those before which the host pauses.
    """
    lines = []
    for step in range(steps):
        begin = 10_000 * step
        lines.append(f"step {step}: {begin}+{100 * stretches}")
        for rank in range(RANKS):
            launches, stream = [], []
            for n in range(stretches):
                at, pause = begin + 100 * n, 50 if n in pausing.get(rank, []) else 0
                launch = at + pause if pause else max(at - 30, begin)
                launches += [f"launch {launch}+1 ^{2 * n}", f"launch {launch + 2}+1 ^{2 * n + 1}"]
                stream += [f"gemm {at + pause}+20 ^{2 * n}"]
                stream += [f"allreduce@dp#{100 * step + n} {at + pause + 20}+{80 - pause} ^{2 * n + 1}"]
            lines += [f"{rank} main | {' | '.join(launches)}", f"{rank} gpu7 | {' | '.join(stream)}"]
    return "\n".join(lines)
