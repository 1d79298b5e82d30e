"""The investigation shell: one language, one parser and one runner for `kair shell`, runbooks and the full screen."""
