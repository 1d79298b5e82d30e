"""A job's steps and its telemetry, as text books have them: one rank is slower, and telemetry shows why, or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from kair_engine.evidence.case import Known
from kair_engine.evidence.course import Course, course_of
from kair_engine.evidence.joining import Joins
from kair_engine.ranks import Rank
from kair_engine.results.triage import Finding, RankedRank, TriageResult
from kair_engine.trace.evidence_table import EvidenceFile, EvidenceRows, described, together
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.measures import EvidenceSource, gpu, process

BEGIN_NS = 1_790_000_000 * 10**9
STEP_US = 40_000.0


def uuid(rank: int) -> str:
    return f"GPU-{rank:08x}-0000-0000-0000-000000000000"


@dataclass
class Telemetry:
    """Rows of a job of `ranks` ranks on hosts of `per_host`, for `seconds`; read every `interval_s`."""

    ranks: int = 4
    seconds: float = 120.0
    interval_s: float = 1.0
    per_host: int = 8
    seed: int = 0
    kind: str = "capture"
    clock: str = "unix"
    culprit: int = 1
    excess_us: float = 8_000.0
    """That the culprit takes longer in each step."""
    onset_s: float = 0.0
    cause: str = "compute"
    has_device: bool = True
    rows: EvidenceRows = field(default_factory=EvidenceRows)
    observes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def host(self, rank: int) -> str:
        return f"node-{rank // self.per_host}"

    def times_s(self) -> np.ndarray:
        return np.arange(0.0, self.seconds, self.interval_s)

    def gauge(self, name: str, of: Callable[[int, float], float], *, noise: float = 0.0) -> "Telemetry":
        """A reading of each rank's device (or process) at each time; `of` a rank and a time (s); NaN: not read."""
        for rank in range(self.ranks):
            for at in self.times_s():
                value = of(rank, float(at)) + noise * self.random.standard_normal()
                if not np.isnan(value):
                    self._add(rank, float(at), name, value)
        return self

    def counter(
        self, name: str, rate: Callable[[int, float], float], *, noise: float = 0.0, **more: str
    ) -> "Telemetry":
        """A counter that grows by `rate` per second, which varies by `noise` of itself."""
        for rank in range(self.ranks):
            value = 0.0
            for at in self.times_s():
                self._add(rank, float(at), name, value, **more)
                value += max(rate(rank, float(at)) * (1 + noise * self.random.standard_normal()), 0.0) * self.interval_s
        return self

    def event(self, name: str, rank: int, at_s: float, value: float | None = None, text: str = "") -> "Telemetry":
        self._add(rank, at_s, name, value, text=text)
        return self

    def _add(self, rank: int, at_s: float, name: str, value: float | None, text: str | None = None) -> None:
        entity = process(1000 + rank) if name.startswith(("process", "neighbour")) else gpu(uuid(rank))
        self.rows.add(BEGIN_NS + int(at_s * 1e9), entity, name, value, host=self.host(rank), text=text, raw="log:7")

    def evidence(self) -> EvidenceFile:
        hosts = tuple({self.host(rank) for rank in range(self.ranks)})
        source = EvidenceSource(
            "source", self.kind, self.clock, 0.5, self.interval_s, hosts=hosts, observes=self.observes
        )
        return together([described(self.rows, source)])

    def identities(self) -> Mapping[int, RankIdentity]:
        return {
            rank: RankIdentity(
                rank, self.host(rank), pid=1000 + rank, local_rank=rank % self.per_host,
                device=DeviceIdentity(uuid(rank), f"0000:{rank % self.per_host:02x}:00.0", rank % self.per_host),
            )
            for rank in range(self.ranks)
        }  # fmt: skip

    def course(self) -> Course:
        steps = int(self.seconds * 1e6 / STEP_US)
        step = np.tile(np.arange(steps), self.ranks)
        rank = np.repeat(np.arange(self.ranks), steps)
        begin = BEGIN_NS + (step * STEP_US * 1e3).astype(np.int64)
        own = STEP_US * 0.7 * (1 + 0.02 * self.random.standard_normal(len(step)))
        own += np.where((rank == self.culprit) & (step >= self.onset_step()), self.excess_us, 0.0)
        length = np.full(len(step), int(STEP_US * 1e3))
        found = course_of(rank, step, begin, length, own_us=own, spent_us={})
        assert found is not None
        return found

    def onset_step(self) -> int:
        return int(self.onset_s * 1e6 / STEP_US)

    def known(self) -> Known:
        identities = self.identities()
        joins = Joins(identities, {rank: self.host(rank) for rank in range(self.ranks)})
        return Known(self.evidence(), joins, self.course(), identities, self.has_device)

    def result(self) -> TriageResult:
        steps = tuple(range(self.onset_step(), int(self.seconds * 1e6 / STEP_US)))
        finding = Finding(
            cause=self.cause, pattern="persistent", ranks=(Rank(self.culprit),), hosts=(self.host(self.culprit),),
            operator=None, edge=None, steps=steps, p_value=1e-9, time_lost_us_per_step=self.excess_us, slowdown=1.2,
            evidence=(), since=self.onset_step() or None,
        )  # fmt: skip
        ranking = tuple(
            RankedRank(Rank(rank), self.host(rank), "all", 0.0, rank == self.culprit,
                       self.excess_us if rank == self.culprit else 0.0, 0.0)
            for rank in range(self.ranks)
        )  # fmt: skip
        return TriageResult("straggler", (finding,), ranking, STEP_US, 0.0, 0.0, steps, ())
