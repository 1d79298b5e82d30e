"""Faults of the network: slow connections within a process group, or between two pipeline stages."""

from dataclasses import dataclass

from costs import JobCosts
from fault_model import Effect, Scene, Truth, hosts_of


@dataclass(frozen=True)
class SlowLink:
    """Collectives of the data-parallel group that holds `rank` transfer `factor` times as long."""

    rank: int
    factor: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        layout = costs.layout
        stage, position = layout.place(self.rank)
        operations = costs.program.stages[stage]
        slots = [slot for slot, operation in enumerate(operations) if operation.dimension == "dp"]
        costs.device[stage][:, slots, position % layout.tp :: layout.tp] *= self.factor
        group = layout.dp_group(self.rank)
        return Effect((Truth("slow_link", "communication", (self.rank,), (layout.host(self.rank),), group=group),))


@dataclass(frozen=True)
class SlowEdge:
    """Between `stage` and the next one, at one dp and tp position, transfers take longer, in both directions."""

    stage: int
    dp: int
    tp: int
    factor: float = 1.0
    extra_ms: float = 0.0

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        layout = costs.layout
        ends = (layout.rank_at(self.stage, self.dp, self.tp), layout.rank_at(self.stage + 1, self.dp, self.tp))
        for stage, position in map(layout.place, ends):
            for slot, operation in enumerate(costs.program.stages[stage]):
                if operation.kind == "send" and operation.edge == self.stage:
                    transfer = costs.device[stage][:, slot, position]
                    transfer *= self.factor
                    transfer += self.extra_ms * 1e6
        return Effect((Truth("slow_edge", "communication", ends, hosts_of(layout, ends), edge=ends),))
