"""Nothing that answers writes: only acts do, and what an answer hands to `keep`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.places import SAMPLES

import kair.app
from kair.app.acts.jobs import import_job, price_jobs
from kair.app.places import cache_root
from kair.app.question import ABOUT_STORE, ANSWERED_BY, Question
from kair.app.stores import OpenStore
from kair_engine.errors import KairError

APP = Path(kair.app.__file__).parent
ANSWERING = [
    *sorted((APP / "answers").glob("*.py")),
    *(APP / f"{name}.py" for name in ("investigate", "explaining", "ledger", "evidence", "identities", "step_history")),
]
WRITERS = {
    *("atomic_write", "named_file", "write_whole", "whole_file", "make_folder", "create_file", "append_kept"),
    "begin_file",
    *("keep_triage", "keep_verdict", "keep_cost", "change_ledger", "add_to_job", "keep_in_job", "import_traces"),
    *("write_text", "write_bytes", "write_timelines", "mkdir", "unlink", "rmdir", "touch", "rename"),
}
HANDED_OUT = {("investigate", "_write"), ("ledger", "put_down"), ("ledger", "write")}
"""(module, function) of what an answer hands to `keep`."""


def writing(node: ast.AST, within: str = "") -> Iterator[tuple[str, str]]:
    """(function, what it names) of all that writes."""
    for child in ast.iter_child_nodes(node):
        name = child.id if isinstance(child, ast.Name) else child.attr if isinstance(child, ast.Attribute) else ""
        if name in WRITERS:
            yield within, name
        yield from writing(child, child.name if isinstance(child, ast.FunctionDef) else within)


@pytest.mark.parametrize("module", ANSWERING, ids=lambda path: path.stem)
def test_what_answers_names_nothing_that_writes(module: Path) -> None:
    found = [one for one in writing(ast.parse(module.read_text())) if (module.stem, one[0]) not in HANDED_OUT]
    assert found == []


def state(*folders: Path) -> dict[Path, tuple[int, bytes]]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.slow
def test_asking_leaves_store_and_cache_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_CACHE", str(tmp_path / "cache"))
    store = OpenStore(tmp_path / "store")
    import_job(store, [SAMPLES / "slow_operator"], "job123")
    session, before = store.open("job123"), state(store.root, cache_root())
    rank, compare = {"rank": 2}, {"base": "job123", "new": "job123"}
    needed: dict[str, dict[str, object]] = {"pinpoint": {**rank}, "rank": {**rank}, "compare": {**compare}}
    needed |= {"query": {"sql": "SELECT rank FROM findings"}, "sensitivity": {"draws": 20, "fault": "slow_input"}}
    needed |= {"mitigate": {"policy": ["deterministic"], "fixed_share": 0.0}}
    for command in ANSWERED_BY:
        question = Question.of(command, **needed.get(command, {}))
        try:
            assert (store if command in ABOUT_STORE else session).ask(question).result is not None
        except KairError:
            assert command in ("forecast", "confirm")  # of so few steps; of a running job
    assert state(store.root, cache_root()) == before


@pytest.mark.slow
def test_pricing_keeps_each_cost_unless_nothing_is_to_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_CACHE", str(tmp_path / "cache"))
    store = OpenStore(tmp_path / "store")
    import_job(store, [SAMPLES / "slow_operator"], "job123")
    before = state(store.root)
    monkeypatch.setenv("KAIR_READ_ONLY", "1")
    priced = price_jobs(store)
    assert state(store.root) == before
    monkeypatch.delenv("KAIR_READ_ONLY")
    assert price_jobs(store) == priced
    assert price_jobs(store).costs == {}
    assert store.ask(Question.of("fleet")).result == store.ask(Question.of("fleet", priced=priced)).result
