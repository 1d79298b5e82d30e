"""How capture sees a TensorFlow job: hooks that find steps, tracing and waits by themselves."""
