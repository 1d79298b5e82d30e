"""Kinds of open items: a class each, with its description, its sentence and what would settle it.

`kair schema` prints the first lines of a class's docstring, and `kair_tui/render/open_items.py` fills the templates.
Their fields are those of the item, and `lost` (of the step), `why`, `where_in`, `where_on`, `deed` and `steps_more`.
"""

from typing import ClassVar, Final

from kair_engine.results.triage import OpenItem, OpenKind

KINDS: Final[dict[str, type["OpenText"]]] = {}
"""Every kind, by its name."""
_HEALTHY_RUN: Final = "compare with a healthy run (kair compare)"


class OpenText:
    """What is said of one kind of open items."""

    template: ClassVar[str]
    settled_by: ClassVar[str]

    def __init_subclass__(cls, kind: OpenKind) -> None:
        """Register the kind under its name."""
        KINDS[kind] = cls

    @classmethod
    def description(cls) -> str:
        """Return what the kind is, for the schema."""
        return " ".join((cls.__doc__ or "").split())

    @classmethod
    def wording(cls, item: OpenItem) -> str:  # noqa: ARG003 - of most kinds it is one
        """Return the template of its sentence that fits an item."""
        return cls.template

    @classmethod
    def settling(cls, item: OpenItem) -> str:  # noqa: ARG003 - of most kinds it is one
        """Return the template of what would settle an item."""
        return cls.settled_by


class Unrecorded(OpenText, kind="unrecorded"):
    """Ranks that left no trace are waited for: `us_per_step` is the least that they cost."""

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Say how long they are waited for, or may be."""
        if item.cause == "exposed_communication":
            waited = "up to {lost} goes by in communication with {ranks:?it|them}, which may all be waiting"
            return f"{{ranks:named some ranks}} left no trace: {waited}"
        return "{ranks:named some ranks} left no trace, and the others wait at least {lost} for {ranks:?it|them}"

    @classmethod
    def settling(cls, item: OpenItem) -> str:
        """Name their traces."""
        return "add the {ranks:?trace|traces} of {ranks:named}" if item.ranks else "add their traces"


class Unmatched(OpenText, kind="unmatched"):
    """Collectives were not matched across ranks: who waits in them is unknown."""

    template = (
        "{lost} went by in collectives{where_in}{where_on} that were not matched: it is unknown who waits in them"
    )
    settled_by = "record the process group of each collective"


class Event(OpenText, kind="event"):
    """A few steps took much longer, too few to accuse anybody. `took_us` and `usual_us` say how long."""

    settled_by = "record {steps_more} to see whether it returns"

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Say how long the steps took, and for whom the others waited."""
        up_to = "" if len(item.steps) == 1 else "up to "
        took = f"took {up_to}{{took_us:duration}} instead of {{usual_us:duration}}"
        if item.took_us is None or item.usual_us is None:
            took = "took longer, which costs {lost} on average"
        late = "the others waited for {ranks:named}{deed}" if item.ranks else "all ranks were late together{why}"
        return f"{{steps:?step|steps}} {{steps:spans}} {took}: {late}"


class Uneven(OpenText, kind="uneven"):
    """Work differs from rank to rank or from step to step, on nobody in particular."""

    settled_by = "record the shapes of inputs to see why"

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Name the ranks, where there are any."""
        where = "{where_on}" if item.ranks else ", on no rank in particular"
        return f"uneven work costs {{lost}}{{why}}{{where_in}}{where}"


class Waiting(OpenText, kind="waiting"):
    """Ranks are waited for, and no test sets them apart; or a replay does not confirm one (`replayed_us`)."""

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Say for whom, and what a test and a replay say of it."""
        if not item.ranks:
            return "ranks wait {lost} for one another{where_in}, for no rank in particular"
        waited = "the others wait {lost} for {ranks:named}{why}"
        if item.replayed_us is None:
            return f"{waited}, but no test finds {{ranks:?it|them}} slow"
        but = "but replayed without {ranks:?it|them} a step is only {replayed_us:duration} shorter"
        return f"{waited}, which a test finds slow, {but}"

    @classmethod
    def settling(cls, item: OpenItem) -> str:
        """Ask for more steps, unless a replay contradicts the test."""
        return "record {steps_more}" if item.replayed_us is None else _HEALTHY_RUN


class UnseenWaiting(OpenText, kind="unseen_waiting"):
    """Ranks may wait for one another, for up to `us_per_step`, where no waiting was recorded."""

    template = "ranks may wait for one another for up to {lost}, which recorded steps do not show"
    settled_by = "sample some steps while it trains (kair capture now)"


class Changed(OpenText, kind="changed"):
    """Steps take longer from one step on. `took_us` and `usual_us` say how long after it and before it."""

    settled_by = "record {steps_more} before and after it"

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Say since when, by how much and where."""
        longer = "a step takes {took_us:duration} instead of {usual_us:duration}"
        if item.took_us is None or item.usual_us is None:
            longer = "steps take longer, by {lost}"
        since = "since step {steps[0]} " if item.steps else ""
        where = ": {where:name}{why}" if item.where else ": {ranks:named}{why}"
        return f"{since}{longer}{where if item.where or item.ranks else '{why}, on no rank in particular'}"


class Idle(OpenText, kind="idle"):
    """Nothing was recorded for this time."""

    template = "what CUDA graphs run is not recorded, {lost}{where_on}{where_in}"
    settled_by = "record with nsys profile --cuda-graph-trace=node"


class GroupsDiffer(OpenText, kind="groups_differ"):
    """One group is slower than its siblings, or one half than the other: which is usual is unknown."""

    settled_by = _HEALTHY_RUN

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Name the group by its ranks and its name."""
        where = " ({where:name})" if item.where else ""
        takes = f"{where} {'take' if len(item.ranks) > 1 else 'takes'} {{lost}} longer than the others{{why}}"
        return f"{{ranks:named one group}}{takes}, and it is unknown which of the two is usual"


class NoPeer(OpenText, kind="no_peer"):
    """Ranks that were not compared with peers; the whole step where none has a peer."""

    settled_by = _HEALTHY_RUN

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Say who was not compared, and how long the others may wait for them."""
        if item.is_whole:
            return "{ranks:named} is recorded alone" if item.ranks else "no rank has a peer to compare it with"
        was = "{ranks:?was|were} not compared with peers, and the others may wait {lost} for {ranks:?it|them}"
        return f"{{ranks:named some ranks}} {was}"


class FewSteps(OpenText, kind="few_steps"):
    """Ranks that were slower in all of too few steps for a test; the whole step where none can be tested."""

    settled_by = "record {steps_more}"

    @classmethod
    def wording(cls, item: OpenItem) -> str:
        """Say who takes longer, where that is anybody."""
        if item.is_whole:
            return "in so few steps a slow rank looks like a slow moment"
        takes = "{ranks:named some ranks} {ranks:?takes|take} {lost} longer{why}"
        return f"{takes} in every step, but there are too few steps for a test"
