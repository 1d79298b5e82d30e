"""Hostile names: recordings whose every name would do something in a terminal, a browser, a spreadsheet or a graph."""

import csv
import json
import random
import re
import shutil
import sqlite3
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

from fuzz.damage import Tree
from fuzz.formats import samples
from fuzz.judging import CONTROL, Case
from fuzz.seeds import Content, kineto_seeds

TEXTS = (
    "\x1b[2J\x1b]0;owned\x07",
    "\x1b]8;;http://evil\x1b\\x",
    "a\nb\r\t\0\x08",
    "\u202egnp.exe\u2066",
    "\x85\x9b31m\u2028\u2029",
    "[red]evil[/red][@click=app.quit()]x[/]",
    "\ud800\udfff",
    "<img src=x onerror=alert(1)>",
    "</title></style></script><script>alert(1)</script>",
    '" onload="alert(1)',
    "]]><!--",
    "&lt;&#27;[31m",
    "](javascript:alert(1)) ![x](http://evil)",
    "`|||` <br>",
    "\\l\\N\\E{rank}|<f0>",
    '"; shape=box; URL="javascript:x',
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(1)",
    "\uff1d1+1",
    "\t=1+1",
    "%s%n{0}${HOME}$(id)",
    "n" * 5000,
    "\u0301" * 400,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "'; DROP TABLE x;--",
    "../../../etc/passwd",
    "-rf",
    "",
)
"""What stands in names; of a few of them at once."""
_NAMES = (
    "name",
    "profiling_name",
    "desc",
    "pg_name",
    "process_group",
    "group_name",
    "host_name",
    "hostname",
    "filename",
)
"""Of fields, in other formats than Kineto's."""
_FORMULA = re.compile(r"[=+\-@\uff1d\uff0b\uff0d\uff20\t\r]")
_NUMBER = re.compile(r"[-+]?\d[\d.eE+\-, ]*")
_COMMANDS = (
    *((name, form) for name in ("triage", "localize", "info", "steps", "whatif") for form in ("table", "wide", "csv")),
    *((("blame", "--step", "last"), form) for form in ("table", "tree", "csv", "json", "dot", "graphml", "node-link")),
    *((("rank", "--rank", "1"), form) for form in ("table", "json", "csv")),
    *((("pinpoint", "--rank", "1"), form) for form in ("table", "wide", "csv", "ndjson")),
    *((("timeline",), form) for form in ("table", "json", "svg")),
    *((("frequency",), form) for form in ("table", "csv", "ndjson")),
    *((("operators",), form) for form in ("table", "csv", "json")),
    *((("info", "--operators"), form) for form in ("table", "csv", "tree")),
    *((("localize", "--by", by), "table") for by in ("host", "role")),
    *((("triage", "--report", f"out.{ending}"), "json") for ending in ("html", "md")),
    *((("triage",), form) for form in ("tree", "json", "ndjson")),
    *((("export", "-o", f"out.{ending}"), "") for ending in ("csv", "json", "pftrace")),
    *((("whatif", "--timeline", "out.json"), "table"), (("compare",), "table"), (("compare",), "csv")),
)


def named(folder: Path, chance: random.Random) -> Case:
    """A job in whose files every name is hostile, and a command about it."""
    if chance.random() < 0.25:
        return _of_other_format(folder, chance)
    seed = chance.choice(kineto_seeds())
    texts = chance.sample(TEXTS, chance.choice((1, 2, 4)))
    job = folder / _file_name("job", chance.choice(texts), chance)
    job.mkdir()
    for number, (name, content) in enumerate(seed.contents().items()):
        _rename(content, texts, random.Random(name), place=chance.choice(("after", "after", "before", "instead")))
        text = json.dumps(content).encode("utf-8", "surrogatepass")
        stem = _file_name(f"rank{number}", texts[number % len(texts)], chance)
        (job / f"{stem}.json").write_bytes(text)
    command, form = chance.choice(_COMMANDS)
    words = (command,) if isinstance(command, str) else command
    jobs = (str(job), str(job)) if words[0] == "compare" else (str(job),)
    look = chance.choice(((), ("--ascii",), ("-v",)))
    return Case("names", (words[0], *jobs, *words[1:], *(("-o", form) if form else ()), *(look if form else ())))


def _of_other_format(folder: Path, chance: random.Random) -> Case:
    """The same of a recording that is no Kineto trace."""
    job = folder / "job"
    job.mkdir()
    (folder / "sound").mkdir()
    sound = samples(folder / "sound")
    name = chance.choice(("nsys", "flight_recorder", "ascend", "rocprof", "rocprofv3", "horovod", "composer"))
    texts = chance.sample(TEXTS, 2)
    path = job / sound[name].name
    if name == "nsys":
        shutil.copy(sound[name], path)
        with closing(sqlite3.connect(path)) as database:
            for text in texts:
                given = text.encode("utf-8", "replace").decode()
                database.execute("UPDATE StringIds SET value = value || ? WHERE random() % 2 = 0", (given,))
                database.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = value || ?", (given,))
            database.commit()
    else:
        text = sound[name].read_text().strip()
        # Some are lists that nobody closed.
        root = json.loads(text if text[-1] in "]}" else text.rstrip(",") + "]")
        path.write_bytes(json.dumps(_named_within(root, texts, chance)).encode("utf-8", "surrogatepass"))
    command, form = chance.choice([one for one in _COMMANDS if one[0] != ("compare",)])
    words = (command,) if isinstance(command, str) else command
    return Case("names", (words[0], str(job), *words[1:], *(("-o", form) if form else ())))


def _named_within(value: Tree, texts: list[str], chance: random.Random, key: str = "") -> Tree:
    """The tree with a hostile text behind its names."""
    if isinstance(value, dict):
        return {name: _named_within(one, texts, chance, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_named_within(one, texts, chance, key) for one in value]
    if isinstance(value, str) and key in _NAMES and chance.random() < 0.7:
        return f"{value}{chance.choice(texts)}"
    return value


def _file_name(stem: str, text: str, chance: random.Random) -> str:
    if chance.random() < 0.6:
        return stem
    return (
        stem
        + text.encode("utf-8", "surrogateescape" if text.isascii() else "replace")
        .decode()
        .translate({ord("/"): "_", 0: "_"})[:60]
    )


def _rename(content: Content, texts: list[str], chance: random.Random, place: str) -> None:
    """Every name with a hostile text in it, one text for each name."""
    known: dict[str, str] = {}

    def hostile(name: object) -> str:
        name = str(name)
        if name not in known:
            text = chance.choice(texts)
            is_told = place != "instead" and not name.startswith("ProfilerStep")
            known[name] = {True: f"{name}{text}" if place == "after" else f"{text}{name}", False: text}[is_told]
            if name.startswith("ProfilerStep"):
                known[name] = name
        return known[name]

    content["host_name"] = f"node{chance.choice(texts)}"
    content["traceName"] = chance.choice(texts)
    about = content.get("distributedInfo")
    for group in about.get("pg_config", ()) if isinstance(about, dict) else ():
        group["pg_desc"] = hostile(group.get("pg_desc", ""))
    for one in content["traceEvents"]:
        is_communication = any(word in str(one.get("name")) for word in ("gloo", "nccl", "c10d", "record_param"))
        if not is_communication or place == "after":
            one["name"] = hostile(one.get("name", ""))
        args = one.get("args")
        if isinstance(args, dict):
            for key in ("Process Group Description", "Call stack", "Module Hierarchy"):
                if key in args:
                    args[key] = hostile(args[key])


def faults_of_text(case: Case, out: str, folder: Path) -> Iterator[str]:
    """What of an answer, or of the files it wrote, would be interpreted by whoever opens it."""
    form = case.words[case.words.index("-o") + 1] if "-o" in case.words else "table"
    yield from _of(form, out, "stdout")
    for path in folder.glob("out.*"):
        text = path.read_bytes().decode("utf-8", "replace")
        yield from _of(path.suffix[1:], text, path.name)


def _of(form: str, text: str, where: str) -> Iterator[str]:
    if not text:
        return
    if form == "pftrace":
        return
    if form != "html" and (found := CONTROL.search(text)):
        yield f"a control character in {where}: {text[max(found.start() - 40, 0) : found.end() + 20]!r}"
    if form == "csv":
        yield from _formulas(text, where)
    elif form in ("svg", "graphml"):
        yield from _broken_xml(text, where)
    elif form == "html":
        yield from _foreign_tags(text, where)
    elif form == "md":
        yield from _markdown(text, where)
    elif form == "dot":
        yield from _dot(text, where)


def _formulas(text: str, where: str) -> Iterator[str]:
    for row in csv.reader(text.splitlines(keepends=True)):
        for cell in row:
            if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
                yield f"a formula in {where}: {cell[:60]!r}"
                return


def _broken_xml(text: str, where: str) -> Iterator[str]:
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        yield f"{where} is no XML: {error}"
        return
    for one in root.iter():
        if one.tag.rpartition("}")[2] in ("script", "img", "a", "foreignObject") or any(
            key.startswith("on") for key in one.attrib
        ):
            yield f"{where} has <{one.tag}> {one.attrib}"
            return


class _Tags(HTMLParser):
    """The tags, and what is odd of them."""

    def __init__(self) -> None:
        super().__init__()
        self.odd: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what no report has."""
        events = [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]
        if tag in ("script", "img", "iframe", "object", "form") or events:
            self.odd.append(f"<{tag}> {events}")


def _foreign_tags(text: str, where: str) -> Iterator[str]:
    tags = _Tags()
    tags.feed(text)
    if tags.odd:
        yield f"{where} has {tags.odd[0]}"
    if found := re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text):
        yield f"a control character in {where}: {text[max(found.start() - 40, 0) : found.end() + 20]!r}"


def _markdown(text: str, where: str) -> Iterator[str]:
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    if found := re.search(r"(?<!\\)<(img|script|a\b|/title)|(?<!\\)\]\((javascript|http)", outside):
        yield f"{where} has {outside[max(found.start() - 40, 0) : found.end() + 20]!r}"


def _dot(text: str, where: str) -> Iterator[str]:
    """Nothing but quoted texts may hold a name."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    if found := re.search(r"javascript|onerror|=cmd|DROP", bare):
        yield f"{where} has outside of quotes: {bare[max(found.start() - 40, 0) : found.end() + 20]!r}"
    if re.search(r"\\[NEGTHL]", re.sub(r"\\\\", "", text)):
        yield f"{where} has an escape of DOT's"
