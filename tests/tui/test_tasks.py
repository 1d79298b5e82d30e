"""The seven tasks of docs/tui.md, done with the keystrokes that stand there, in the real program in tmux."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.places import ROOT, SAMPLES
from support.terminals import PROGRAM, Tmux, terminal_environment

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
JOB = "sample_traces/slow_operator"
MOST_KEYSTROKES = 9
FIRST_SCREEN = "rank 2 · node0 · score 45.188 ▲ slow"

_KEY, _SEEN = "key", "seen"
_HOW = re.compile(r"<kbd>(?P<key>[^<]+)</kbd>|`(?P<seen>[^`]+)`")
_NAMES = {"enter": "Enter", "space": "Space", "esc": "Escape", "tab": "Tab", "down": "Down"}
"""Keys as tmux calls them."""


@dataclass(frozen=True)
class Task:
    """A row of the table: what is wanted, and how it is done."""

    title: str
    keystrokes: int
    how: tuple[tuple[str, str], ...]
    """Keys, and texts that are on the screen before the next key is pressed."""

    @property
    def keys(self) -> list[str]:
        """The keys alone."""
        return [text for kind, text in self.how if kind == _KEY]


def _tasks() -> tuple[Task, ...]:
    """The table below `## Seven tasks`."""
    section = (DOCS / "tui.md").read_text(encoding="utf-8").split("\n## Seven tasks\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return tuple(
        Task(title, int(count), tuple((str(one.lastgroup), one[str(one.lastgroup)]) for one in _HOW.finditer(how)))
        for title, count, how in rows[2:]
    )


TASKS = _tasks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program is started, as in a checkout."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "sample_traces").symlink_to(SAMPLES)
    return folder


@pytest.fixture(scope="module")
def tmux(folder: Path) -> Iterator[Tmux]:
    """The program on its first screen."""
    command = f"cd {shlex.quote(str(folder))} && {shlex.join([*PROGRAM, JOB])}"
    with Tmux(folder, command, terminal_environment(folder)) as tmux:
        tmux.wait_for(FIRST_SCREEN)
        yield tmux


def test_there_are_seven() -> None:
    assert len(TASKS) == 7


@pytest.mark.parametrize("task", TASKS, ids=[task.title for task in TASKS])
def test_no_task_takes_ten_keystrokes(task: Task) -> None:
    assert len(task.keys) == task.keystrokes <= MOST_KEYSTROKES


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("task", TASKS, ids=[task.title for task in TASKS])
def test_the_task_is_done_as_documented(task: Task, tmux: Tmux) -> None:
    # Back to the first screen as the program showed it.
    tmux.press("1")
    tmux.wait_for(f"overview {' ' * 10}")
    tmux.wait_for(FIRST_SCREEN)
    for kind, text in task.how:
        if kind == _KEY:
            tmux.press(_NAMES.get(text, text))
        else:
            tmux.wait_for(text)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_exported_evidence_names_the_culprit(tmux: Tmux, folder: Path) -> None:
    saved = re.search(r"saved (\S+\.json)", tmux.wait_for("saved "))
    assert saved is not None
    answer = json.loads((folder / saved[1]).read_text(encoding="utf-8"))
    assert answer["data"]["findings"][0]["ranks"] == [2]
    tmux.press("q")
    tmux.wait_for("ended with 0")


def test_every_picture_in_the_documents_is_there_and_no_other() -> None:
    texts = [(DOCS / "tui.md").read_text(encoding="utf-8"), (DOCS.parent / "README.md").read_text(encoding="utf-8")]
    shown = {Path(name).name for text in texts for name in re.findall(r"\(((?:docs/)?screens/[^)]+)\)", text)}
    pictures = list((DOCS / "screens").iterdir())
    assert shown == {file.name for file in pictures}
    assert all(file.stat().st_size < 120_000 for file in pictures)
    assert not any("too&#160;small" in file.read_text(encoding="utf-8") for file in pictures)
