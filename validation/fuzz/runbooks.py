"""Hostile runbooks: those that come with Kair and others, their words, lines and characters altered."""

import random
from functools import cache
from pathlib import Path

from fuzz import damage
from fuzz.judging import Case

from kair_tui.cli.registry import COMMANDS
from kair_tui.shell.language import KEYWORDS
from kair_tui.shell.runbooks import BUNDLED

_LEFT_OUT = ("probe", "sensitivity", "fleet")
"""They take seconds each."""
_OWN = """\
t = triage --gpu-cost 2
l = localize --by host
when $t.findings.count > 0 and not $t.verdict == no_straggler:
    use rank $l.rank
    p = pinpoint --limit 3
    when $p.outliers.count > 0: blame --operator $p.outliers[0].operator
    use rank all
default limit = 1.05
expect $l.scores[0].score < $limit or $t.verdict in straggler,job_wide
use step last
frequency --windows 5; steps
use step all
w = whatif --fix rank=0
expect $w.slowdown <= 9
compare $job $job
export -o out.json
"""
_PIECES = (
    *KEYWORDS,
    *(entry.name for entry in COMMANDS if entry.name not in _LEFT_OUT),
    *("$t", "$t.verdict", "$t.findings[0].ranks[0]", "$t.findings[-1]", "$l.scores[99].rank", "$job", "$", "$$", "$x."),
    *("==", "!=", "<", "<=", ">", ">=", "in", "and", "or", "not", "(", ")", "=", ":", ";", "|", "!", "#", "'", '"'),
    *("\\", ",", "null", "true", "1e308", "-1", "99999999999999999999", "1_000", "0x1", "..", "*", "--", "-o"),
    *(
        "--step",
        "--rank",
        "--fix",
        "rank=0",
        "--help",
        "-h",
        "--store",
        "--no-such",
        "last",
        "all",
        "40-20",
        "\t",
        "\n",
    ),
)


@cache
def texts() -> tuple[str, ...]:
    """Runbooks that work."""
    return (_OWN, *(path.read_text() for path in sorted(BUNDLED.glob("*.kair"))))


def runbook(folder: Path, chance: random.Random, job: str) -> Case:
    """A runbook about a stored job, run or planned; or its lines for the shell."""
    text = chance.choice(texts())
    for _ in range(chance.choice((1, 1, 2, 4))):
        text = _altered(text, chance)
    text = "\n".join(line for line in text.splitlines() if not any(word in line for word in _LEFT_OUT))
    book = folder / "book.kair"
    data = text.encode("utf-8", "surrogatepass")
    book.write_bytes(damage.content(data, chance) if chance.random() < 0.1 else data)
    form = ("-o", chance.choice(("table", "json", "ndjson", "csv", "tree")))
    more = chance.choice(((), ("--dry-run",), ("--keep-going",), ("--set", f"limit={chance.choice(_PIECES)}")))
    # What one statement failed by is told with its line: `fail` ends with 1.
    return Case("runbook", ("run", str(book), job, *more, *form), may_give_up=True)


def _altered(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    at = chance.randrange(len(lines)) if lines else 0
    deed = chance.randrange(7)
    if not lines or deed == 0:
        return text + "\n" + " ".join(chance.choices(_PIECES, k=chance.randrange(1, 8)))
    if deed == 1:
        lines.insert(chance.randrange(len(lines) + 1), lines[at])
    elif deed == 2:
        del lines[at]
    elif deed == 3:
        lines[at] = " " * chance.choice((1, 2, 4, 8, 200)) + lines[at].lstrip()
    elif deed == 4:
        words = lines[at].split(" ")
        words[chance.randrange(len(words))] = chance.choice(_PIECES)
        lines[at] = " ".join(words)
    elif deed == 5:
        place = chance.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:place] + chance.choice((*_PIECES, *damage.TEXTS)) + lines[at][place:]
    else:
        words = lines[at].split(" ")
        chance.shuffle(words)
        lines[at] = " ".join(words)
    return "\n".join(lines)
