"""Lexer: a line of the shell as words, and without its comment."""

from kair_tui.cli.words import Word, read_word, unquoted


def words_of(text: str) -> tuple[Word, ...]:
    """The words of a line. Raises UsageError for a quote that is not closed."""
    words: list[Word] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        word, at = read_word(text, at)
        words.append(word)
    return tuple(words)


def without_comment(text: str) -> str:
    """The line up to a `#` that begins a word."""
    hashes = (at for at in unquoted(text, "#") if at == 0 or text[at - 1].isspace())
    return text[: next(hashes, len(text))].rstrip()
