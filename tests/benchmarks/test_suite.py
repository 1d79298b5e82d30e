"""`make benchmark`: a commit that makes a figure worse shows, beside the runs before it."""

import json
from pathlib import Path

import pytest
import suite
from suite import Part

SCRIPT = """
import json, pathlib
took, speed = json.loads(pathlib.Path(__file__).with_name("figures.json").read_text())
rows = [{"who": "kair 0.1.0", "CPU s": took, "MB/s": speed}, {"who": "peer", "CPU s": 4.0, "MB/s": 50.0}]
print(json.dumps({"rows": rows}))
"""


class Bench:
    """A folder of results, and a script whose figures are chosen."""

    def __init__(self, folder: Path) -> None:
        """Write the script."""
        self.folder = folder
        (folder / "script.py").write_text(SCRIPT)
        peers, figures = {"kair": "peer"}, ("CPU s", "MB/s")
        self.parts = [
            Part("load", (str(folder / "script.py"),), ("who",), figures, peers),
            Part("load", ("none.py", "{hta_python}"), ("who",), figures, peers, needs=("hta_python",)),
        ]

    def run(self, took: float, speed: float, *more: str) -> int:
        """Return the exit status of a run that measures so much."""
        (self.folder / "figures.json").write_text(json.dumps([took, speed]))
        return suite.main(["--folder", str(self.folder), "--check", *more], self.parts)

    @property
    def page(self) -> str:
        """What the last run wrote."""
        return (self.folder / "RESULTS.md").read_text()

    @property
    def kept(self) -> list[float]:
        """The CPU seconds that are kept."""
        lines = (self.folder / "results.jsonl").read_text().splitlines()
        return [json.loads(line)["figures"]["load, kair | CPU s"] for line in lines]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Nothing was measured yet, on a machine of an even pace."""
    monkeypatch.setattr(suite, "yardstick", lambda: 1.0)
    return Bench(tmp_path)


@pytest.mark.slow
def test_a_figure_that_became_worse_is_named_and_fails_the_check(bench: Bench) -> None:
    assert [bench.run(took, 100.0) for took in (1.0, 1.1, 1.0)] == [0, 0, 0]
    assert "No figure is more than 15% worse" in bench.page
    assert bench.run(1.2, 101.0) == 1
    assert "- **load, kair, CPU s** is worse than before by a factor of 1.20" in bench.page
    assert bench.run(1.0, 80.0) == 1  # fewer megabytes a second are worse, too
    assert "- **load, kair, MB/s** is worse than before by a factor of 1.25" in bench.page


@pytest.mark.slow
def test_the_last_three_runs_are_kept_and_the_median_of_them_counts(bench: Bench) -> None:
    for took in (9.0, 1.0, 5.0, 1.0):
        bench.run(took, 100.0)
    assert bench.kept == [1.0, 5.0, 1.0]
    assert bench.run(1.1, 100.0) == 0  # 1.1 times the median, whatever the one long run took


def test_a_difference_that_is_chance_in_a_figure_near_zero_is_not_named() -> None:
    assert suite.worse({"a policy | CPU ms": 0.002}, [{"a policy | CPU ms": 0.001}]) == {}
    assert suite.worse({"a look | CPU ms": 40.0}, [{"a look | CPU ms": 30.0}]) != {}


def test_a_slower_machine_is_not_a_slower_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(1.0, 100.0)
    monkeypatch.setattr(suite, "yardstick", lambda: 1.5)
    assert bench.run(1.5, 66.7) == 0
    assert "| load, kair | CPU s | 1.5 | 1.5 | 1 |" in bench.page
    assert "at this run's pace: 1.5 s for" in bench.page
    assert bench.run(1.8, 66.7) == 1
    assert "- **load, kair, CPU s** is worse than before by a factor of 1.20" in bench.page


def test_times_of_a_run_whose_pace_is_not_known_are_not_compared() -> None:
    figures = {"load | CPU s": 2.0, "load | peak MB": 7.0}
    assert suite.at_pace({"figures": figures}, {"load": 1.0}) == {"load | peak MB": 7.0}


def test_a_peer_stands_beside_its_figure_and_what_needs_one_is_not_run(bench: Bench) -> None:
    bench.run(2.0, 100.0)
    assert "| load, kair | CPU s | 2 |  |  | peer 4 | 2 |" in bench.page
    assert "| load beside its peer | --hta-python |" in bench.page


def test_a_script_that_fails_is_told_and_leaves_what_was_written(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run(1.0, 100.0)
    before = bench.page
    (bench.folder / "script.py").write_text("raise SystemExit('no room')")
    assert bench.run(1.0, 100.0) == 1
    assert "load failed: " in capsys.readouterr().err
    assert bench.page == before
