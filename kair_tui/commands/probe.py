"""`kair probe`: measures this machine, or compares a suspect's probe with its peers'."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from kair.app.question import Watcher
from kair_engine.errors import UsageError
from kair_engine.results.probe import ProbeResult
from kair_tui.cli.options import Argument, Option
from kair_tui.render.probe import probe_in_words

RENDERER = "kair_tui.render.probe"


def run(
    report: Watcher,
    *,
    files: Annotated[Sequence[Path], Argument("With --compare: the suspect's probe, then those of its peers.")] = (),
    compare: Annotated[bool, Option("--compare", "Compare probes instead of measuring.")] = False,
    out: Annotated[
        str | None,
        Option("--out", "Write the probe to a file too; {rank} and {host} in its name are filled in.", metavar="FILE"),
    ] = None,
    seconds: Annotated[float, Option("--seconds", "How long to measure.", metavar="S")] = 5.0,
    device: Annotated[str, Option("--device", "What to measure: auto, cpu, cuda or cuda:N.", metavar="D")] = "auto",
    rank: Annotated[
        int | None,
        Option(
            "-r, --rank", "The rank of the job that runs here. Default: what the launcher says.", metavar="R", minimum=0
        ),
    ] = None,
) -> ProbeResult:
    """Measure, or compare. Raises UsageError if the options request both, or neither."""
    if compare:
        return _compared(files, out)
    if files:
        raise UsageError("files are for --compare", "kair probe --compare SUSPECT.json PEER.json")
    from kair.app.answers.probe import measured, processes_of_launch

    _require_own_file(out, processes_of_launch())
    result = probe_in_words(measured(seconds, device, rank, report))
    if out is not None:
        _write(result, out)
    return result


def _compared(files: Sequence[Path], out: str | None) -> ProbeResult:
    if len(files) < 2:
        raise UsageError(
            "--compare needs the probe of the suspect, and of a peer at least",
            "kair probe --compare SUSPECT.json PEER.json",
        )
    if out is not None:
        raise UsageError("--out is for measuring", "--json prints a comparison for machines")
    from kair.app.answers.probe import compared

    return probe_in_words(compared(files[0], files[1:]))


def _require_own_file(out: str | None, world_size: int) -> None:
    if out is not None and world_size > 1 and "{rank}" not in out:
        raise UsageError(f"{world_size} ranks would write {out}", "put {rank} into its name: --out probe-{rank}.json")


def _write(result: ProbeResult, out: str) -> None:
    """Write the document that `--json` prints. Raises UsageError or UnwritableError if that is impossible."""
    from kair_engine.trace.files import named_file
    from kair_tui.render.answer import Document
    from kair_tui.render.document import data_of, document
    from kair_tui.render.warnings import warnings_in_words

    machine = result.machine
    rank = "" if machine.rank is None else str(machine.rank)
    path = Path(out.replace("{rank}", rank).replace("{host}", machine.host.replace("/", "_")))
    answer = Document("probe", result, None, warnings_in_words(result.warnings))
    with named_file(path) as file:
        file.write(document(answer, data_of(answer)).encode())
