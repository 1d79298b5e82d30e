"""What trials tell of jobs whose hosts run ahead of their devices: who is accused, and of what, by what it costs."""

from collections.abc import Callable, Iterable, Sequence

from report import Bounded, Results, Row, Share, Table
from run_ahead import ABSORBED
from scoring import Score
from trials import Trial

PAGE = "ahead"
CERTAIN, CLEAR = 0.05, 0.1
"""Of the period: faults that cost so much are to be found, and those that cost more all the more so."""
PRICED, NEAR = 0.03, 0.15
"""Prices count of faults that cost so much of the period, and are right within so much of what these cost."""


def ahead_tables(results: Results) -> list[Table]:
    """The tables by layout and by fault; none where no such job was run."""
    ahead = [(scenario, trials) for scenario, trials in results if scenario.runs_ahead and trials]
    by_layout: dict[str, list[Trial]] = {}
    by_fault: dict[str, list[Trial]] = {}
    healthy: dict[str, list[Trial]] = {}
    for scenario, trials in ahead:
        if scenario.kind == "healthy":
            healthy.setdefault(scenario.layout, []).extend(trials)
        else:
            by_layout.setdefault(scenario.layout, []).extend(trials)
            by_fault.setdefault(scenario.name.removeprefix("ahead: "), []).extend(trials)
    layouts = dict.fromkeys(scenario.layout for scenario, _ in ahead)
    of_layouts = [
        {"layout": layout, **_healthy(healthy.get(layout, [])), **_faulty(by_layout.get(layout, []))}
        for layout in layouts
    ]
    faulty = [trial for trials in by_layout.values() for trial in trials]
    sound = [trial for trials in healthy.values() for trial in trials]
    of_layouts += [{"layout": "all", **_healthy(sound), **_faulty(faulty)}] if of_layouts else []
    of_faults = [{"fault": fault, **_faulty(trials)} for fault, trials in by_fault.items()]
    made = (
        Table("Hosts that run ahead", PAGE, _NOTE, of_layouts),
        Table("Hosts that run ahead, by fault", PAGE, "The same faults, all layouts together.", of_faults),
    )
    return [table for table in made if table.rows]


_NOTE = (
    "No step waits for the device, or one in four: launches queue up, 40 to 1,024 of them, eight steps' at most "
    "(where a step is one CUDA graph, 2 to 6 launches). A fault counts by what it "
    "costs of the devices' period: from 5 % on it is to be found (`≥ 5 %`, `≥ 10 %` of these), below 0.5 % the queue "
    "hides it (`absorbed`) and nobody is to be accused; those between count for neither (`between`). `rank`: exactly "
    "who is guilty is accused; `right`: with the true cause; `first`: a guilty rank is the most suspicious. `price`: "
    "of right answers to faults that cost 3 % or more, those that say what they cost within 15 %."
)


def _healthy(trials: Sequence[Trial]) -> Row:
    return {"healthy": len(trials), "any finding": _share(trials, lambda score: score.claims)}


def _faulty(trials: Sequence[Trial]) -> Row:
    certain = _costing(trials, CERTAIN)
    clear = _costing(trials, CLEAR)
    absorbed = [trial for trial in trials if _cost(trial) < ABSORBED]
    return {
        "≥ 5 %": len(certain),
        "first": _share(certain, lambda score: score.first),
        "rank": _share(certain, lambda score: score.ranks),
        "right": Bounded(_share(certain, lambda score: score.right)),
        "≥ 10 %": len(clear),
        "rank, ≥ 10 %": _share(clear, lambda score: score.ranks),
        "right, ≥ 10 %": _share(clear, lambda score: score.right),
        "price": _near(_costing(trials, PRICED)),
        "between": len(trials) - len(certain) - len(absorbed),
        "absorbed": len(absorbed),
        "accused": _share(absorbed, lambda score: score.accuses),
        "any finding, absorbed": _share(absorbed, lambda score: score.claims),
    }


def _costing(trials: Sequence[Trial], share: float) -> list[Trial]:
    return [trial for trial in trials if _cost(trial) >= share]


def _cost(trial: Trial) -> float:
    """As a share of the period."""
    return trial.cost_us / trial.step_us


def _near(trials: Iterable[Trial]) -> Share:
    """The prices that are near what the fault costs, of those that were said."""
    priced = [(trial.cost_us, trial.scores["robust"].cost_us) for trial in trials if trial.scores["robust"].right]
    said = [(true, price) for true, price in priced if price is not None]
    return Share(sum(abs(price - true) <= NEAR * true for true, price in said), len(priced))


def _share(trials: Sequence[Trial], holds: Callable[[Score], bool | None]) -> Share:
    """Of the trials of which it can be said."""
    known = [known for trial in trials if (known := holds(trial.scores["robust"])) is not None]
    return Share(sum(known), len(known))
