"""Reports a rank's process as it knows itself: versions, variables, cores, and its device once the framework has one.

Nothing is imported and no device is started: only what the job has anyway is used.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kair_capture.files import write_atomically
from kair_capture.job.failing import NO_ROOM, described, warn
from kair_capture.ring import process_namespace, start_ticks

IDENTITY: Final = "identity"
"""Suffix of the files."""
MOST_CHARACTERS: Final = 200
"""Characters of a variable's value that are kept."""
_MOST_VARIABLES: Final = 200
_PREFIXES: Final = (
    "NCCL_", "RCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "OMPI_MCA_", "RDMAV_", "MLX5_",
    "CUDA_", "CUBLAS_", "CUDNN_", "NVTE_", "NVIDIA_TF32_OVERRIDE", "HIP_", "HSA_", "ROCR_", "MIOPEN_",
    "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "XLA_", "JAX_", "TF_DETERMINISTIC",
    "TF_GPU_", "TF_XLA_", "TF_NUM_", "TF_CUDNN_", "TF_USE_", "TF_FORCE_", "TF_ENABLE_", "TF_DISABLE_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "GLIBC_TUNABLES",
    "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONMALLOC", "PYTHONOPTIMIZE",
)  # fmt: skip
"""For TensorFlow, not every `TF_`: Terraform uses that prefix too, for arbitrary content."""
_SECRET: Final = re.compile(
    r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|PRIVATE|COOKIE|(?:^|_)(?:PASS|PWD|PAT|PIN)(?:_|$)",
    re.IGNORECASE,
)
_SECRET_IN_VALUE: Final = re.compile(
    r"(?:token|key|secret|passw\w*|passphrase|pwd|credentials?|auth\w*|signature|\bsig)[\"']?(?:\s*[=:]\s*|\s+)[^\s:/]"
    r"|://[^/\s]*@|\bbearer\s|\b(?:gh[pousr]_|sk-|AKIA|eyJ)\w",
    re.IGNORECASE,
)
"""A value assigned to such a name, a URL with a user, or a well-known kind of token."""
_LIBRARIES: Final = (
    "torch", "jax", "jaxlib", "tensorflow", "keras", "numpy", "triton", "deepspeed", "accelerate", "transformers",
    "lightning", "transformer_engine", "flash_attn", "apex", "xformers", "megatron.core",
)  # fmt: skip
_IMAGES: Final = ("CONTAINER_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SLURM_CONTAINER_IMAGE")
_PYXIS_IMAGE: Final = "pyxis_container_image"
_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_JOB_NUMBERS: Final = (("SLURM_JOB_ID",), ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
"""Variables that form a job's name in accounting: `4711`, in an array `4711_3`."""
_LOCAL_RANKS: Final = (
    ("LOCAL_RANK", "RANK"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_RANK"),
    ("MPI_LOCALRANKID", "PMI_RANK"),
    ("PALS_LOCAL_RANKID", "PALS_RANKID"),
    ("SLURM_LOCALID", "SLURM_PROCID"),
)
"""Launchers' variables for local rank and rank: one task of a launcher may have started several ranks."""


def identity_file(run_dir: Path, rank: int, pid: int) -> Path:
    """Return the file in which a process states its identity."""
    return run_dir / f"rank-{rank}.{pid}.{IDENTITY}"


class IdentityFile:
    """Identity of this process: JSON of a RankIdentity's members, as far as known, and which process it is."""

    def __init__(self, run_dir: Path, rank: int, framework: Mapping[str, Any]) -> None:
        """`framework` is the training one's `Framework.description`."""
        self._run_dir, self._rank = run_dir, rank
        self._framework = framework
        self._told = b""
        self._has_failed = False

    def tell(self) -> None:
        """Write what is known, if it is more than before. Never raises."""
        if self._has_failed:
            return
        try:
            content = json.dumps(identity_of(self._rank, self._framework)).encode()
            if content != self._told:
                write_atomically(identity_file(self._run_dir, self._rank, os.getpid()), content)
                self._told = content
        except Exception as error:  # whatever it is, training and the rest of capture continue
            self._has_failed = True
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                return  # the next writer reports it, and without room there is no capture
            warn(f"who this rank is (device, versions, variables) is not recorded: {described(error)}")


def identity_of(
    rank: int, framework: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> dict[str, object]:
    """Return this process's identity by the names of RankIdentity, with `start_ticks` and `pid_namespace`."""
    pid = os.getpid()
    found: dict[str, object] = {
        "rank": rank,
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "pid_namespace": process_namespace(),
        "local_rank": local_rank(rank, environment),
        "cpus": sorted(os.sched_getaffinity(0)),
        "container": image(environment),
        "scheduled": scheduled(environment),
        "versions": versions(framework),
        "environment": variables(environment),
        "device": device(),
    }
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def local_rank(rank: int, environment: Mapping[str, str]) -> int | None:
    """Return the rank among those of its host, from the launcher that started it; None without one."""
    for local, of in _LOCAL_RANKS:
        text = environment.get(local, "")
        if re.fullmatch(r"\d{1,6}", text, re.ASCII) and environment.get(of) == str(rank):
            return int(text)
    return None


def image(environment: Mapping[str, str]) -> str | None:
    """Return the container's image, if a variable names it."""
    named = (environment.get(name) for name in _IMAGES)
    by_pyxis = (value for name, value in environment.items() if name.endswith(_PYXIS_IMAGE))
    if found := next(filter(None, (*named, *by_pyxis)), None):
        return None if _SECRET_IN_VALUE.search(found) else _kept(found)
    product, release = environment.get("NVIDIA_PRODUCT_NAME"), environment.get("NVIDIA_PYTORCH_VERSION")
    return _kept(f"{product or 'PyTorch'} {release}") if release else None


def scheduled(environment: Mapping[str, str], namespace: Path = _NAMESPACE) -> list[str]:
    """Return what it belongs to, as its scheduler's events name it: `pod:NAMESPACE/NAME`, `job:4711`.

    A pod's name is `POD_NAME` (fieldRef `metadata.name`), else its host name, which is mostly the same.
    """
    found = []
    pod = environment.get("POD_NAME") or ("KUBERNETES_SERVICE_HOST" in environment and environment.get("HOSTNAME"))
    if pod:
        of = environment.get("POD_NAMESPACE")
        if not of:
            with suppress(OSError, ValueError):  # pods without access to the API have no such file
                of = namespace.read_text(encoding="utf-8").strip()
        found.append(_kept(f"pod:{of}/{pod}" if of else f"pod:{pod}"))
    numbers = ([environment.get(name, "") for name in names] for names in _JOB_NUMBERS)
    return found + [_kept(f"job:{'_'.join(of)}") for of in numbers if all(map(str.isdecimal, of))]


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that change how a rank runs, except those whose name or value could be a secret."""
    chosen = sorted(
        name
        for name, value in environment.items()
        if name.startswith(_PREFIXES) and not _SECRET.search(name) and not _SECRET_IN_VALUE.search(value)
    )
    return {_kept(name): _kept(environment[name]) for name in chosen[:_MOST_VARIABLES]}


def _kept(text: str) -> str:
    """Return the text for JSON: bytes that are no text (PEP 383) are replaced, and it is cut."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:MOST_CHARACTERS]


def versions(framework: Mapping[str, Any]) -> dict[str, str]:
    """Return versions of Python, the training framework, and other imported libraries."""
    name, of = framework.get("framework"), framework.get("framework_version")
    found = {"python": platform.python_version()}
    if name and of:
        found["framework"] = f"{name} {of}"
    for library in _LIBRARIES:
        # Its own dictionary: some modules import others when a missing attribute is read.
        version = vars(sys.modules[library]).get("__version__") if sys.modules.get(library) is not None else None
        if library != name and version is not None:
            found[library] = str(version)
    for part in (_torch_versions, _tensorflow_versions):
        with suppress(Exception):  # a release may have other names
            found |= part()
    return {key: _kept(version) for key, version in found.items()}


def _torch_versions() -> dict[str, str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {name: str(of) for name in ("cuda", "hip") if (of := getattr(torch.version, name, None)) is not None}
    if not found:
        return {}
    nccl = sys.modules.get("torch.cuda.nccl")
    if nccl is not None:
        with suppress(Exception):  # built without it
            found["nccl"] = _dotted(nccl.version())
    if torch.cuda.is_initialized():
        with suppress(Exception):
            found["cudnn"] = _dotted(torch._C._cudnn.getRuntimeVersion())
        with suppress(Exception):
            number = int(torch._C._cuda_getDriverVersion())
            found["cuda_driver"] = f"{number // 1000}.{number % 1000 // 10}"
    return found


def _dotted(version: Any) -> str:  # noqa: ANN401
    """Return NCCL's version, 2.21.5 as a tuple; a number in PyTorch before 1.10."""
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)


def _tensorflow_versions() -> dict[str, str]:
    build = sys.modules.get("tensorflow.python.platform.build_info")
    info = {} if build is None else build.build_info
    of = {"cuda": "cuda_version", "cudnn": "cudnn_version"}
    return {name: str(info[key]) for name, key in of.items() if key in info}


def device() -> dict[str, object]:
    """Return the accelerator that the framework has started, by the names of DeviceIdentity.

    It is empty without one.
    """
    for part in (_torch_device, _jax_device):
        with suppress(Exception):  # a release may have other names
            if found := part():
                return {name: value for name, value in found.items() if value is not None}
    return {}


def _torch_device() -> dict[str, object]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    ordinal = torch_ordinal(torch.cuda.device_count(), torch.cuda.current_device(), _allocated(torch))
    if ordinal is None:
        return {}
    of = torch.cuda.get_device_properties(ordinal)
    uuid = getattr(of, "uuid", None)
    place: list[Any] = [getattr(of, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return {
        "ordinal": ordinal,
        "uuid": None if uuid is None else str(uuid),
        "pci": None if None in place else "{:04x}:{:02x}:{:02x}.0".format(*place),
        "model": str(of.name),
    }


def _allocated(torch: Any) -> Callable[[int], int]:  # noqa: ANN401
    def of(ordinal: int) -> int:
        with suppress(Exception):  # an allocator without counts
            return int(torch.cuda.memory_stats_as_nested_dict(ordinal)["allocated_bytes"]["all"]["current"])
        return 0

    return of


def torch_ordinal(devices: int, current: int, allocated: Callable[[int], int]) -> int | None:
    """Return which of `devices` a process trains on: the one with most bytes of its tensors (`allocated(ordinal)`).

    The current device alone means little: a script that names its devices itself leaves 0 current in every rank. If no
    device has more than half of the bytes, the process uses several, and no single one counts.
    """
    if devices == 1:
        return 0
    bytes_of = [allocated(ordinal) for ordinal in range(devices)]
    if not any(bytes_of):
        return current or None
    most = max(range(devices), key=bytes_of.__getitem__)
    return most if 2 * bytes_of[most] > sum(bytes_of) else None


def _jax_device() -> dict[str, object]:
    jax, bridge = sys.modules.get("jax"), sys.modules.get("jax._src.xla_bridge")
    if jax is None or bridge is None or not bridge.backends_are_initialized():
        return {}
    own = jax.local_devices()
    if len(own) != 1 or own[0].platform not in ("gpu", "cuda", "rocm"):
        return {}
    return {"ordinal": own[0].local_hardware_id, "model": str(own[0].device_kind)}
