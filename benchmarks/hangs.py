"""How often hangs are told rightly, of every kind and dump version, and with dumps that are damaged.

`python benchmarks/hangs.py` prints two tables: `whole` is who, which call and where; `who` and `some` are a part of
that; `open` accuses nobody; `innocent` accuses somebody who is.
"""

import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "engine"), str(ROOT / "tests")]

from support.hangs import VERSIONS, all_hangs, damaged, dumps_of, job_of, judged  # noqa: E402

from kair_engine.triage.hangs.analysis import hang  # noqa: E402

ANSWERS = ("whole", "who", "some", "open", "innocent")


def main() -> int:
    hangs = all_hangs()
    by_kind: dict[str, Counter[str]] = {}
    by_damage: dict[str, Counter[str]] = {}
    for at, one in enumerate(hangs):
        for version in VERSIONS:
            found = hang(job_of(dumps_of(one, version), one.world))
            by_kind.setdefault(one.kind, Counter())[judged(one, found)] += 1
            for what, dumps in damaged(one, version, hangs, random.Random(at)).items():
                whose = f"{what}, all in one call" if not one.culprits else what
                by_damage.setdefault(whose, Counter())[judged(one, hang(job_of(dumps, one.world)))] += 1
    table("whole dumps, all versions", by_kind)
    table("damaged dumps, all versions", by_damage)
    return 0


def table(head: str, counts: Mapping[str, Counter[str]]) -> None:
    print(f"{head:<50}" + "".join(f"{answer:>10}" for answer in ANSWERS))
    for name, of in counts.items():
        print(f"{name:<50}" + "".join(f"{of[answer]:>10}" for answer in ANSWERS))
    total = sum(counts.values(), Counter())
    print(f"{'all':<50}" + "".join(f"{total[answer]:>10}" for answer in ANSWERS) + "\n")


if __name__ == "__main__":
    sys.exit(main())
