"""`kair help`: the words of the answers, each with the page that explains it, and the pages themselves."""

import re

import pytest
from support.cli_samples import kair
from support.places import ROOT

from kair_tui.commands.help import WORDS, entry_of

PAGE = ROOT / "docs" / "glossary.md"


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_word_is_explained_with_the_page_that_says_more() -> None:
    said = kair("help", "straggler")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("straggler\n")
    assert "slower than its peers beyond chance" in one_line(said.out)
    assert "More: kair help methods#verdict\n" in said.out


@pytest.mark.parametrize("typed", ["launch queue", "Launch-Queue", "launch_queue", "launch queues"])
def test_a_word_is_found_however_it_is_written(typed: str) -> None:
    assert kair("help", typed).out == kair("help", "launch", "queue").out
    assert kair("help", typed).out.startswith("launch queue\n")


@pytest.mark.parametrize(("typed", "name"), [("S", "slowdown S"), ("steady", "persistent"), ("victims", "culprit")])
def test_other_names_lead_to_the_same_entry(typed: str, name: str) -> None:
    assert kair("help", typed).out.startswith(f"{name} (also: ")


def test_a_word_that_is_a_command_too_says_so() -> None:
    assert kair("help", "rank").out.endswith("The command of that name: kair rank --help\n")


def test_a_command_is_explained_as_its_own_help_does() -> None:
    assert kair("help", "triage").out == kair("triage", "--help").out
    assert kair("help").out == kair("--help").out


def test_words_lists_all_of_them_by_name() -> None:
    out = kair("help", "words").out
    titles = [re.sub(r" \(also: .*\)$", "", line) for line in out.splitlines() if line and not line.startswith(" ")]
    assert titles == [*(word.name for word in WORDS), "kair help WORD shows one of them."]
    assert titles[:-1] == sorted(titles[:-1], key=str.casefold)
    assert out.isascii()


def test_each_entry_is_short_and_found_by_all_its_names() -> None:
    for word in WORDS:
        assert len(re.findall(r"\.(?: |$)", word.text)) in (1, 2), word.name
        assert len(word.text) < 240, word.name
        assert {entry_of(name) for name in (word.name, *word.also)} == {word}


def test_each_line_of_the_page_is_an_entry() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| **")]
    assert [word.name for word in WORDS] == [line.split("**")[1] for line in lines]
    assert not any("|" in "".join((word.name, word.text, word.page, *word.also)) for word in WORDS)


def test_what_an_entry_points_to_can_be_read_in_the_terminal() -> None:
    for word in WORDS:
        asked = word.page.replace(".md", "")
        said = kair("help", asked)
        assert said.status == 0, asked
        assert said.out.startswith("#"), asked


def test_pages_are_shown_whole_or_by_section() -> None:
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert kair("help", "formats").out == kair("help", "docs/formats.md").out == page
    assert kair("help", "capture").out.endswith("The page of that name: kair help docs/capture\n")
    assert kair("help", "docs/capture").out.startswith("# ")
    section = kair("help", "methods#verdict").out
    assert section.startswith("### Verdict\n")
    assert section.count("\n### ") == 0
    assert "formats" in kair("help", "pages").out.splitlines()


def test_a_section_or_page_that_is_not_there_says_what_is() -> None:
    missing = kair("help", "methods#verdikt")
    assert missing.status == 2
    assert "docs/methods.md has no section 'verdikt'" in missing.err
    assert "verdict" in missing.err
    assert "did you mean kair help formats?" in kair("help", "format").err
    assert kair("help", "../../etc/passwd").status == 2
