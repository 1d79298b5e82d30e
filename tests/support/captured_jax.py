"""A data-parallel JAX job, one of its processes, as `kair capture run` starts it: nothing in it knows of capture.

    python captured_jax.py RANK RANKS PORT STEPS SLOW_RANK OUT [SAYS]

One rank is slow to load its batches. What the process saw is left as JSON in OUT. With
`marks` for SAYS it marks its steps for JAX's profiler; with `profiles` it profiles step 6 itself.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, LAYERS, BATCH = 192, 4, 64


def loss_of(weights: list[jax.Array], batch: jax.Array) -> jax.Array:
    for weight in weights:
        batch = jnp.tanh(batch @ weight)
    return (batch**2).mean()


@jax.jit
def train_step(weights: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
    with jax.named_scope("optimizer"):
        return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss


@jax.jit
def evaluate(weights: list[jax.Array], batch: jax.Array) -> jax.Array:
    return loss_of(weights, batch)


def main() -> None:
    rank, ranks, port, steps, slow = map(int, sys.argv[1:6])
    out, says = Path(sys.argv[6]), sys.argv[7:]
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    random = np.random.default_rng(5)
    weights = [
        jax.device_put(random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH, everywhere) for _ in range(LAYERS)
    ]
    random = np.random.default_rng(rank)
    losses = []
    for step in range(steps):
        with jax.profiler.TraceAnnotation("load_batch"):
            values = random.normal(size=(BATCH, WIDTH)).astype(np.float32)
            if rank == slow and step >= 3:
                time.sleep(0.06)
            batch = jax.make_array_from_process_local_data(split, values)
        if "profiles" in says and step == 6:
            jax.profiler.start_trace(str(out / f"own-{rank}"))
        if "marks" in says:
            with jax.profiler.StepTraceAnnotation("train", step_num=1000 + step):
                weights, loss = train_step(weights, batch)
                losses.append(float(loss).hex())
        else:
            weights, loss = train_step(weights, batch)
            losses.append(float(loss).hex())
        if "profiles" in says and step == 6:
            jax.profiler.stop_trace()
        if step % 5 == 0:
            evaluate(weights, batch).block_until_ready()
    seen = {
        "losses": losses,
        "lowers": "dot" in train_step.lower(weights, batch).as_text(),
        "name": train_step.__name__,
    }
    (out / f"rank-{rank}.json").write_text(json.dumps(seen))


main()
