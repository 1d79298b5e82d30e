"""The name of a fragment, which says that an agent of this job made its content."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

FragmentKind = Literal["steps", "scopes"]
"""Operations of sampled steps, or sums of the script's own scopes of all steps."""
_NAME: Final = re.compile(r"(steps|scopes)-(\d{1,10})-(\d{1,10})-([0-9a-f]{8})-([0-9a-f]{32})\.parquet")
_TAG_BYTES: Final = 16


@dataclass(frozen=True)
class FragmentName:
    """What a name says."""

    first: int
    last: int
    number: str
    """Random: a window may be delivered in parts, when a rank was late."""
    tag: str
    kind: FragmentKind = "steps"

    @property
    def text(self) -> str:
        """The name of the file."""
        return f"{self.kind}-{self.first:010}-{self.last:010}-{self.number}-{self.tag}.parquet"

    def is_of(self, path: Path, host: str, key: bytes) -> bool:
        """Whether the file's content is what was signed for this host and these steps. Raises OSError."""
        about = f"{self.kind}\0{host}\0{self.first}\0{self.last}\0{self.number}"
        return hmac.compare_digest(self.tag, _tag(path, about, key))


def named(path: Path, host: str, first: int, last: int, key: bytes, *, kind: FragmentKind = "steps") -> FragmentName:
    """A new name for the file `path`. Raises OSError."""
    number = secrets.token_hex(4)
    return FragmentName(first, last, number, _tag(path, f"{kind}\0{host}\0{first}\0{last}\0{number}", key), kind)


def read_name(text: str) -> FragmentName | None:
    """What a file's name says, None where it is no fragment's."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    kind: FragmentKind = "steps" if match[1] == "steps" else "scopes"
    return FragmentName(int(match[2]), int(match[3]), match[4], match[5], kind)


def _tag(path: Path, about: str, key: bytes) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return hmac.digest(key, f"fragment\0{about}\0".encode() + digest, "sha256")[:_TAG_BYTES].hex()
