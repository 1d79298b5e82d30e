"""Are certificates refused that were changed? Single mutations of real ones, as `kair verify` checks them.

    python validation/certificates.py [--mutations 100000] [--seed 1] [JOB ...]

Half of the mutations change one value that follows from others (an amount of the account, a figure, a chance, a price,
the verdict) and renew the digest, as somebody would who knows how it is made. The other half change one byte of the
file. A figure is changed by at least one in its ninth digit. All must be refused, and the certificate itself must hold.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kair
from kair_engine.certificate.verify import VERDICTS, Refused, check, digest, require

SAMPLES = Path(__file__).parents[1] / "sample_traces"
JOBS = ("slow_operator", "pipeline_slow_operator", "two_hosts_slow_input", "intermittent_stall", "slow_host", "healthy")


def leaves(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value is that is no object or list."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in pairs:
            yield from leaves(one, (*path, key))
    else:
        yield path


def follows(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return where each value is that follows from others: all that is derived, and the rows that must add up."""
    recorded = document["recorded"]
    derived = [("derived", *path) for path in leaves(document["derived"])]
    account = [("recorded", "account", *path) for path in leaves(recorded["account"]["ns"], ("ns",))]
    lengths = [("recorded", "length_ns", *path) for path in leaves(recorded["length_ns"])]
    return [*derived, *account, *lengths]


def changed(value: object, draw: random.Random) -> object:
    """Return another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value if isinstance(value, bool) else draw.choice([0, 1.5, "x"])
    if isinstance(value, int):
        return value + draw.choice([-1, 1]) * draw.choice([1, 1000, 10**6, max(value, 1)])
    if isinstance(value, float):
        last = 10.0 ** (int(f"{value:e}".partition("e")[2]) - 8)
        return draw.choice(
            [value + last, value - last, value * 1.01 or 2.0, value / 2 or 0.5, value + 1.0, -value or 1.0]
        )
    return draw.choice([one for one in (*VERDICTS, "") if one != value])


def renewed(document: dict[str, Any], places: list[tuple[Any, ...]], draw: random.Random) -> dict[str, Any]:
    """Return the document with one value changed, and its digest renewed."""
    path = draw.choice(places)
    result = copy.copy(document)
    at = result
    for key in path[:-1]:
        at[key] = copy.copy(at[key])
        at = at[key]
    at[path[-1]] = changed(at[path[-1]], draw)
    result["sha256"] = digest(result)
    return result


def with_a_byte(text: bytes, draw: random.Random) -> bytes:
    """Return the text with one byte changed, put in or left out."""
    place, other = draw.randrange(len(text)), draw.randrange(256)
    kept = place + draw.choice([0, 1])
    new = text[:place] + bytes([other]) * draw.choice([0, 1]) + text[kept:]
    return new if new != text else text[:place] + text[place + 1 :]


def refuses_renewed(document: dict[str, Any], draw: random.Random, places: list[tuple[Any, ...]]) -> bool:
    """Whether a document with one value changed is refused though its digest is right."""
    other = renewed(document, places, draw)
    assert other["sha256"] == digest(other)
    try:
        require(other)
    except Refused:
        return True
    return False


def refuses_text(text: bytes) -> bool:
    """Whether a text is refused."""
    try:
        check(text)
    except Refused:
        return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", type=Path, metavar="JOB")
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, found = random.Random(options.seed), Counter[tuple[str, bool]]()
    texts = [
        kair.open(job, progress=False).triage().certificate() for job in options.jobs or map(SAMPLES.joinpath, JOBS)
    ]
    documents = [check(text) for text in texts]
    places = [follows(document) for document in documents]
    for at in range(options.mutations):
        one = at // 2 % len(texts)
        if at % 2:
            found["bytes", refuses_text(with_a_byte(texts[one], draw))] += 1
        else:
            found["values", refuses_renewed(documents[one], draw, places[one])] += 1
    print(json.dumps({"certificates": len(texts), "bytes": [*map(len, texts)]}))
    for kind in ("values", "bytes"):
        print(f"{kind}: {found[kind, True]} of {found[kind, True] + found[kind, False]} refused")
    return int(found["values", False] + found["bytes", False] > 0)


if __name__ == "__main__":
    sys.exit(main())
