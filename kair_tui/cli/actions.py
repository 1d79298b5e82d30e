"""Actions of commands that have several: each has its own options, help and examples."""

from typing import Final, Literal

from kair_engine.frozen import dataclass

Needs = Literal[
    "trace",
    "file",
    "store",
    "cache",
    "certificate",
    "machine",
    "screen",
    "shell",
    "runbook",
    "process",
    "running",
    "nothing",
]
"""A command's input. `shell` and `runbook` run other commands; `process` launches a job; `running` observes one."""


@dataclass(frozen=True)
class Action:
    """One action of a command: the function `run_NAME` of the command's module carries it out."""

    name: str
    summary: str
    examples: tuple[str, ...]
    notes: str = ""
    """Shown in its help after the examples."""
    needs: Needs | None = None
    """The first argument of its function, if different from the command's other actions."""


JOBS: Final = (
    Action(
        "list",
        "List the jobs of the store, and what stragglers cost each.",
        ("kair jobs", "kair jobs --whatif", "kair jobs list --gpu-cost 2.5 --json"),
    ),
    Action("rm", "Remove jobs from the store.", ("kair jobs rm job123", "kair jobs rm job123 job124")),
)

BASELINE: Final = (
    Action("list", "List the saved baselines.", ("kair baseline", "kair baseline list --json")),
    Action(
        "save",
        "Save a healthy job as a baseline.",
        ("kair baseline save healthy job123", "kair baseline save healthy traces/ --step 40-60 --replace"),
    ),
    Action(
        "use",
        "Compare later jobs with a baseline, or with none.",
        ("kair baseline use healthy", "kair baseline use none"),
    ),
    Action("rm", "Remove a baseline.", ("kair baseline rm healthy",)),
)

EVIDENCE: Final = (
    Action(
        "list",
        "List the evidence about a job's hosts and devices.",
        ("kair evidence job123", "kair evidence list traces/ --evidence telemetry/ --json"),
    ),
    Action(
        "add",
        "Keep logs, metrics and counters with a job of the store.",
        (
            "kair evidence add job123 dmesg-node-7.txt",
            "kair evidence add job123 telemetry/ http://prometheus:9090",
        ),
    ),
)

CACHE: Final = (
    Action("show", "Show how much disk space parsed traces take.", ("kair cache", "kair cache show --json")),
    Action("clear", "Remove all parsed traces.", ("kair cache clear",)),
)

CAPTURE: Final = (
    Action(
        "run",
        "Run a training command, and what it starts, under watch.",
        (
            "kair capture run -- torchrun --nproc-per-node 8 train.py",
            "kair capture run --watch --job job123 -- python train.py",
        ),
        notes="""\
Its exit status is that of the command. Failures of Kair never reach the command: one warning appears, and it goes on
without capture. `kair help docs/capture` lists the variables, and what capture costs.""",
    ),
    Action(
        "now",
        "Sample some steps of a running job.",
        ("kair capture now --job job123 --ranks 3,7", "kair capture now --job job123 --steps 2 --stacks"),
    ),
    Action(
        "set",
        "Change settings of a running job, or show them.",
        (
            "kair capture set job123",
            "kair capture set job123 max-overhead=2% sample-every=500",
            "kair capture set job123 capture=off",
        ),
    ),
    Action(
        "attach",
        "Record a process that is already running.",
        ("kair capture attach 4242", "kair capture attach 4242 --job job123"),
    ),
)

MITIGATE: Final = (
    Action(
        "status",
        "Show a job's sizes, its proposals, and how long a sample takes on each rank.",
        ("kair mitigate status job123", "kair mitigate status job123 --json"),
    ),
    Action(
        "run",
        "Run a training command, and restart it when that is ordered.",
        ("kair mitigate run --job job123 -- torchrun --nproc-per-node 8 train.py",),
        needs="process",
    ),
    Action(
        "control",
        "Watch a job, and propose sizes or apply them.",
        ("kair mitigate control job123", "kair mitigate control job123 --auto --policy claims --per-hour 4"),
    ),
    Action("approve", "Carry a proposal out.", ("kair mitigate approve job123 3",)),
    Action("deny", "Turn a proposal down.", ("kair mitigate deny job123 3",)),
    Action(
        "plan",
        "Order how many samples of a step each rank takes.",
        (
            "kair mitigate plan job123 --sizes 21,6,21",
            "kair mitigate plan job123 --deadline 80 --batches 4,2,4",
            "kair mitigate plan job123 --claims on",
        ),
    ),
    Action(
        "leave",
        "Order a restart, without a host if one is named.",
        ("kair mitigate leave job123 --leave-out node3", "kair mitigate leave job123 --sizes 24,24 --from-step 600"),
    ),
    Action("undo", "Order the sizes that were in force before.", ("kair mitigate undo job123",)),
    Action("history", "List every plan that was ordered.", ("kair mitigate history job123 --json",)),
    Action(
        "audit",
        "Check that every sample was trained once.",
        ("kair mitigate audit job123", "kair mitigate audit job123 --epochs 2 --json"),
    ),
    Action(
        "simulate",
        "Compare policies on simulated jobs, or on a recorded one.",
        ("kair mitigate simulate traces/", "kair mitigate simulate --ranks 16"),
    ),
    Action(
        "drain",
        "Print the commands that take a host out of the scheduler, or run them.",
        ("kair mitigate drain node7", "kair mitigate drain node7 --job job123 --yes"),
    ),
    Action(
        "shards",
        "Hand data out in shards to workers that do not step together.",
        (
            "kair mitigate shards job123 --samples 60000 --shard-samples 64 --epochs 2",
            "kair mitigate shards job123 --files files.txt --commit checkpoint --listen 0.0.0.0:7433",
        ),
    ),
)
