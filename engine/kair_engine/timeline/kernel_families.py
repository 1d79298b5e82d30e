"""Sorts device operations by what they do: what a rank is slow in, and what it is not, shows why."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final, Literal, get_args

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.timeline.self_time import ByOperator

Family = Literal[
    "attention",
    "experts",
    "lookups",
    "selections",
    "matrix_products",
    "copies_to_device",
    "copies_from_device",
    "others",
]

FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
OF_DATA: Final[tuple[Family, ...]] = ("attention", "experts", "lookups", "selections")
"""Families whose work depends on values that no shape shows: lengths of packed sequences, tokens of each expert, which
rows are looked up, how many elements are chosen."""
OF_COPIES: Final[tuple[Family, ...]] = ("copies_to_device", "copies_from_device")
"""Families that cross the link between host and device."""
OF_ARITHMETIC: Final[tuple[Family, ...]] = ("attention", "experts", "matrix_products")
"""Families that a lower clock slows; the others are as fast as the device's memory, which it leaves alone."""

_RULES: Final[tuple[tuple[Family, str], ...]] = (
    # Kineto: CUDA and ROCm; nsys; rocprof; XLA.
    ("copies_to_device", r"mem_?cpy.{0,8}(htod|h2d|host[- _]to[- _]device)|copyhosttodevice|^h2d\b"),
    ("copies_from_device", r"mem_?cpy.{0,8}(dtoh|d2h|device[- _]to[- _]host)|copydevicetohost|^d2h\b"),
    (
        "experts",
        r"group(ed)?_?(gemm|mm|problem|matmul|conv_?gemm)|(gemm|mm|matmul)_?group(ed)?|fused_?moe|moe_|_moe|"
        r"(^|[^a-z])experts?([^a-z]|$)|m_?grouped|k_?grouped|(un)?permute_?(tokens|kernel)|tokens?_?(un)?permute|megablocks",
    ),
    (
        "attention",
        r"flash_?(fwd|bwd|attn|attention|mla|infer)|(^|[^a-z])(fmha|mha|sdpa|mla|attn|attention)|_(attn|attention)|"
        r"flashattn|flash::|fmha|scaled_?dot_?product|attn_(fwd|bwd)",
    ),
    ("lookups", r"embedding|indexselect|index_select|index_?(add|put|get|backward|fwd|bwd)|gather(?!.*nccl)|scatter"),
    (
        "selections",
        r"nonzero|masked_?(select|scatter)|(^|[^a-z])unique|radix_?sort|(^|[^a-z])sort|deviceselect|nms|ctc_?loss|"
        r"cusparse|spmm|csr|segment(ed)?_?reduce|histogram",
    ),
    (
        "matrix_products",
        r"gemm|nvjet|cutlass|matmul|(^|[^a-z])(mm|bmm|addmm|linear|dot)([^a-z]|$)|xmma|cijk_|conv(olution)?[^e]|wgrad|"
        r"dgrad|winograd|fprop|ck::|tensile|dot_general",
    ),
)
_PATTERNS: Final = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _RULES)


@lru_cache(maxsize=4096)
def family_of(name: str) -> Family:
    """Return what a device operation of this name does, the first family whose pattern is in it."""
    return next((family for family, pattern in _PATTERNS if pattern.search(name)), "others")


def by_family(spent: ByOperator, without: Collection[str]) -> Floats:
    """Return (FAMILIES × ranks) what operations take together, `without` those of some names."""
    result = np.zeros((len(FAMILIES), spent.values.shape[1]))
    for name, of_ranks in zip(spent.names, spent.values, strict=True):
        if name not in without:
            result[FAMILIES.index(family_of(name))] += of_ranks
    return result
