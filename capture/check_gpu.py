"""Checks capture on a machine with an NVIDIA GPU, which this repository's tests do not need, within five minutes.

    python capture/check_gpu.py                  # sampled steps, CUPTI next to Kineto, device times, NVML, the overhead
    python capture/check_gpu.py --out gpu.txt    # the same, kept in a file as well

Every check prints one line; the exit status is 1 if one failed, 2 if there is no GPU.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 12
KERNELS = 20
KINETO = "kineto.json"
PRINTED: list[str] = []
OVERHEAD = Path(__file__).resolve().parents[1] / "benchmarks" / "capture" / "overhead.py"
OVERHEAD_OPTIONS = ("--device", "cuda", "--ranks", "2", "--rounds", "12", "--width", "512", "--batch", "64")
OVERHEAD_S = 180
NVML = ("gpu_sm_clock", "gpu_temperature", "gpu_power")


def main() -> int:
    """Run all checks, each profiler in a separate process because CUPTI has one owner per process."""
    if len(sys.argv) == 3 and sys.argv[1] in WAYS:
        WAYS[sys.argv[1]][0](Path(sys.argv[2]))
        return 0
    if not has_gpu():
        print("there is no GPU that PyTorch can use here")
        return 2
    try:
        failed = check_all()
    finally:
        if "--out" in sys.argv[:-1]:
            Path(sys.argv[sys.argv.index("--out") + 1]).write_text("".join(f"{line}\n" for line in PRINTED))
    return int(failed > 0)


def check_all() -> int:
    """Run every check; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        for way, (_, check) in WAYS.items():
            folder = Path(root) / way
            folder.mkdir()
            own = os.environ | {"KAIR_RUN_DIR": f"{folder}/run", "KAIR_SAMPLE_EVERY": "5", "KINETO_LOG_LEVEL": "6"}
            own["KAIR_MAX_OVERHEAD"] = "100%"
            done = subprocess.run([sys.executable, __file__, way, str(folder)], env=own, check=False)
            failed += check(f"{way}: the job ends well", done.returncode == 0)
            if done.returncode == 0:
                failed += check(folder)
    return failed + check_nvml() + measure_overhead()


def has_gpu() -> bool:
    """Return whether PyTorch can use a GPU; a separate process asks, since asking opens the driver."""
    ask = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0


def check(what: str, holds: bool) -> int:
    """Print one check; return 1 if it failed."""
    say(f"{'ok    ' if holds else 'FAILED'} {what}")
    return int(not holds)


def say(line: str) -> None:
    """Print a line and keep it."""
    print(line, flush=True)
    PRINTED.append(line)


def by_torch(_: Path) -> None:
    """Train on the GPU in a loop that mentions capture only to start it."""
    import torch

    import kair_capture as kair

    kair.start(job="check")
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _step in range(STEPS):
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    kair.stop()


def check_torch(folder: Path) -> int:
    """Check that sampled steps have their kernels; return how many checks failed."""
    windows = folder / "run" / "windows"
    found = {path.name for path in windows.glob("*.json")}
    failed = check("torch: steps 5 and 10 are sampled", found == {window_name(5), window_name(10)})
    for step in (5, 10):
        document = json.loads((windows / window_name(step)).read_text())
        failed += check_window("torch", document, least=10)
        steps = document["kair"]["steps"]
        failed += check(f"torch: the file names its step, {step}", [number for number, *_ in steps] == [step])
    return failed + check_device_times(folder)


def check_device_times(folder: Path) -> int:
    """Check that the GPU's own time of a step is recorded by events and no longer than the step."""
    from kair_capture.agent.ring_reader import RingReader
    from kair_capture.ring import Kind

    (ring,) = (folder / "run").glob("rank-0-*-0.ring")
    reader = RingReader(ring)
    records = reader.read()
    reader.close()
    step = records["value"][records["kind"] == Kind.STEP].mean() / 1e6
    own = records["value"][records["kind"] == Kind.DEVICE] / 1e6
    failed = check(f"torch: {len(own)} device times, at least one", len(own) > 0)
    if len(own):
        what = f"torch: a step takes its device {own.mean():.2f} ms of {step:.2f} ms"
        failed += check(what, bool((own > 0).all()) and own.mean() <= 1.2 * step)
    return failed


def kernels_ready() -> Any:  # noqa: ANN401 - a tensor, and torch is not imported above
    """Return numbers on the GPU that KERNELS kernels change."""
    import torch

    values = torch.ones(1 << 22, device="cuda")
    values.mul_(1.0)
    torch.cuda.synchronize()
    return values


def by_kineto(folder: Path) -> None:
    """Run the same kernels under PyTorch's profiler, as a reference for CUPTI's."""
    import torch

    values = kernels_ready()
    with torch.profiler.profile() as profile:
        for _ in range(KERNELS):
            values.mul_(1.0)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(folder / KINETO))


def check_kineto(folder: Path) -> int:
    """Check that every launched kernel was recorded."""
    found = len(kernels_in(folder / KINETO))
    return check(f"kineto: {found} kernels of {KERNELS}", found == KERNELS)


def kernels_in(path: Path) -> list[float]:
    """Return how long each kernel of a Kineto file took, in µs."""
    return [event["dur"] for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "kernel"]


def by_cupti(folder: Path) -> None:
    """Run KERNELS kernels with CUPTI as the only profiler; PyTorch only launches them."""
    import torch

    from kair_capture.cupti import CuptiProfile, load_cupti

    values = kernels_ready()
    profile = CuptiProfile(load_cupti())
    profile.begin_step(5)
    begin = time.time_ns()
    with profile.scope("forward"):
        for _ in range(KERNELS):
            values.mul_(1.0)
    values.cpu()
    torch.cuda.synchronize()
    end = time.time_ns()
    profile.end_step()
    profile.stop()
    (folder / "run" / "windows").mkdir(parents=True)
    details = {"rank": 0, "steps": [[5, 0, begin, end - begin]]}
    profile.save(folder / "run" / "windows" / "rank-0-5-5.json", details)


def check_cupti(folder: Path) -> int:
    """Check CUPTI's kernels: number, stage, copy, and times within the step."""
    document = json.loads((folder / "run" / "windows" / "rank-0-5-5.json").read_text())
    events = document["traceEvents"]
    kernels = [event for event in events if event["cat"] == "kernel"]
    staged = [event for event in kernels if event["args"].get("stage") == "forward"]
    failed = check_window("cupti", document, least=KERNELS)
    failed += check(f"cupti: {KERNELS} kernels are of the stage they were launched in", len(staged) == KERNELS)
    failed += check("cupti: the copy is there", any(event["cat"] == "gpu_memcpy" for event in events))
    failed += check("cupti: nothing was dropped", document["kair"]["cupti"]["dropped"] == 0)
    by_kineto_us = statistics.median(kernels_in(folder.parent / "kineto" / KINETO))
    own = statistics.median(event["dur"] for event in kernels)
    what = f"cupti: a kernel takes {own:.2f} µs in the median, by Kineto {by_kineto_us:.2f}"
    return failed + check(what, abs(own - by_kineto_us) <= 0.2 * by_kineto_us)


def check_nvml() -> int:
    """Check that the driver's readings of every device are there, and that none of the main ones is zero."""
    from kair_capture.nvml import opened

    nvml, trouble = opened()
    if nvml is None:
        return check(f"NVML: {trouble}", holds=False)
    devices = nvml.devices()
    failed = check(f"NVML: driver {nvml.driver_version()}, {len(devices)} devices", len(devices) > 0)
    for device in devices:
        readings = device.readings()
        known = {name: readings[name] for name in NVML if readings.get(name)}
        failed += check(f"NVML: {len(readings)} readings; {known}", len(known) == len(NVML))
    nvml.close()
    return failed


def measure_overhead() -> int:
    """Measure RQ1 of the KAIR paper on this GPU: off, PyTorch's profiler in every step, level 0, sampled."""
    command = [sys.executable, str(OVERHEAD), *OVERHEAD_OPTIONS]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=OVERHEAD_S, check=False)
    except subprocess.TimeoutExpired:
        return check(f"the overhead is measured within {OVERHEAD_S} s", holds=False)
    for line in done.stdout.splitlines():
        say(f"       {line}")
    return check("the overhead is measured", done.returncode == 0)


def check_window(way: str, document: dict[str, Any], least: int) -> int:
    """Check that a window has enough kernels, each after its launch, all within the step's time to 0.1 ms."""
    events, base = document["traceEvents"], document["baseTimeNanoseconds"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    _, _, unix, length = document["kair"]["steps"][0]
    begin, end = (unix - base) / 1000 - 100, (unix + length - base) / 1000 + 100
    launched = [launches.get(event["args"]["correlation"]) for event in kernels]
    failed = check(f"{way}: {len(kernels)} kernels, at least {least}", len(kernels) >= least)
    failed += check(f"{way}: every kernel has its launch", None not in launched)
    paired = zip(kernels, launched, strict=True)
    failed += check(f"{way}: no kernel begins before its launch", all((at or 0) <= one["ts"] for one, at in paired))
    failed += check(
        f"{way}: kernels lie within the step",
        all(begin <= one["ts"] and one["ts"] + one["dur"] <= end for one in kernels),
    )
    return failed


def window_name(step: int) -> str:
    """Return the file of a window of one step."""
    return f"rank-0-{step}-{step}.json"


WAYS = {"torch": (by_torch, check_torch), "kineto": (by_kineto, check_kineto), "cupti": (by_cupti, check_cupti)}

if __name__ == "__main__":
    sys.exit(main())
