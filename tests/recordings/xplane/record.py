"""Records these profiles: a small data-parallel job of JAX on CPU devices, of which one process loads its input slowly.

`python record.py FOLDER PROCESSES DEVICES [SLOW]` runs PROCESSES processes of DEVICES devices each and writes
FOLDER/nodeN.xplane.pb.gz. Needs `jax[cpu]`, which Kair itself does not.
"""

import gzip
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, WIDTH, BATCH, SLOW_S = 6, 128, 64, 0.02


def main() -> None:
    folder, processes, devices, *slow = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        commands = [
            [sys.executable, __file__, "worker", scratch, str(number), processes, devices, *slow]
            for number in range(int(processes))
        ]
        for worker in [subprocess.Popen(command) for command in commands]:
            worker.wait()
        Path(folder).mkdir(parents=True, exist_ok=True)
        for number in range(int(processes)):
            (found,) = Path(scratch, str(number)).rglob("*.xplane.pb")
            text = gzip.compress(found.read_bytes(), 9, mtime=0)
            Path(folder, f"node{number}.xplane.pb.gz").write_bytes(text)


def worker(scratch: str, number: int, processes: int, devices: int, slow: int) -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    # The profile holds where each operation was written: the file's name is enough.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize("localhost:12391", processes, number)
    mesh = Mesh(jax.devices(), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))

    def loss(weights, batch):  # noqa: ANN001, ANN202
        with jax.named_scope("model"):
            for weight in weights:
                batch = jnp.tanh(batch @ weight)
        return jnp.mean(batch * batch)

    @jax.jit
    def train_step(weights, batch):  # noqa: ANN001, ANN202
        value, gradients = jax.value_and_grad(loss)(weights, batch)
        with jax.named_scope("optimizer"):
            weights = jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, gradients)
        return weights, value

    def load(step: int) -> jax.Array:
        local = np.full((BATCH * devices, WIDTH), step + 1, np.float32)
        return jax.make_array_from_process_local_data(split, local, (BATCH * devices * processes, WIDTH))

    weights = jax.device_put([jnp.ones((WIDTH, WIDTH)) / WIDTH] * 2, NamedSharding(mesh, PartitionSpec()))
    batch = load(0)
    for _ in range(3):
        weights, value = train_step(weights, batch)
        value.block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(Path(scratch, str(number))), profiler_options=options)
    for step in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=10 + step):
            with jax.profiler.TraceAnnotation("input"):
                batch = load(step)
                if slow == number:
                    time.sleep(SLOW_S)
            weights, value = train_step(weights, batch)
            value.block_until_ready()
    jax.profiler.stop_trace()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2], *map(int, (*sys.argv[3:], -1)[:4]))
    else:
        main()
