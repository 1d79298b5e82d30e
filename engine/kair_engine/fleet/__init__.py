"""All jobs of a store together: how often stragglers occur, what they cost, and on which hosts."""
