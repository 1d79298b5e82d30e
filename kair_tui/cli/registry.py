"""The single list of commands: the program, its help, completion and `kair spec` are derived from it.

A command's module is imported only when the command is used, so that `kair --help` stays fast.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, Final, get_type_hints

from kair_engine.frozen import dataclass
from kair_tui.cli import actions
from kair_tui.cli.actions import Action, Needs

ANALYSES: Final = "Find the straggler"
LOOKS: Final = "Look at the job"
MACHINE: Final = "Confirm it"
STORE: Final = "Keep jobs"
RUNNING: Final = "Watch a running job"
MACHINES: Final = "For machines"
HELP: Final = "Help"


@dataclass(frozen=True)
class Entry:
    """One command; `run` of its module takes its own options."""

    name: str
    section: str
    """Its heading in `kair --help`."""
    summary: str
    examples: tuple[str, ...]
    needs: Needs = "trace"
    """The first argument of `run`."""
    fails_on: bool = False
    """Takes `--fail-on`."""
    takes_baseline: bool = False
    """Takes `--baseline`, and compares the run with the one in use."""
    on_workers: bool = False
    """Takes `--engine`: its per-step work can be done on a cluster."""
    reads_logs: bool = False
    """Can use a job's log: it takes `--log-pattern`, and `-` for a log on stdin."""
    is_graph: bool = False
    """Its answer is also a graph, and can be written as one."""
    is_picture: bool = False
    """Its answer can be written as a picture."""
    is_query: bool = False
    """Its answer is rows of any length, also in Parquet; the query comes after the job, and `--tables` needs no job."""
    has_oneline: bool = False
    """Its answer can be written on one line: it takes `--oneline`."""
    has_report: bool = False
    """Its answer can be written as a report: its module has `markdown`, and `-o md` is the report."""
    acts: bool = False
    """Can act on a job or a host: it runs anew each time, and its options are written out."""
    notes: str = ""
    """Shown in its help after the examples."""
    module: str = ""
    """The module of `run`, if not the one of its name in `kair_tui.commands`."""
    actions: tuple[Action, ...] = ()
    """Its actions, if it does several things with different options."""
    default: str = ""
    """The action that is used if none is named; '' if one must be named."""
    default_takes_words: bool = False
    """Whether a first word that names no action is an argument of the default one."""
    action: str = ""
    """The action of this entry, which `doing` made."""

    @property
    def line(self) -> str:
        """The text to type after `kair`: `triage`, `mitigate plan`."""
        return f"{self.name} {self.action}".rstrip()

    def doing(self, name: str) -> "Entry | None":
        """Return the entry of one action; None if it does not exist."""
        action = next((one for one in self.actions if one.name == name), None)
        if action is None:
            return None
        return replace(
            self,
            summary=action.summary,
            examples=action.examples,
            notes=action.notes,
            needs=action.needs or self.needs,
            actions=(),
            action=action.name,
        )

    @property
    def typical(self) -> "Entry":
        """The entry of the default action, or of the first; without actions, the entry itself."""
        return self.doing(self.default or self.actions[0].name) or self if self.actions else self

    @property
    def has_result(self) -> bool:
        """Whether it answers with a result, which has a schema and can be shown in every format."""
        return self.needs in ("trace", "store", "cache", "certificate", "machine", "runbook", "running")

    @property
    def is_single(self) -> bool:
        """Whether it is one question: typed in a shell or on the full screen, or a line of a runbook."""
        return self.needs not in ("screen", "shell", "runbook", "process", "running")

    def load(self) -> Callable[..., Any]:
        """Return the function that answers."""
        action = self.typical.action
        run: Callable[..., Any] = getattr(self._module(), f"run_{action}" if action else "run")
        return run

    @property
    def asks(self) -> bool:
        """Whether its function makes a question, which the session answers; other functions act themselves."""
        from kair.app.question import Question

        return self.load().__annotations__.get("return") is Question

    def result_type(self) -> type[Any]:
        """Return the class of its result, if it has one."""
        if (words := self.load_words()) is not None:
            return _returned(words)
        if not self.asks:
            return _returned(self.load())
        from kair.app.question import result_type

        return result_type(self.name)

    def load_words(self) -> Callable[[Any], Any] | None:
        """Return the function that adds words to its answer; None if its result needs none."""
        return getattr(self._module(), "in_words", None)

    def load_finish(self) -> Callable[..., None] | None:
        """Return the function that writes the additional files on the command line; None for most commands."""
        return getattr(self._module(), "finish", None)

    def load_markdown(self, *of: Any) -> str:  # noqa: ANN401
        """Return the report on an answer, if the command has one."""
        written: str = self._module().markdown(*of)
        return written

    def load_view(self) -> Any:  # noqa: ANN401
        """Return the renderer of its result; only commands with a result have one."""
        module, _, view = self._module().RENDERER.partition(":")
        return getattr(import_module(module), view or "VIEW")

    def _module(self) -> Any:  # noqa: ANN401
        return import_module(self.module or f"kair_tui.commands.{self.name}")


@cache
def _returned(function: Callable[..., Any]) -> type[Any]:
    kind: type[Any] = get_type_hints(function)["return"]
    return kind


GRAPH_NOTES: Final = """\
Formats of the graph (ranks wait for ranks, which root causes made late):
  dot        for Graphviz, to draw it: small parts are merged
  graphml    the whole graph, for yEd, Gephi, Cytoscape or networkx.read_graphml
  node-link  the whole graph, as JSON for networkx.node_link_graph(..., edges="edges")"""

CONFIRM_NOTES: Final = """\
Ranks are delayed only if that was allowed: kair coordinator --allow-delays, or KAIR_CAPTURE_DELAYS=1 of the job.
confirmed: a rank holds up the job. withdrawn: it does not. shared: several do. not here: nobody, at this place.
open: not decided; it says how many steps it would take. `kair help docs/mitigation` has the method."""

TICKET_NOTES: Final = """\
Hosts are drained by the site's own command, of kair.toml in your configuration folder (or $KAIR_CONFIG):
  [drain]
  command = "scontrol update NodeName={host} State=DRAIN Reason={reason}"
{host}, {reason}, {device} and {job} are filled in; no shell runs it, and nothing runs without --yes. Where none is set
it is Slurm's or Kubernetes', whichever the recording or evidence shows."""

EVIDENCE_NOTES: Final = """\
A folder evidence/ next to traces is read without being asked, by kair triage too. It may hold metrics of
dcgm-exporter and node_exporter, Prometheus, nvidia-smi, kernel logs, NCCL Inspector, ncclras, Slurm, Kubernetes,
PyTorch's memory.
`kair help docs/evidence` says how to get each of them."""

QUERY_NOTES: Final = """\
A query changes nothing and cannot read files. Names in _us are microseconds, in _ns nanoseconds. Without
ORDER BY, groups and joins are sorted by their columns. `kair help python#sql` has examples."""

VERIFY_NOTES: Final = """\
It proves the arithmetic, not that the recording is honest: sums of the account, chances, prices and the verdict are
computed again from recorded figures. The exit status is 3 if one does not follow."""

MCP_NOTES: Final = """\
A client starts it: pip install 'kair[mcp]' first. It reads what its user may read, or with --root only what is below
that folder and in the store. `kair help json` has the configuration of a client."""

RUNBOOK_NOTES: Final = """\
A runbook is a text file of commands; `kair help runbooks` has the language."""

COMMANDS: Final = (
    Entry(
        "tui",
        ANALYSES,
        "The investigation on the full screen (also: kair-tui).",
        ("kair tui traces/", "kair tui job123 --step 40-60", "kair-tui job123 --ascii"),
        needs="screen",
        reads_logs=True,
        module="kair_tui.tui.command",
    ),
    Entry(
        "triage",
        ANALYSES,
        "The whole investigation: which rank, which operator, why, what it costs, what to do.",
        (
            "kair triage traces/",
            "kair triage traces/*.pt.trace.json.gz",
            "kair triage job123 --json",
            "kair triage job123 --fail-on 'straggler,slowdown>1.05'",
            "kair triage job123 --report incident.html",
            "kair triage job123 --oneline",
            "kair triage train.log",
            "kubectl logs job-0 | kair triage -",
        ),
        reads_logs=True,
        has_oneline=True,
        has_report=True,
        fails_on=True,
        takes_baseline=True,
        on_workers=True,
    ),
    Entry(
        "ticket",
        ANALYSES,
        "A finding to hand over: Markdown with price, proofs, cause and commands; how to drain its hosts.",
        (
            "kair ticket job123",
            "kair ticket job123 --report incident.md --gpu-cost 2.5",
            "kair ticket job123 --finding 2 --json",
            "kair ticket job123 --drain",
        ),
        takes_baseline=True,
        on_workers=True,
        acts=True,
        notes=TICKET_NOTES,
    ),
    Entry(
        "localize",
        ANALYSES,
        "Stage 1: a score for every rank.",
        ("kair localize traces/", "kair localize job123 --method paper", "kair localize job123 --by host"),
        fails_on=True,
        takes_baseline=True,
        on_workers=True,
    ),
    Entry(
        "pinpoint",
        ANALYSES,
        "Stage 2: one rank's outlying operators.",
        ("kair pinpoint traces/ --rank 3", "kair pinpoint job123 --rank 3 --step 40-60 -o wide"),
    ),
    Entry(
        "blame",
        ANALYSES,
        "Stage 3: the paths that lead from waiting to its root causes.",
        (
            "kair blame traces/",
            "kair blame job123 --step 40 -o tree",
            "kair blame job123 --rank 3 --json",
            "kair blame job123 -o dot | dot -Tsvg > blame.svg",
        ),
        on_workers=True,
        is_graph=True,
        notes=GRAPH_NOTES,
    ),
    Entry(
        "whatif",
        ANALYSES,
        "How fast the job would be without stragglers, and what each rank, stage and operation type costs.",
        (
            "kair whatif traces/",
            "kair whatif job123 --fix rank=16 --fix stage=3",
            "kair whatif job123 --step 40 --json",
        ),
    ),
    Entry(
        "compare",
        ANALYSES,
        "What changed between two runs: operators, ranks, and what each change adds to the step.",
        (
            "kair compare before/ after/",
            "kair compare job123 job124 --json",
            "kair compare job123 job124 --base-step 40-60 --step 40-60",
        ),
        needs="store",
    ),
    Entry(
        "shell",
        ANALYSES,
        "The same commands on a job that stays open, typed at a prompt or as a batch.",
        (
            "kair shell job123",
            "kair shell job123 -c 'localize; blame --step last'",
            "kair shell job123 < commands.kair",
        ),
        needs="shell",
    ),
    Entry(
        "run",
        ANALYSES,
        "A runbook: commands, conditions and expectations, for on-call, cron and pipelines.",
        (
            "kair run --list",
            "kair run first-look job123",
            "kair run nightly job123 --set slowdown=1.10 -o json",
            "kair run triage.kair job123 --dry-run",
            "kair run recorded.kair --keep-going > answers.txt",
        ),
        needs="runbook",
        notes=RUNBOOK_NOTES,
    ),
    Entry(
        "rank",
        LOOKS,
        "Where one rank's step time goes, and how its operations complete, compared with its peers.",
        ("kair rank traces/ --rank 3", "kair rank job123 --rank 3 --step 40-60 --json"),
    ),
    Entry(
        "sensitivity",
        LOOKS,
        "The smallest slowdown that this recording can show, per cause, and what more steps would bring.",
        ("kair sensitivity traces/", "kair sensitivity job123 --step 40-60 --fault slow_link --json"),
    ),
    Entry(
        "forecast",
        LOOKS,
        "What ordinary noise would cost the job on more ranks, by cause, and how sure that is.",
        ("kair forecast traces/", "kair forecast job123 --ranks 64,1024 --per-host 8 --json"),
    ),
    Entry(
        "frequency",
        LOOKS,
        "How often an operator or phase ran per window of time, on every rank.",
        ("kair frequency traces/", "kair frequency job123 --phase forward --windows 60"),
    ),
    Entry(
        "operators",
        LOOKS,
        "How long every operator ran, by type, and how that differs between ranks.",
        (
            "kair operators traces/",
            "kair operators job123 --type communication",
            "kair operators job123 --operator attention --by-rank --json",
        ),
    ),
    Entry(
        "collectives",
        LOOKS,
        "Bandwidth of groups and links compared with their siblings, overlap, TFLOP/s of matrix products.",
        (
            "kair collectives traces/",
            "kair collectives job123 --kind all_reduce --rank 3",
            "kair collectives job123 --group tp --by-rank --json",
        ),
    ),
    Entry(
        "timeline",
        LOOKS,
        "What every rank did over time around a delay: bars, arrivals, and the blame path through them.",
        (
            "kair timeline traces/",
            "kair timeline job123 --around 3 --step 40",
            "kair timeline job123 --whole --unfold 3",
            "kair timeline job123 --around 3 -o svg > delay.svg",
            "kair timeline job123 --step 40 --perfetto trace.json.gz",
            "kair timeline job123 --fix rank=3+kind=compute",
        ),
        is_picture=True,
    ),
    Entry(
        "steps",
        LOOKS,
        "The time of every step on every rank.",
        (
            "kair steps traces/",
            "kair steps job123 -o csv --fields step,rank,duration_us",
            "kair steps job123 --scopes",
        ),
        reads_logs=True,
    ),
    Entry(
        "info",
        LOOKS,
        "What the recording holds: ranks, hosts, layout, steps, clocks.",
        ("kair info traces/", "kair info job123 --json", "kair info job123 --operators"),
        reads_logs=True,
    ),
    Entry(
        "query",
        LOOKS,
        "SQL over the job's tables: operations, steps, ranks, collectives, account, findings.",
        (
            'kair query traces/ "SELECT rank, sum(duration_us) AS us FROM operations GROUP BY rank"',
            'kair query job123 "SELECT * FROM collectives" --out collectives.parquet',
            "kair query job123 \"SELECT * FROM operations WHERE name LIKE '%gemm%'\" -o csv",
            "kair query --tables",
        ),
        is_query=True,
        notes=QUERY_NOTES,
    ),
    Entry(
        "export",
        LOOKS,
        "One timeline of all ranks for Perfetto, with findings marked; or the table of operations.",
        (
            "kair export traces/ --perfetto trace.json.gz",
            "kair export job123 --step 40-42 --perfetto trace.pftrace",
            "kair export job123 -o operations.parquet",
        ),
        needs="file",
    ),
    Entry(
        "donate",
        LOOKS,
        "The job under pseudonyms, for people who test diagnoses: same verdict, ranks, cause, price.",
        ("kair donate traces/", "kair donate traces/ -o gift.tar.zst", "kair triage gift.tar.zst"),
        needs="file",
    ),
    Entry(
        "probe",
        MACHINE,
        "Measure this machine, and compare a suspect with its peers, before a node is drained.",
        (
            "kair probe --rank 5 --out rank5.json",
            "kair probe --compare rank5.json rank4.json",
            "torchrun --nproc-per-node 8 --no-python kair probe --out 'probe-{rank}.json'",
            "srun kair probe --out 'probe-{rank}.json'",
        ),
        needs="machine",
        fails_on=True,
    ),
    Entry(
        "jobs",
        STORE,
        "The jobs of the store, and what stragglers cost each; rm removes some.",
        ("kair jobs", "kair jobs --whatif", "kair jobs --json", "kair jobs rm job123"),
        needs="store",
        actions=actions.JOBS,
        default="list",
    ),
    Entry(
        "fleet",
        STORE,
        "How often stragglers occur in the store's jobs, what they cost, and on which hosts.",
        ("kair fleet", "kair fleet --gpu-cost 2.5", "kair fleet --report fleet.html", "kair fleet --json"),
        needs="store",
        has_report=True,
    ),
    Entry(
        "ledger",
        STORE,
        "What triage and mitigation predicted, and what came true; devices that are slow in several jobs.",
        ("kair ledger", "kair ledger --job job123", "kair ledger --json"),
        needs="store",
    ),
    Entry(
        "use",
        STORE,
        "Choose the job that commands take when none is named.",
        ("kair use job123",),
        needs="store",
    ),
    Entry(
        "baseline",
        STORE,
        "Keep a healthy run to compare later ones with: what takes longer on all ranks alike.",
        ("kair baseline save healthy job123", "kair baseline use healthy", "kair baseline rm healthy"),
        needs="store",
        actions=actions.BASELINE,
        default="list",
    ),
    Entry(
        "import",
        STORE,
        "Put traces into the store under a name.",
        (
            "kair import traces/ --job job123",
            "kair import rank0.json.gz rank1.json.gz --job job123 --replace",
        ),
        needs="store",
        module="kair_tui.commands.import_",
    ),
    Entry(
        "evidence",
        STORE,
        "Logs, metrics and counters of a job's hosts and devices: list them, or add some to the job.",
        (
            "kair evidence job123",
            "kair evidence add job123 dmesg-node-7.txt",
            "kair evidence add job123 telemetry/ http://prometheus:9090",
            "kair evidence traces/ --evidence telemetry/ --json",
        ),
        needs="store",
        notes=EVIDENCE_NOTES,
        actions=actions.EVIDENCE,
        default="list",
        default_takes_words=True,
    ),
    Entry(
        "cache",
        STORE,
        "How much disk space parsed traces take; clear removes them.",
        ("kair cache", "kair cache clear"),
        needs="cache",
        actions=actions.CACHE,
        default="show",
    ),
    Entry(
        "capture",
        RUNNING,
        "Run a training job under watch, its script unchanged; sample it, control it, or attach to it.",
        (
            "kair capture run -- torchrun --nproc-per-node 8 train.py",
            "kair capture run --job job123 -- python train.py",
            "kair capture now --job job123 --ranks 3,7",
            "kair capture now --job job123 --steps 2 --stacks",
            "kair capture set job123 max-overhead=2% sample-every=500",
            "kair capture set job123 capture=off",
        ),
        needs="process",
        actions=actions.CAPTURE,
    ),
    Entry(
        "coordinator",
        RUNNING,
        "Runs next to a job: notices slow ranks, has them sampled, and keeps what it finds.",
        (
            "kair coordinator --job job123",
            "kair coordinator --job job123 --listen 0.0.0.0:7433 --max-overhead 0.5%",
            "kair coordinator --job job123 --metrics 127.0.0.1:9433 --leave-after 60",
        ),
        needs="process",
    ),
    Entry(
        "confirm",
        RUNNING,
        "Prove which rank holds up a running job: delay some at random, and see whether steps grow.",
        (
            "kair confirm job123",
            "kair confirm job123 --rank 5 --worth",
            "kair confirm job123 --all --budget 0.5%",
            "kair confirm job123 --stop",
            "kair confirm job123 --last",
        ),
        needs="store",
        notes=CONFIRM_NOTES,
    ),
    Entry(
        "mitigate",
        RUNNING,
        "Act on stragglers: resize batches with exact gradients, restart in order, train every sample once.",
        (
            "kair mitigate run --job job123 -- torchrun --nproc-per-node 8 train.py",
            "kair mitigate status job123",
            "kair mitigate control job123",
            "kair mitigate approve job123 3",
            "kair mitigate plan job123 --sizes 21,6,21",
            "kair mitigate audit job123 --json",
            "kair mitigate simulate traces/",
            "kair mitigate simulate --ranks 16",
        ),
        needs="store",
        acts=True,
        actions=actions.MITIGATE,
        default="status",
    ),
    Entry(
        "watch",
        RUNNING,
        "Follow a running job: self times, alerts as they come, sampled windows, clocks.",
        (
            "kair watch job123",
            "kair watch job123 --once --json",
            "kair watch job123 -o ndjson | jq 'select(.record == \"alert\")'",
            "kair watch job123 --quiet --fail-on slow_rank,stalled",
            "kair watch job123 --whatif --fail-on high_slowdown",
        ),
        needs="running",
        fails_on=True,
    ),
    Entry(
        "mcp",
        MACHINES,
        "The read-only commands as tools for agents, over the Model Context Protocol.",
        ("kair mcp", "kair mcp --root /data/traces", "kair mcp --store /shared/kair"),
        needs="process",
        notes=MCP_NOTES,
    ),
    Entry(
        "verify",
        MACHINES,
        "Check a verdict by its certificate, without the traces.",
        ("kair triage traces/ --certificate out.json", "kair verify out.json", "kair verify out.json --json"),
        needs="certificate",
        notes=VERIFY_NOTES,
    ),
    Entry("spec", MACHINES, "The commands, their options and results, as JSON.", ("kair spec",), needs="nothing"),
    Entry(
        "schema",
        MACHINES,
        "The JSON Schema of a command's --json document; without a name, the list of names.",
        ("kair schema triage", "kair schema"),
        needs="nothing",
    ),
    Entry(
        "help",
        HELP,
        "What a word in the answers means, what a command does, and the documents.",
        ("kair help straggler", "kair help launch queue", "kair help triage", "kair help formats", "kair help pages"),
        needs="nothing",
    ),
)


def find(name: str) -> Entry | None:
    """Return the command of that name, or one action of a command (`mitigate plan`); None if neither exists."""
    command, _, action = name.partition(" ")
    found = next((entry for entry in COMMANDS if entry.name == command), None)
    return found.doing(action) if found is not None and action else found


def nearest(name: str) -> str | None:
    """Return the probable command."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, [entry.name for entry in COMMANDS], n=1)), None)
