"""Kair in a notebook: `%kair` and what objects look like, which no name in a trace can change."""

import gzip
import html
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.cli_samples import kair, store_variables
from support.places import SAMPLES

import kair as api
from kair.notebook import kair as magic

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def _evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, whose slow operator, and whose folder, are called by what a browser would run."""
    folder = tmp_path_factory.mktemp("evil") / "<script>alert(2)<"
    folder.mkdir()
    for path in (SAMPLES / "slow_operator").glob("*.gz"):
        content = gzip.decompress(path.read_bytes()).replace(b"kair_sample::mlp", SCRIPT.encode())
        (folder / path.name).write_bytes(gzip.compress(content, 1))
    return folder


def test_load_ext_gives_the_magic() -> None:
    class Shell:
        registered: tuple[object, ...] = ()

        def register_magic_function(self, *given: object) -> None:
            self.registered = given

    shell = Shell()
    api.load_ipython_extension(shell)
    assert shell.registered == (magic, "line", "kair")


@pytest.mark.slow
def test_an_analysis_is_a_value_which_the_notebook_shows() -> None:
    found: Any = magic(f"triage {SAMPLES / 'slow_operator'}")
    assert found.verdict == "straggler" and found._repr_html_().startswith("<iframe")
    assert found.to_json() == kair("triage", str(SAMPLES / "slow_operator"), "--json").out
    ranks: Any = magic(f"localize {SAMPLES / 'slow_operator'}")
    assert ranks.scores[0].rank == 2 and "rank 2 stands out" in ranks._repr_html_()
    assert type(magic(f"{SAMPLES / 'healthy'}")) is api.api.Triage  # a path alone is for triage, as in a shell


@pytest.mark.parametrize(
    ("line", "out", "err"),
    [
        ("triage nowhere/", "", "kair: error: nowhere: no such file or folder\n"),
        ("triage 'a", "", "kair: error: triage 'a: no closing quotation\n"),
        ("triagge", "", "kair: error: no such command 'triagge'\nhint: did you mean kair triage?\n"),
        ("--version", "kair ", ""),
        ("jobs", "no job in the store", ""),
        ("", "Usage: kair", ""),
    ],
)
def test_all_else_is_printed(line: str, out: str, err: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert magic(line) is None
    said = capsys.readouterr()
    assert said.out.startswith(out) and bool(said.out) is bool(out) and said.err == err


@pytest.mark.slow
def test_text_that_is_asked_for_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert magic(f"triage {SAMPLES / 'healthy'} --json") is None
    assert json.loads(capsys.readouterr().out)["data"]["verdict"] == "no_straggler"


@pytest.mark.slow
def test_names_in_traces_stay_text(_evil: Path) -> None:
    job = api.open(_evil, progress=False)
    shown = {
        "job": job._repr_html_(),
        "findings": job.findings._repr_html_(),
        "steps": job.steps._repr_html_(),
        "operations": job.operations.unique("name").collect()._repr_html_(),
        **{name: getattr(job, name)()._repr_html_() for name in ("triage", "localize", "blame", "whatif", "info")},
        "pinpoint": job.pinpoint(2)._repr_html_(),
        "compare": api.compare(SAMPLES / "healthy", _evil, progress=False)._repr_html_(),
    }
    for name, text in shown.items():
        assert "<script" not in text.lower(), name
    named = [name for name, text in shown.items() if "alert(1)" in text]
    assert {"findings", "localize", "blame", "pinpoint", "triage", "compare"} <= {*named}
    page = html.unescape(shown["triage"].partition('srcdoc="')[2])
    assert SCRIPT not in page and html.escape(SCRIPT) in page  # nor within the frame, which would run none


def _outputs(*cells: str) -> list[Any]:
    """What cells show that run in a kernel of their own."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(made, timeout=300, resources={"metadata": {"path": str(SAMPLES)}}).execute()
    return [cell.outputs for cell in made.cells]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter's own
@pytest.mark.skipif(find_spec("ipykernel") is None, reason="there is no kernel: pip install ipykernel nbclient")
def test_a_notebook() -> None:
    _, triaged, table, text = _outputs(
        # Without a bar, which any work shows that takes a second, as all does where cores are few.
        "%load_ext kair\nfrom kair_tui.cli import output\noutput._PATIENCE_S = float('inf')",
        "%kair triage slow_operator",
        "import kair\nkair.open('slow_operator').localize()",
        "print(kair.open('slow_operator').triage().text())",
    )
    assert [output["output_type"] for output in (*triaged, *table)] == ["execute_result", "execute_result"]
    assert triaged[0]["data"]["text/html"].startswith("<iframe")
    assert (
        "rank 2 stands out" in table[0]["data"]["text/html"] and "rank 2 stands out" in table[0]["data"]["text/plain"]
    )
    assert len(text) == 1 and text[0]["text"].startswith("straggler: rank 2")
