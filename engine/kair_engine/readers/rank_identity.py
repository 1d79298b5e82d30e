"""Reads a rank's identity from a recording's metadata: texts on one line, versions in one spelling.

Only environment variables that change how a rank runs are kept: others are private and may hold secrets.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kair_engine.trace.identity import RankIdentity

_LONGEST: Final = 200
_MOST_VARIABLES: Final = 200
_MATTERS: Final = re.compile(
    r"(NCCL|RCCL|HCCL|GLOO|UCX|FI|MPI4JAX|OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|NUMEXPR|CUDA|CUBLAS|CUDNN|NVIDIA|NVTE|HIP|ROCR"
    r"|HSA|GPU_MAX|MIOPEN|ASCEND|NPU|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|XLA|JAX|TF|MALLOC|TCMALLOC|JEMALLOC)_[A-Z0-9_]+"
    r"|LD_PRELOAD|MALLOC_CONF|ACL_STREAM_TIMEOUT"
)
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|(^|_)KEY($|_)")
_OF_PROFILERS: Final = re.compile(r"INJECTION|_PROFILER_|HSA_TOOLS_LIB")


def one_line(value: object) -> str | None:
    """Return a text on one line of bounded length; None if it is empty or no text."""
    if not isinstance(value, str):
        return None
    line = " ".join(value[: 10 * _LONGEST].encode("utf-8", "replace").decode().split())
    return line[:_LONGEST] or None


def process_id(value: object) -> int | None:
    """Return `value` if it can be a process id on Linux, where the maximum is 2²²."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 22 else None


def cuda_version(value: object) -> str | None:
    """Return `12.4` for CUDA's 12040: 1,000 × major + 10 × minor. None for other values."""
    number = _number(value)
    return f"{number // 1000}.{number % 1000 // 10}" if number is not None and 1000 <= number < 100_000 else None


def hip_version(value: object) -> str | None:
    """Return `6.2.41133` for HIP's 60241133: 10,000,000 × major + 100,000 × minor + patch. None for other values."""
    number = _number(value)
    if number is None or not 10_000_000 <= number < 1_000_000_000:
        return None
    return f"{number // 10_000_000}.{number % 10_000_000 // 100_000}.{number % 100_000}"


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def positive(value: object) -> str | None:
    """Return a number above 0 as text; None for other values."""
    return str(value) if type(value) is int and 0 < value < 1 << 62 else None


def without_unknown(**values: str | None) -> dict[str, str]:
    """Return the values that are known."""
    return {name: value for name, value in values.items() if value is not None}


def variables_that_matter(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of libraries that a rank runs with, without those that profilers set."""
    found: dict[str, str] = {}
    for name, value in sorted(variables.items()):
        if not _MATTERS.fullmatch(name) or _SECRET.search(name) or _OF_PROFILERS.search(name):
            continue
        if isinstance(value, str) and len(found) < _MOST_VARIABLES:
            found[name] = one_line(value) or ""
    return found


def by_rank(identities: Iterable[RankIdentity]) -> dict[int, RankIdentity]:
    """Return rank → identity, without those that have nothing but a rank."""
    return {one.rank: one for one in identities if one != RankIdentity(one.rank)}
