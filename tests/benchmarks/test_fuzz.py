"""A slice of the fuzzer: hostile recordings, what-if files, kept files and runbooks end in an answer or one line."""

import os
import random
from pathlib import Path

import pytest
from fuzz.formats import samples, tried
from fuzz.inputs import KINDS, Fuzz
from fuzz.judging import Case, Said, faults
from fuzz.seeds import SAMPLES
from fuzz.structures import structured

pytestmark = pytest.mark.live

CASES = 30


@pytest.mark.skipif(not (SAMPLES / "slow_operator").exists(), reason="the sample traces are not recorded yet")
def test_hostile_inputs_end_in_an_answer_or_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("KAIR_STORE", "KAIR_CACHE", "KAIR_JOB"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    fuzz, seen, wrong = Fuzz(tmp_path, 14), set(), {}
    for number in range(CASES):
        case, _, found = fuzz.run(number)
        seen.add(case.kind)
        if found:
            wrong[number] = (case.words, found)
    assert wrong == {}
    assert seen == set(KINDS)


def test_all_formats_are_damaged_from_within_and_readers_get_past_their_outside(tmp_path: Path) -> None:
    chance = random.Random(3)
    for name, sample in samples(tmp_path).items():
        source = tmp_path / "damaged" / sample.name
        source.parent.mkdir(exist_ok=True)
        found = set()
        for _ in range(30):
            changed = structured(sample.read_bytes(), chance)
            if changed is not None and changed != sample.read_bytes():
                found.add(tried(source, changed, tmp_path / "out.parquet"))
                if "answered" in found:
                    break
        assert "answered" in found and found <= {"answered", "refused"}, name


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Said(0, "fine\n", "kair: warning: a rank is missing\n", 1.0), []),
        (Said(3, "", "kair: error: no trace\nhint: name one\n", 1.0), []),
        (Said(1, "", "kair: error: KeyError: 3\nhint: this is a defect of Kair", 1.0), ["exit status 1"]),
        (Said(3, "", "kair: error: one\nkair: error: two\n", 1.0), ["2 lines of error"]),
        (Said(0, "a \x1b[31mred\x1b[0m name\n", "", 1.0), ["a control character in stdout"]),
        (Said(0, "step nan s\n", "", 1.0), ["no number"]),
        (Said(0, "", "", 11.0), ["took 11.0 s"]),
        (Said(0, "", "", 1.0, 1100.0), ["took 1100 MB"]),
    ],
)
def test_what_is_wrong_with_an_answer_is_seen(said: Said, told: list[str]) -> None:
    found = list(faults(Case("kineto", ("info", "job")), said))
    assert [text.startswith(start) for text, start in zip(found, told, strict=True)] == [True] * len(told)
