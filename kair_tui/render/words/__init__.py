"""Results in words: sentences, suggestions and commands made from the engine's figures."""
