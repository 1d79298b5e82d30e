"""What people type first works: a path alone, a shell's pattern of files, `--rank` anywhere, `-o md`."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from support.cli_samples import kair
from support.places import SAMPLES
from support.tensor_parallel import write_tensor_parallel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight ranks in one folder; the third is slow."""
    folder = tmp_path_factory.mktemp("traces") / "job"
    return write_tensor_parallel(folder, collective="ncclDevKernel_AllReduce", slow={2: 1.3})


def files(traces: Path) -> list[str]:
    return sorted(map(str, traces.glob("*.json")))


def data_of(*arguments: str) -> dict[str, object]:
    outcome = kair(*arguments, "--json")
    assert outcome.status == 0, outcome.err
    return {name: json.loads(outcome.out)[name] for name in ("schema", "data")}


def test_a_path_alone_is_its_triage(traces: Path) -> None:
    assert kair(str(traces)).out == kair("triage", str(traces)).out != ""
    assert data_of(str(traces), "--step", "last") == data_of("triage", str(traces), "--step", "last")


def test_so_is_the_name_of_a_stored_job_and_a_command_goes_before_a_folder_of_its_name(
    traces: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert kair("import", str(traces), "--job", "job123").status == 0
    assert data_of("job123")["schema"] == "kair.triage"
    (tmp_path / "info").mkdir()
    monkeypatch.chdir(tmp_path)
    assert data_of("info", "job123")["schema"] == "kair.info"


@pytest.mark.parametrize("command", ["triage", "localize", "blame", "steps", "operators"])
def test_files_of_a_pattern_are_one_job(traces: Path, command: str) -> None:
    assert data_of(command, *files(traces)) == data_of(command, str(traces))


def test_several_files_have_the_name_of_the_folder_that_all_are_in(traces: Path) -> None:
    document = json.loads(kair(*files(traces), "--json").out)
    assert (document["job"]["name"], document["job"]["ranks"]) == ("job", [*range(8)])
    two = json.loads(kair("info", *files(traces)[5:], "--json").out)
    assert two["job"]["ranks"] == [5, 6, 7]


def test_the_commands_of_a_report_name_all_files(traces: Path) -> None:
    text = kair("triage", *files(traces), "-o", "md").out
    (command,) = set(re.findall("`(kair localize [^`]*)`", text))
    assert shlex.split(command)[2:] == files(traces)
    assert kair(*shlex.split(command)[1:]).status == 0


def test_a_shell_takes_files_too(traces: Path) -> None:
    said = kair("shell", *files(traces), "-c", "info").out
    assert said.startswith("8 ranks")
    assert kair("shell", "-c", f"info {shlex.join(files(traces))}").out == said


RANKS = {
    "triage": lambda data: [row["rank"] for row in data["ranking"][:1]],
    "localize": lambda data: [row["rank"] for row in data["scores"][:1]],
    "steps": lambda data: sorted({row["rank"] for row in data["steps"]}),
    "frequency": lambda data: [row["rank"] for row in data["counts"]],
    "info": lambda data: [row["rank"] for row in data["by_rank"]],
    "timeline": lambda data: [data["around"]["operation"]["rank"]],
}


@pytest.mark.parametrize("command", RANKS)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_can_be_asked_about(traces: Path, command: str, rank: int) -> None:
    assert RANKS[command](data_of(command, str(traces), "--rank", str(rank))["data"]) == [rank]  # type: ignore[no-untyped-call]
    assert kair(command, str(traces), "-r", "9").status == 2


def test_triage_of_a_rank_tells_what_is_found_about_it_and_the_jobs_verdict() -> None:
    sample = str(SAMPLES / "slow_operator")
    accused, other = kair("triage", sample, "--rank", "2").out, kair("triage", sample, "--rank", "0").out
    assert accused.splitlines()[0] == other.splitlines()[0] == "straggler: rank 2 (compute, 22.3 of the 95.0 ms step)"
    assert "1. rank 2 on node0" in accused
    assert "1. rank 2 on node0" not in other


def test_a_rank_is_priced_by_its_number(traces: Path) -> None:
    assert data_of("whatif", str(traces), "--rank", "2") == data_of("whatif", str(traces), "--fix", "rank=2")


def test_markdown_of_a_triage_is_its_report(traces: Path, tmp_path: Path) -> None:
    text = kair("triage", str(traces), "-o", "md").out
    assert kair("triage", str(traces), "--report", str(tmp_path / "a.md")).status == 0

    def written(report: str) -> list[str]:
        """Without when it was made, and the pictures that lie beside a file."""
        return [line for line in report.splitlines() if line and not line.startswith(("![", "*Made by"))]

    assert written(text) == written((tmp_path / "a.md").read_text())
    assert kair("shell", str(traces), "-c", "triage -o md").out.startswith("# ")


def test_markdown_of_other_answers_is_their_main_table(traces: Path) -> None:
    headline, _, titles, rule, *rows = kair("localize", str(traces), "-o", "md").out.splitlines()
    assert headline.startswith("**")
    assert titles.startswith("| rank | ")
    assert set(rule) <= set("| -:")
    assert len(rows) == 8
    few = kair("localize", str(traces), "-o", "md", "--fields", "rank,score").out.splitlines()
    assert few[2] == "| rank | score |"


def test_markdown_of_what_has_no_table_is_the_page_as_it_is(traces: Path) -> None:
    text = kair("info", str(traces), "-o", "md").out
    assert text == f"```text\n{kair('info', str(traces)).out.rstrip()}\n```\n"


def test_the_step_time_is_in_the_first_lines_of_every_triage(traces: Path) -> None:
    for job in (str(traces), files(traces)[0], str(SAMPLES / "healthy"), str(SAMPLES / "busy_host")):
        said = kair(job).out
        step = re.search(r"\nstep ([\d.]+ .s), (?:mean )?of ", said)
        assert step is not None
        assert step[1] in said.splitlines()[0]


def test_no_table_has_one_heading_twice() -> None:
    for command in ("rank --rank 2", "steps", "operators", "localize", "blame", "whatif", "collectives", "timeline"):
        name, *options = command.split()
        lines = kair(name, str(SAMPLES / "slow_operator"), *options).out.splitlines()
        for titles, rule in pairwise(lines):
            if rule and set(rule) <= {"─", " "}:
                edges = [(run.start(), run.end()) for run in re.finditer("─+", rule)]
                named = [titles[begin:end].strip() for begin, end in edges if titles[begin:end].strip()]
                assert len(named) == len(set(named)), titles
