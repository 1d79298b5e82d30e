"""Puts trials together: tables of shares with their intervals, as Markdown, as pages and as plain values."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from scenarios import Scenario
from scoring import Score
from trials import METHODS, Trial

from kair_engine.stats import wilson

LEVELS = (0.01, 0.05, 0.1, 0.2, 0.5)
_CURVE_WIDTH = 50

_HEALTHY, _FAULTS = "healthy", "faults"
IN_OVERVIEW = frozenset({_HEALTHY, _FAULTS})
"""The pages whose tables the overview puts together."""

Results = Sequence[tuple[Scenario, Sequence[Trial]]]
"""Scenarios, in the order of the report, with those of their trials that were run."""


@dataclass(frozen=True)
class Share:
    """So many of so many jobs."""

    hits: int
    jobs: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95 %."""
        return wilson(self.hits, self.jobs)

    def __str__(self) -> str:
        if not self.jobs:
            return ""
        share = self.hits / self.jobs
        fine = self.jobs >= 50 and (0 < share < 0.1 or 0.9 < share < 1)
        return f"{share:.1%}" if fine else f"{share:.0%}"


@dataclass(frozen=True)
class Bounded:
    """A share that is printed with its interval."""

    share: Share

    def __str__(self) -> str:
        low, high = (round(100 * bound, 1) for bound in self.share.interval)
        return f"{self.share} ({low:g}–{high:g})" if self.share.jobs else ""


Cell = str | int | float | Share | Bounded
Row = Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """Rows that share their columns."""

    title: str
    page: str
    """The name of the page that it stands on, without `.md`."""
    note: str
    rows: Sequence[Row]
    below: str = ""
    """Text that is printed as it stands."""


def tables(results: Results) -> list[Table]:
    """Everything the trials tell about verdicts; a table without rows is left out.

    Jobs whose hosts run ahead have tables of their own, in ahead_report.py.
    """
    results = _synchronised(results)
    made = (
        _healthy(results),
        _faults(results),
        _recordings(results),
        _skew(results),
        _accusing_methods(results),
        _first_ranks(results),
        _accused_ranks(results),
        _calibration(results),
    )
    return [table for table in made if table.rows]


def _synchronised(results: Results) -> Results:
    return [(scenario, trials) for scenario, trials in results if not scenario.runs_ahead]


def markdown(made: Iterable[Table]) -> str:
    """The tables as Markdown."""
    return "\n\n".join(_markdown(table) for table in made)


def pages(made: Iterable[Table], run: str) -> dict[str, str]:
    """File name → text, of every page that the tables stand on; `run` says how many jobs they are from."""
    of: dict[str, list[Table]] = {}
    for table in made:
        of.setdefault(table.page, []).append(table)
    return {f"{page}.md": _page(tables, run) for page, tables in of.items()}


def overview(made: Iterable[Table], run: str) -> str:
    """What a person can take in: a row for each thing that can be wrong, all layouts together."""
    by_page = {table.page: table.rows for table in made if table.page in IN_OVERVIEW}
    rows = [*_all_healthy(by_page.get(_HEALTHY, ())), *_all_faults(by_page.get(_FAULTS, ()))]
    return f"{run}\n\n{_grid(rows)}" if rows else run


def plain(made: Iterable[Table]) -> list[dict[str, object]]:
    """The tables as values for JSON."""
    return [
        {"title": table.title, "rows": [{name: _plain(cell) for name, cell in row.items()} for row in table.rows]}
        for table in made
    ]


def misses(results: Results) -> list[str]:
    """One line for every answer of the robust method that is not what it should be."""
    return [
        f"{scenario.name} | {scenario.layout} | {scenario.steps} steps, spread {scenario.noise.spread:.1%} | "
        f"seed {trial.seed} | {trial.said}"
        for scenario, trials in results
        for trial in trials
        if not _as_it_should_be(scenario, trial.scores["robust"])
    ]


def _all_healthy(rows: Sequence[Row]) -> Iterator[Row]:
    """Of jobs without a fault nothing at all may be found."""
    healthy = [row for row in rows if row["job"] == "healthy"]
    if healthy:
        shares = {_of_healthy(row): _counted(row["any finding"], but=True) for row in healthy}
        accused = _pooled(_counted(row["accused"]) for row in healthy)
        yield _overview_row("nothing", len({row["layout"] for row in healthy}), shares, accused)


def _of_healthy(row: Row) -> str:
    return f"{row['layout']}, {row['steps']} steps, spread {row['spread']}, noise {row['noise']}"


def _all_faults(rows: Sequence[Row]) -> Iterator[Row]:
    for fault in sorted({str(row["fault"]) for row in rows}):
        of_fault = [row for row in rows if row["fault"] == fault]
        shares = {str(row["layout"]): _counted(row["right"]) for row in of_fault}
        accused = _pooled(_counted(row["innocent accused"]) for row in of_fault)
        yield _overview_row(fault, len(shares), shares, accused)


def _overview_row(what: str, layouts: int, right: Mapping[str, Share], accused: Share) -> Row:
    together = _pooled(right.values())
    where, lowest = min(right.items(), key=lambda item: item[1].hits / max(item[1].jobs, 1))
    return {
        "what is wrong": what,
        "layouts": layouts,
        "jobs": together.jobs,
        "right": Bounded(together),
        "lowest": "" if lowest.hits == lowest.jobs else f"{lowest} ({where})",
        "innocent accused": accused,
    }


def _pooled(shares: Iterable[Share]) -> Share:
    known = list(shares)
    return Share(sum(share.hits for share in known), sum(share.jobs for share in known))


def _counted(cell: Cell, *, but: bool = False) -> Share:
    """The share in a cell; with `but` that of all other jobs."""
    share = cell.share if isinstance(cell, Bounded) else cell
    if not isinstance(share, Share):
        raise TypeError(f"{cell!r} is no share")
    return Share(share.jobs - share.hits, share.jobs) if but else share


def _as_it_should_be(scenario: Scenario, score: Score) -> bool:
    nothing = scenario.kind == "healthy" or score.exact is None
    return not score.claims if nothing else bool(score.exact)


def _healthy(results: Results) -> Table:
    rows: list[Row] = [
        {
            "job": scenario.name,
            "layout": scenario.layout,
            "spread": f"{scenario.noise.spread:.1%}",
            "noise": f"{scenario.noise.operation:.0%}",
            "steps": scenario.steps,
            "jobs": len(trials),
            "accused": Bounded(_share(trials, lambda score: score.accuses)),
            "any finding": Bounded(_share(trials, lambda score: score.claims)),
        }
        for scenario, trials in results
        if scenario.kind != "guilty"
    ]
    note = "`accused`: some rank is named as guilty, which none is. `any finding`: something is said to be wrong."
    return Table("Jobs in which nobody is guilty", _HEALTHY, note, rows)


def _faults(results: Results) -> Table:
    rows: list[Row] = [
        {
            "fault": scenario.name,
            "layout": scenario.layout,
            "jobs": len(trials),
            "top-1": _share(trials, lambda score: score.first),
            "right": Bounded(_share(trials, lambda score: score.right)),
            "exact": _share(trials, lambda score: score.exact),
            "operator": _share(trials, lambda score: score.operator),
            "innocent accused": _share(trials, lambda score: score.innocent),
        }
        for scenario, trials in results
        if scenario.kind != "healthy" and scenario.steps == 20
    ]
    note = (
        "`top-1`: the most suspicious rank of the ranking is guilty. `right`: a finding names exactly the guilty "
        "ranks, and the true cause. `exact`: right, and nobody else is accused. `operator`: of the right answers, "
        "those that name the slow operator (of a GPU slow at everything: none)."
    )
    return Table("Faults", _FAULTS, note, rows)


def _recordings(results: Results) -> Table:
    several = {(scenario.name, scenario.layout) for scenario, _ in results if scenario.steps != 20}
    rows: list[Row] = [
        {
            "fault": scenario.name,
            "layout": scenario.layout,
            "steps": scenario.steps,
            "jobs": len(trials),
            "top-1": _share(trials, lambda score: score.first),
            "right": _share(trials, lambda score: score.right),
            "inconclusive": _share(trials, lambda score: score.verdict == "inconclusive"),
            "missed": _share(trials, lambda score: score.verdict == "no_straggler"),
            "wrong": _share(trials, lambda score: score.verdict == "straggler" and not score.right),
        }
        for scenario, trials in sorted(results, key=lambda result: (result[0].name, result[0].layout, result[0].steps))
        if scenario.kind == "guilty" and (scenario.name, scenario.layout) in several
    ]
    note = (
        "Of faults that come and go, recordings without a trace of it are left out. `missed`: the verdict is "
        "`no_straggler`. `wrong`: it is `straggler`, with the wrong rank or cause."
    )
    return Table("Short and long recordings", "recordings", note, rows)


def _skew(results: Results) -> Table:
    rows: list[Row] = []
    for scenario, trials in results:
        alike = [trial.unskewed_alike for trial in trials if trial.unskewed_alike is not None]
        if alike:
            rows.append({"layout": scenario.layout, "jobs": len(alike), "same answer": Share(sum(alike), len(alike))})
    note = "The same jobs with and without clocks that differ: verdict, accused ranks and causes."
    return Table("Skewed clocks", "clocks", note, rows)


def _accusing_methods(results: Results) -> Table:
    rows: list[Row] = [
        {
            **{"job": scenario.name, "layout": scenario.layout, "jobs": len(trials)},
            **{method: _share(trials, lambda score: score.accuses, method) for method in METHODS},
        }
        for scenario, trials in _compared(results)
        if scenario.kind != "guilty"
    ]
    note = "The share of these jobs in which each method accuses a rank."
    return Table("Methods compared: jobs in which nobody is guilty", "methods", note, rows)


def _first_ranks(results: Results) -> Table:
    # Least waiting has one ranking, whether or not a test follows.
    methods = [method for method in METHODS if "Grubbs" not in method]
    rows: list[Row] = [
        {
            **{"fault": scenario.name, "layout": scenario.layout, "jobs": len(trials)},
            **{method: _share(trials, lambda score: score.first, method) for method in methods},
        }
        for scenario, trials in _compared(results)
        if scenario.kind == "guilty"
    ]
    note = "The share of jobs in which a guilty rank is the most suspicious one (top-1)."
    return Table("Methods compared: the first rank", "methods", note, rows)


def _accused_ranks(results: Results) -> Table:
    rows: list[Row] = [
        {
            **{"fault": scenario.name, "layout": scenario.layout, "jobs": len(trials)},
            **{method: _share(trials, lambda score: score.ranks, method) for method in METHODS},
            **{f"{method}, cause": _share(trials, lambda score: score.exact, method) for method in METHODS[:2]},
        }
        for scenario, trials in _compared(results)
        if scenario.kind == "guilty"
    ]
    note = (
        "The share of jobs in which all who are guilty and nobody else is accused, whatever the cause; in the last two "
        "columns with the true cause. The other rules tell no causes, or always the same."
    )
    return Table("Methods compared: who is accused", "methods", note, rows)


def _calibration(results: Results) -> Table:
    rows: list[Row] = []
    curves = []
    for scenario, trials in results:
        p_values = [trial.lowest_p for trial in trials if trial.lowest_p is not None]
        if p_values:
            what = {"job": scenario.name, "layout": scenario.layout, "spread": f"{scenario.noise.spread:.1%}"}
            shares = {f"p ≤ {level}": Share(sum(p <= level for p in p_values), len(p_values)) for level in LEVELS}
            rows.append(what | {"jobs": len(p_values)} | {level: Bounded(share) for level, share in shares.items()})
            curves.append(f"{', '.join(what.values())}\n{_curve(list(shares.values()))}")
    note = (
        "The smallest p-value of everything that triage tried in a job, which is corrected for all that. No share may "
        "lie above its level. Groups, links, operators and rare events take part only where they are found, so the "
        "shares at higher levels are lower bounds."
    )
    return Table("Calibration: p-values where nobody is guilty", "calibration", note, rows, _fenced(curves))


def _curve(shares: Sequence[Share]) -> str:
    """A bar per level as long as the share, and a mark where it would be as long as the level."""
    lines = []
    for level, share in zip(LEVELS, shares, strict=True):
        bar = "#" * round(_CURVE_WIDTH * share.hits / share.jobs)
        mark = round(_CURVE_WIDTH * level)
        lines.append(f"  p ≤ {level:<5}" + bar[:mark].ljust(mark) + "|" + bar[mark + 1 :])
    return "\n".join(lines)


def _fenced(parts: Sequence[str]) -> str:
    return "\n".join(("```text", *parts, "```")) if parts else ""


def costs(results: Results) -> list[Table]:
    """What faults cost, beside what triage says; nothing where no priced fault was found."""
    rows = []
    for scenario, trials in _synchronised(results):
        priced = [
            (trial.cost_us, trial.scores["robust"].cost_us, trial.step_us)
            for trial in trials
            if trial.scores["robust"].cost_us is not None and trial.cost_us > 0
        ]
        if priced and scenario.kind == "guilty" and scenario.steps == 20:
            rows.append(_cost_row(scenario, [(true, said or 0.0, step) for true, said, step in priced]))
    note = (
        "What a right finding says that the fault costs per step, beside the simulated step with the fault less that "
        "without it. `error` is the median of |said − true| / true."
    )
    return [Table("What a fault costs", "costs", note, rows)] if rows else []


def _cost_row(scenario: Scenario, priced: Sequence[tuple[float, float, float]]) -> Row:
    return {
        "fault": scenario.name,
        "layout": scenario.layout,
        "jobs": len(priced),
        "true, of the step": f"{median(true / step for true, _, step in priced):.1%}",
        "said, of the step": f"{median(said / step for _, said, step in priced):.1%}",
        "error": f"{median(abs(said - true) / true for true, said, _ in priced):.0%}",
    }


def _share(trials: Sequence[Trial], holds: Callable[[Score], bool | None], method: str = "robust") -> Share:
    """Of the trials of which it can be said."""
    known = [known for trial in trials if (known := holds(trial.scores[method])) is not None]
    return Share(sum(known), len(known))


def _compared(results: Results) -> list[tuple[Scenario, list[Trial]]]:
    """The trials that all methods saw."""
    found = ((scenario, [trial for trial in trials if len(trial.scores) > 1]) for scenario, trials in results)
    return [(scenario, trials) for scenario, trials in found if trials]


def _markdown(table: Table, level: str = "###") -> str:
    parts = (f"{level} {table.title}", table.note, _grid(table.rows), table.below)
    return "\n\n".join(part for part in parts if part)


def _page(tables: Sequence[Table], run: str) -> str:
    above = f"{run} Written by `validation/accuracy/run.py`; what the words mean is in [simulated.md](simulated.md)."
    first, *more = tables
    title, _, rest = _markdown(first, "#").partition("\n\n")
    return "\n\n".join((title, above, rest, *(_markdown(table, "#") for table in more))) + "\n"


def _grid(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _plain(cell: Cell) -> object:
    if isinstance(cell, Bounded):
        cell = cell.share
    if isinstance(cell, Share):
        return asdict(cell) | dict(zip(("low", "high"), cell.interval, strict=True))
    return cell
