"""Naming a job: the store, paths, $KAIR_JOB, `kair use`, the most recent one."""

import json
import os
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair, store_variables
from support.places import SAMPLES

HEALTHY = SAMPLES / "healthy"

pytestmark = pytest.mark.skipif(not HEALTHY.exists(), reason="the sample traces are not recorded yet")


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


def _import(name: str) -> None:
    outcome = kair("import", str(HEALTHY), "--job", name)
    assert outcome.status == 0, outcome.err


def _job_of(*arguments: str) -> tuple[str, str]:
    """The job that `kair steps` took, and what it said of it."""
    outcome = kair("steps", *arguments, "--json")
    assert outcome.status == 0, outcome.err
    notes = [line for line in outcome.err.splitlines() if "using job" in line]
    return json.loads(outcome.out)["job"]["name"], "\n".join(notes)


def test_an_imported_job_is_listed_used_and_found() -> None:
    _import("first")
    _import("second")
    assert _job_of() == ("second", "kair: using job second (most recent)")
    assert kair("use", "first").status == 0
    assert _job_of() == ("first", "kair: using job first (kair use)")
    listed = json.loads(kair("jobs", "--json").out)
    assert_valid(listed, "jobs")
    assert listed["job"] is None
    assert listed["data"]["current"] == "first"
    assert [(job["name"], job["in_use"]) for job in listed["data"]["jobs"]] == [
        ("first", True),
        ("second", False),
    ]


@pytest.mark.slow
def test_jobs_are_listed_with_their_last_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _import("first")
    assert kair("triage", "first", "--step", "last").status == 0
    (before,) = json.loads(kair("jobs", "--json").out)["data"]["jobs"]
    assert (before["last_verdict"], before["last_summary"], before["triaged_at"]) == (None, None, None)
    summary = json.loads(kair("triage", "first", "--json").out)["data"]["summary"]
    (after,) = json.loads(kair("jobs", "--json").out)["data"]["jobs"]
    assert (after["last_verdict"], after["last_summary"]) == ("no_straggler", summary)
    assert summary[:20] in kair("jobs").out
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert summary[:20] in kair("jobs", terminal=True).out, "it is the last column to go"
    _import("second")
    next(tmp_path.rglob("verdict.json")).write_text('{"verdict": "guilty"')
    assert [job["last_verdict"] for job in json.loads(kair("jobs", "--json").out)["data"]["jobs"]] == [None, None]


def test_the_environment_outranks_use(monkeypatch: pytest.MonkeyPatch) -> None:
    _import("first")
    _import("second")
    kair("use", "first")
    monkeypatch.setenv("KAIR_JOB", "second")
    assert _job_of() == ("second", "kair: using job second ($KAIR_JOB)")


def test_a_named_job_needs_no_note() -> None:
    _import("first")
    assert _job_of("first") == ("first", "")


def test_the_store_option_outranks_the_environment(tmp_path: Path) -> None:
    kair("import", str(HEALTHY), "--job", "elsewhere", "--store", str(tmp_path / "other"))
    assert kair("jobs", "-o", "csv", "--fields", "name").out == "name\n"
    assert kair("jobs", "-o", "csv", "--fields", "name", "--store", str(tmp_path / "other")).out == "name\nelsewhere\n"


def test_a_name_that_is_a_job_and_a_folder_means_the_job_unless_written_as_a_path(tmp_path: Path) -> None:
    _import("twice")
    (tmp_path / "twice").mkdir()
    assert _job_of("twice")[0] == "twice"
    for path in ("./twice", str(tmp_path / "twice")):
        outcome = kair("steps", path)
        assert outcome.status == 3
        assert "no trace" in outcome.err


@pytest.mark.slow
def test_a_folder_of_the_working_directory_needs_no_dot(tmp_path: Path) -> None:
    (tmp_path / "traces").symlink_to(HEALTHY)
    assert _job_of("traces")[0] == "traces"


def test_a_job_folder_of_the_store_is_a_path_too(tmp_path: Path) -> None:
    _import("first")
    assert _job_of(str(tmp_path / "store" / "first"))[0] == "first"


@pytest.mark.parametrize("arguments", [("steps", "job124"), ("use", "job124")])
def test_an_unknown_job_is_told_the_nearest(arguments: tuple[str, ...]) -> None:
    _import("job123")
    outcome = kair(*arguments)
    assert outcome.status == 3
    assert outcome.err.startswith("kair: error: no job 'job124' in the store ")
    assert "hint: did you mean job123?" in outcome.err


def test_no_job_at_all_says_what_to_do() -> None:
    outcome = kair("triage")
    assert outcome.status == 3
    assert outcome.err.startswith("kair: error: no job was named, and the store ")
    assert "hint: kair triage FOLDER" in outcome.err


def test_an_empty_store_is_an_answer() -> None:
    outcome = kair("jobs")
    assert outcome.status == 0
    assert outcome.out.startswith("no job in the store ")


def test_a_store_of_jobs_that_cannot_be_read_is_not_called_empty() -> None:
    _import("first")
    (job,) = json.loads(kair("jobs", "--json").out)["data"]["jobs"]
    file = Path(job["path"]) / "job.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 1}))
    outcome = kair("jobs")
    assert outcome.status == 0
    assert outcome.out.startswith("no readable job in the store ")
    assert "(1 left out)" in outcome.out
    assert "an older kair" in outcome.err


def test_a_taken_name_is_refused_unless_replaced() -> None:
    taken = kair("import", str(HEALTHY), "--job", "first", "--json")
    assert_valid(json.loads(taken.out), "import")
    refused = kair("import", str(HEALTHY), "--job", "first")
    assert refused.status == 2
    assert "hint: --replace" in refused.err
    assert kair("import", str(HEALTHY), "--job", "first", "--replace").status == 0


def test_a_damaged_job_says_how_to_import_it_again() -> None:
    made = json.loads(kair("import", str(HEALTHY), "--job", "first", "--json").out)["data"]
    (Path(made["store"]) / "first" / "job.json").write_text('{"schema": "kair.job", "version": 3}')
    refused = kair("triage", "first")
    assert refused.status == 3
    assert "hint: import the job again with --replace" in refused.err


def test_an_import_that_does_not_fit_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kair_engine.store.jobs.shutil.copyfileobj", no_space)
    refused = kair("import", str(HEALTHY), "--job", "first")
    assert refused.status == 3
    assert "hint: free some space there, or choose another place with --store" in refused.err


def test_a_missing_source_is_an_input_error(tmp_path: Path) -> None:
    outcome = kair("import", str(tmp_path / "nowhere"), "--job", "first")
    assert outcome.status == 3
    assert "nowhere" in outcome.err


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    outcome = kair("import", str(HEALTHY), "--job", "first")
    assert outcome.status == 3
    assert str(tmp_path / "store") in outcome.err
    assert len(outcome.err.splitlines()) <= 2


def test_a_hostile_file_name_in_an_error_is_harmless() -> None:
    name = "no\x1b[2Jsuch\u202e"
    outcome = kair("triage", name)
    assert outcome.status == 3
    assert "\x1b" not in outcome.err
    assert "\u202e" not in outcome.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_trace_is_an_input_error(tmp_path: Path) -> None:
    secret = tmp_path / "rank0.json"
    secret.write_text("{}")
    secret.chmod(0)
    assert kair("triage", str(secret)).status == 3


def test_jobs_are_removed_by_name() -> None:
    for name in ("first", "second"):
        _import(name)
    assert kair("jobs", "rm").status == 2
    refused = kair("jobs", "rm", "first", "secnd")
    assert (refused.status, "did you mean second?" in refused.err) == (3, True)
    assert kair("jobs", "rm", "second").out.startswith("second is no longer in the store\n")
    listed = json.loads(kair("jobs", "rm", "first", "--json").out)
    assert_valid(listed, "jobs")
    assert (listed["data"]["removed"], listed["data"]["jobs"]) == (["first"], [])


@pytest.mark.slow
def test_the_cache_tells_its_size_and_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KAIR_CACHE_LIMIT", "5M")
    assert kair("cache").out.startswith("0 parsed files, 0 bytes of at most 5 MB; the cache is ")
    assert _job_of(str(HEALTHY))[0] == "healthy"
    told = json.loads(kair("cache", "--json").out)
    assert_valid(told, "cache")
    held = told["data"]["bytes"]
    assert (told["data"]["entries"], told["data"]["limit_bytes"], held > 10_000) == (4, 5_000_000, True)
    cleared = json.loads(kair("cache", "clear", "--json").out)["data"]
    assert (cleared["entries"], cleared["removed_entries"], cleared["removed_bytes"]) == (0, 4, held)
    monkeypatch.setenv("KAIR_CACHE_LIMIT", "plenty")
    refused = kair("steps", str(HEALTHY))
    assert (refused.status, "hint: write it as 20G or 500M" in refused.err) == (2, True)


@pytest.mark.slow
def test_a_trace_that_is_cleared_while_it_is_read_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAIR_CACHE", str(tmp_path / "cache"))

    def cleared(*_: object) -> None:
        kair("cache", "clear")

    monkeypatch.setattr("kair_engine.localize.analysis.require_steps", cleared)
    outcome = kair("localize", str(HEALTHY))
    assert outcome.status == 3
    assert "was removed while it was read" in outcome.err
    assert "hint: ask again" in outcome.err


@pytest.mark.slow
def test_a_folder_whose_name_is_not_utf_8_is_answered(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    Path(folder).symlink_to(HEALTHY)
    document = json.loads(kair("steps", folder, "--json").out)
    assert document["job"]["name"] == "caf\\xe9"
    assert kair("import", folder, "--job", "first").status == 0
    outcome = kair("import", folder, "--job", "first", "--store", os.fsdecode(os.fsencode(tmp_path) + b"/s\xe9"))
    assert outcome.status == 2
    assert "not UTF-8" in outcome.err
    assert kair("baseline", "save", "healthy", folder).status == 0
    exported = kair("export", folder, "--plain", "-o", os.fsdecode(os.fsencode(tmp_path) + b"/t\xe9.csv"))
    assert (exported.status, "t\\udce9.csv: " in exported.out) == (0, True)
