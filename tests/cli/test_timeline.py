"""`kair timeline` as a picture: SVG that stands by itself, what a line can ask for wrongly, and a step with fixes."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from support.cli_samples import HOSTILE, kair, printed, timeline
from support.pipeline_builder import costs, pipeline_job, written
from support.places import SAMPLES
from support.run_ahead import AheadJob, write_ahead_job

from kair_engine.results.timeline import FixedTimeline
from kair_engine.trace import large_steps
from kair_tui.render.timeline import svg
from kair_tui.render.timeline_drawing import IN_ASCII, IN_COLOURS, draw_rows, marks_in_words, saved_mark, solid

pytestmark = pytest.mark.usefixtures("own_places")

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_bar_with_its_times_for_every_stretch() -> None:
    root = Xml.fromstring(svg(timeline()))
    titles = [bar.findtext(f"{SVG}title") for bar in root.iter(f"{SVG}rect")]
    assert "0: waiting 30.0 µs to 70.0 µs" in titles
    assert "1 of 1-3: compute 10.0 µs to 70.0 µs" in titles
    line = root.find(f"{SVG}polyline")
    assert line is not None
    # From who waited, to the right until the last one came, down to that one and back to its delay.
    places = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert places[0][0] < places[1][0] == places[2][0] > places[3][0]
    assert places[1][1] < places[2][1]


def test_names_cannot_break_the_picture() -> None:
    text = svg(timeline(HOSTILE))
    assert Xml.fromstring(text).tag == f"{SVG}svg"
    assert "\x1b" not in text


def test_o_svg_writes_it() -> None:
    written = kair("timeline", str(SAMPLES / "slow_operator"), "--rows", "2", "-o", "svg", "--ascii")
    assert Xml.fromstring(written.out).tag == f"{SVG}svg"
    assert written.out.isascii()


def test_two_ranks_share_a_line_as_halves_of_its_cells() -> None:
    lines = draw_rows(replace(timeline(), path=()), 10, IN_COLOURS, two_a_line=True)
    assert [line.rows for line in lines] == [(0, 1), (2,)]
    # Rank 0 waits in the upper half while rank 1 computes in the lower.
    assert "▀▀▀" in [run.text for run in lines[0].runs if (run.front, run.back) == ("waiting", "compute")]
    alone = draw_rows(timeline(), 10, IN_ASCII, two_a_line=True)
    assert [line.rows for line in alone] == [(0,), (1,), (2,)]
    assert all(run.text.isascii() for line in alone for run in line.runs)


def test_waiting_of_two_ranks_in_a_line_is_as_solid_as_that_of_one_of_them() -> None:
    result = timeline()
    both = replace(result, path=(), rows=(result.rows[0], result.rows[0]))
    (line,) = draw_rows(both, 10, solid(IN_COLOURS), two_a_line=True)
    waiting = [run.text for run in line.runs if (run.front, run.back) == ("waiting", "nothing")]
    assert waiting
    assert set("".join(waiting)) == {"█"}


# A step with fixes.

SLOW = str(SAMPLES / "slow_operator")


def without_fixes(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "fixed"}


@pytest.mark.slow
@pytest.mark.parametrize("fixes", [("rank=2+kind=compute",), ("rank=2+kind=compute", "kind=input")])
def test_a_step_with_fixes_takes_what_whatif_prices_and_is_recorded_as_it_was(fixes: tuple[str, ...]) -> None:
    asked = " ".join(f"--fix {fix}" for fix in fixes)
    answer = printed(f"kair timeline {SLOW} --step 15 {asked}")
    priced = printed(f"kair whatif {SLOW} --step 15 --only-fixes {asked}")
    fixed = answer["fixed"]
    assert fixed["fixes"] == list(fixes)
    assert fixed["recorded_step_time_us"] == pytest.approx(priced["step_time_us"])
    assert fixed["step_time_us"] == pytest.approx(priced["fixes"][-1]["step_time_us"])
    assert fixed["saved_us"] == pytest.approx(priced["fixes"][-1]["saved_us"])
    # Every rank ends as much earlier as the step is shorter: they leave the last collective together.
    assert answer["step_us"] - fixed["step_us"] == pytest.approx(fixed["saved_us"], rel=0.01)
    assert without_fixes(answer) == without_fixes(printed(f"kair timeline {SLOW} --step 15 --whole"))
    waited = sum(one["waited_us"] for one in fixed["collectives"])
    assert waited < 0.5 * sum(one["waited_us"] for one in answer["collectives"])
    assert [row["rank"] for row in fixed["rows"]] == [row["rank"] for row in answer["rows"]]


def test_a_fix_that_changes_nothing_leaves_every_window_as_it_was() -> None:
    answer = printed(f"kair timeline {SLOW} --step 15 --unfold 2 --windows 100 --scale rank=2+kind=compute:1")
    fixed = answer["fixed"]
    assert fixed["saved_us"] == 0
    assert len(fixed["rows"]) > 4
    for before, after in zip(answer["rows"], fixed["rows"], strict=True):
        assert before["lane"] == after["lane"]
        same = sum(one == other for one, other in zip(before["windows"], after["windows"], strict=True))
        assert same >= 95, (before["windows"], after["windows"])


def test_what_makes_the_step_longer_is_in_view_until_it_is_over() -> None:
    answer = printed(f"kair timeline {SLOW} --step 15 --scale rank=2+kind=compute:2")
    fixed = answer["fixed"]
    assert fixed["saved_us"] < 0
    assert answer["end_us"] == pytest.approx(fixed["step_us"])
    assert fixed["step_us"] > answer["step_us"]
    some = printed(f"kair timeline {SLOW} --step 15 --scale rank=2+kind=compute:2 --from 1000 --to 2000")
    assert (some["begin_us"], some["end_us"]) == (1000, 2000)


def test_a_pipeline_is_drawn_as_its_own_model_replays_it(tmp_path: Path) -> None:
    def slow(operation: str, step: int, dp: int, stage: int, microbatch: int) -> float:
        late = 3.0 if (dp, stage) == (1, 1) and operation in {"F", "B"} else 1.0
        return costs(operation, step, dp, stage, microbatch) * late

    job = written(tmp_path, pipeline_job(dp=3, pp=2, cost=slow))
    answer = printed(f"kair timeline {job} --fix kind=compute")
    fixed = answer["fixed"]
    priced = printed(f"kair whatif {job} --only-fixes --fix kind=compute")
    assert fixed["step_time_us"] == pytest.approx(priced["fixes"][-1]["step_time_us"])
    assert fixed["step_us"] == pytest.approx(fixed["step_time_us"])
    assert fixed["saved_us"] > 0


def test_a_fix_that_fits_nothing_reaches_no_terminal_as_it_is() -> None:
    outcome = kair("timeline", SLOW, "--scale", f"op={HOSTILE}")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("kair: error") and "\x1b" not in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [AheadJob(slow={1: 2.0}), AheadJob(kernels=(5.0,) * 60, queue=None, slow={1: 2.0}), AheadJob(fetch={1: 900.0})],
    ids=["few kernels", "more kernels than are replayed one by one", "a host that is not ahead"],
)
def test_where_hosts_run_ahead_a_step_is_drawn_as_it_comes_again_and_again(job: AheadJob, tmp_path: Path) -> None:
    of = write_ahead_job(tmp_path, job)
    answer = printed(f"kair timeline {of} --step 10 --unfold 1 --fix rank=1")
    priced = printed(f"kair whatif {of} --step 10 --only-fixes --fix rank=1")
    fixed = answer["fixed"]
    assert fixed["saved_us"] > 100
    assert fixed["step_time_us"] == pytest.approx(priced["fixes"][-1]["step_time_us"])
    # Ranks begin and end with one another: the drawn step is as long, and its device rows are full to its end.
    assert fixed["step_us"] == pytest.approx(fixed["step_time_us"], rel=0.05)
    ends = [len(row["windows"].rstrip(".")) * answer["window_us"] for row in fixed["rows"] if row["lane"] is None]
    assert ends == pytest.approx([fixed["step_us"]] * 4, rel=0.05)


@pytest.mark.slow
def test_a_step_that_is_not_held_whole_is_not_drawn_with_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_steps, "LARGE", 1)
    monkeypatch.setattr(large_steps, "FEWEST", 2)
    monkeypatch.setattr(large_steps, "CLOSE_UP", 1)
    monkeypatch.setattr(large_steps, "AT_A_TIME", 1)
    outcome = kair("timeline", str(SAMPLES / "slow_host"), "--fix", "rank=2")
    assert (outcome.status, outcome.out) == (3, "")
    assert "is too large to be drawn with fixes" in outcome.err


def fixed_timeline(name: str) -> FixedTimeline:
    drawn = timeline(name)
    rows = tuple(replace(row, windows="rccwtthh..", arrivals="...l......") for row in drawn.rows)
    return FixedTimeline((f"op={name}",), 100.0, 70.0, 30.0, 70.0, drawn.around.operation, rows, (), 0, ())


def test_a_picture_with_fixes_has_both_one_over_the_other_and_no_name_breaks_it() -> None:
    drawn = replace(timeline(HOSTILE), step_us=100.0, fixed=fixed_timeline(HOSTILE))
    text = svg(drawn)
    assert "\x1b" not in text
    root = Xml.fromstring(text)
    said = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]
    assert "as recorded: step 100 µs" in said
    assert any(one.startswith("with op=") and one.endswith("step 70.0 µs, -30.0 µs") for one in said)
    assert "30.0 µs saved" in said
    bars = [bar for bar in root.iter(f"{SVG}rect") if (bar.findtext(f"{SVG}title") or "").startswith("0: ")]
    assert len({bar.attrib["y"] for bar in bars}) == 2
    bottom = max(float(bar.attrib["y"]) + float(bar.attrib["height"]) for bar in bars)
    assert bottom < float(root.attrib["viewBox"].split()[3])


def test_what_is_saved_lies_between_the_ends_of_the_step() -> None:
    drawn = replace(timeline(), step_us=100.0, fixed=fixed_timeline("aten::add"))
    mark = saved_mark(drawn, 100)
    assert (mark.index("|"), mark.rindex("|")) == (70, 99)
    assert "30.0 µs saved" in mark
    # Where there is no room between the ends it stands before them.
    assert saved_mark(drawn, 20).startswith("30.0 µs saved |")
    assert saved_mark(replace(drawn, end_us=90.0), 100) == ""
    printed_lines = kair("timeline", SLOW, "--step", "15", "--fix", "rank=2+kind=compute", "--ascii").out.splitlines()
    assert any(line.startswith("with rank=2+kind=compute: step ") for line in printed_lines)
    assert sum(line.startswith("2 ") for line in printed_lines) == 2


@pytest.mark.parametrize(("options", "delay"), [((), "●"), (("--ascii",), "@")])
def test_the_blame_path_is_explained_as_it_is_drawn(options: tuple[str, ...], delay: str) -> None:
    lines = kair("timeline", SLOW, "--around", "2", *options).out.splitlines()
    (told,) = [line for line in lines if f"blame path: from the delay {delay} to waiting ranks" in line]
    looks = told.partition(" blame path")[0].split()[-1]
    (slow,) = [line for line in lines if line.startswith("2 ")]
    assert looks in slow and delay in slow


def test_in_colours_the_path_is_a_line_and_without_one_none_is_explained() -> None:
    assert marks_in_words(timeline(), IN_COLOURS)[-1].startswith("━━━━ blame path: ")
    assert marks_in_words(replace(timeline(), path=()), IN_ASCII)[-1] == "@ the delay"
