"""Makes untrusted text safe to print: names in traces, paths, messages. Nothing else does."""

import re
import unicodedata
from typing import Final, TextIO

# C0, DEL and C1 controls; zero-width and bidirectional controls; line and paragraph separators; the byte
# order mark; lone surrogates (undecodable bytes of file names); tag characters.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_PICTURES_START: Final = 0x2400
_DELETE: Final = 0x7F

_ASCII: Final = str.maketrans(
    {
        "µ": "u",
        "μ": "u",
        "×": "x",
        "→": "->",
        "←": "<-",
        "–": "-",
        "—": "-",
        "−": "-",
        "…": "...",
        "·": "|",
        "≥": ">=",
        "≤": "<=",
        "±": "+-",
        "•": "*",
        "▲": "!",
        "◆": "#",
        "█": "#",
        "“": '"',
        "”": '"',
        "‘": "'",
        "’": "'",
        "σ": "sigma",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
    }
)


def clean(text: str, *, ascii_only: bool = False) -> str:
    """Return `text` on one line with every control character replaced by a visible one (`␛`, `\\u202e`)."""
    if ascii_only:
        return to_ascii(_UNSAFE.sub(_escaped, text))
    return _UNSAFE.sub(_pictured, text)


_DRAWN: Final = re.compile("[\u2500-\u25ff\u2800-\u28ff\u22ee]")
"""Lines, blocks, shapes and dots of pictures."""


def plain_text(text: str, *, instead: str = "") -> str:
    """Return `text` without drawing characters, which a screen reader would name one by one."""
    return _DRAWN.sub(instead, text)


def escape_controls(document: str) -> str:
    """Return a JSON document with the control characters that JSON permits in strings as `\\u` escapes."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else _json_escaped(match), document)


def to_ascii(text: str) -> str:
    """Return `text` in ASCII: the nearest character if there is one, else a backslash escape. Line breaks stay."""
    if text.isascii():
        return text
    plain = unicodedata.normalize("NFC", text).translate(_ASCII)
    return plain.encode("ascii", "backslashreplace").decode("ascii")


def json_in_ascii(document: str) -> str:
    """Return a JSON document with everything beyond ASCII as `\\u` escapes."""
    return re.sub(r"[^\x00-\x7f]", _json_escaped, document)


def xml_in_ascii(document: str) -> str:
    """Return an XML document with everything beyond ASCII as character references."""
    return document.encode("ascii", "xmlcharrefreplace").decode("ascii")


def speaks_unicode(stream: TextIO | None) -> bool:
    """Return whether `stream` supports more than ASCII."""
    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    return encoding.startswith("utf")


def spaced(name: str) -> str:
    """Return a name of causes, patterns or verdicts for a sentence: `no_straggler` → `no straggler`."""
    return name.replace("_", " ")


def short_name(name: str, limit: int = 60) -> str:
    """Return a kernel's name without return type, template and argument lists, and at most `limit` long."""
    name = _without_brackets(name.removeprefix("void "))
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def _without_brackets(name: str) -> str:
    """Return a name without template arguments: `a<b<c>>::d(e(f))` → `a::d`; a name that would vanish is kept."""
    bare = name.replace("(anonymous namespace)::", "")
    bare = _without_arguments(bare.removesuffix(" const"))
    while (shorter := re.sub(r"(?<!operator)<[^<>]*>", "", bare)) != bare:
        bare = shorter
    return bare.strip() or name


def _without_arguments(name: str) -> str:
    """Return a name without arguments: `a(b(c))` → `a`; `Memcpy (Device)`, with a blank before, is kept."""
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[index], 0)
        if depth == 0:
            is_list = name.endswith(")") and index > 0 and (name[index - 1].isalnum() or name[index - 1] in "_>")
            return name[:index] if is_list else name
    return name


def _pictured(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES_START + code)
    return "\u2421" if code == _DELETE else _escaped(match)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
