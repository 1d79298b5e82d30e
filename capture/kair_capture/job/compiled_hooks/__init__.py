"""What the hooks of frameworks share that compile a step as one: JAX and TensorFlow."""
