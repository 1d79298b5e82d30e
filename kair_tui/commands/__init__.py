"""One module per command: it declares the arguments, calls the engine once, and names the renderer."""
