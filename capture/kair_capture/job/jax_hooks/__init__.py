"""How capture sees a JAX job: hooks that find steps, compilation and waits by themselves."""
