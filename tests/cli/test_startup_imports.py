"""What a start-up may import: the help stays quick, and an analysis loads only what it needs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from support.answers import recorded, shared_cache
from support.pipeline_builder import pipeline_job, written
from support.places import SAMPLES
from support.probes import around, recording
from support.probes import written as written_probe

from kair_tui.cli.registry import COMMANDS

pytestmark = pytest.mark.slow

SAMPLE = SAMPLES / "slow_operator"
LATE = {
    "google",
    "msgspec",
    "networkx",
    "numpy",
    "platformdirs",
    "polars",
    "prompt_toolkit",
    "pyarrow",
    "pydantic",
    "pynvml",
    "rich",
    "scipy",
    "textual",
    "torch",
}
LIST_MODULES = (
    "import json, sys\n"
    "from kair_tui.cli.main import main\n"
    "status = max(map(main, json.loads(sys.argv[1])))\n"
    "loaded = sorted({*sys.modules, *(name.partition('.')[0] for name in sys.modules)})\n"
    "print(json.dumps([status, loaded]), file=sys.stderr)\n"
)


def loaded_by(*arguments: str, cache: Path | None = None) -> set[str]:
    """What is in `sys.modules`, and the top-level packages of that, after `kair <arguments>`."""
    return loaded_by_all([arguments], cache)


def loaded_by_all(
    commands: Iterable[Sequence[str]], cache: Path | None = None, installed: Path | None = None
) -> set[str]:
    """The same after several commands in one process; modules in `installed` can be imported, too."""
    environment = {**os.environ, **({"KAIR_CACHE": str(cache)} if cache else {})}
    if installed is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(installed))))
    run = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, json.dumps([*map(list, commands)])],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    status, loaded = json.loads(run.stderr.splitlines()[-1])
    assert status == 0, run.stderr
    return set(loaded)


def test_help_imports_nothing_heavy() -> None:
    assert loaded_by("--help") & LATE == set()


def test_a_word_is_explained_without_anything_heavy() -> None:
    assert loaded_by("help", "straggler") & LATE == set()


def test_help_imports_no_command() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kair_tui", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rsplit("|", 1)[1].strip() for line in run.stderr.splitlines() if "|" in line}
    assert not [name for name in imported if name.startswith("kair_tui.commands")]
    assert "kair_engine.results.triage" not in imported


def test_the_help_of_a_command_imports_nothing_heavy() -> None:
    """Evidence is a union of msgspec's records, which are made with the types of answers."""
    assert loaded_by_all([entry.name, "--help"] for entry in COMMANDS) & LATE <= {"msgspec"}


def test_spec_imports_no_engine() -> None:
    assert loaded_by("spec") & LATE <= {"msgspec"}


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample traces are not recorded yet")
@pytest.mark.parametrize(("command", "output", "also"), [("localize", "table", "rich"), ("triage", "json", "polars")])
def test_an_analysis_of_a_known_trace_imports_what_it_asks(command: str, output: str, also: str) -> None:
    """Whole tables are counted by Polars; a step is taken apart without it."""
    recorded(SAMPLE)
    allowed = {"msgspec", "numpy", "pyarrow", "platformdirs", also}
    loaded = loaded_by(command, str(SAMPLE), "-o", output, cache=shared_cache())
    assert loaded & LATE <= allowed
    assert "pyarrow.compute" not in loaded
    # No baseline is asked for.
    assert "kair_engine.results.compare" not in loaded


def test_probes_are_compared_with_numpy_alone(tmp_path: Path) -> None:
    probe = str(written_probe(tmp_path / "probe.json", recording(python_loop=around(4e7))))
    assert loaded_by("probe", "--compare", probe, probe, "--json") & LATE <= {"msgspec", "numpy"}


def test_only_the_formats_of_a_graph_import_networkx() -> None:
    recorded(SAMPLE)
    blame = ("blame", str(SAMPLE), "-o")
    assert "networkx" not in loaded_by_all([(*blame, output) for output in ("table", "tree", "json")], shared_cache())
    assert "networkx" in loaded_by_all([(*blame, "node-link")], shared_cache())


def test_what_is_read_needs_neither_pandas_nor_all_of_arrows_functions(tmp_path: Path) -> None:
    """Most who train have pandas, and Arrow loads it where it can."""
    recording = written(tmp_path, pipeline_job(dp=2, pp=2))
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "pandas.py").write_text("__version__ = '3.0.0'\n")
    asked = (("whatif", str(recording)), ("localize", str(SAMPLE)))
    loaded = loaded_by_all(asked, tmp_path / "cache", installed)
    assert "pyarrow" in loaded
    assert loaded & {"pandas", "pyarrow.compute"} == set()
