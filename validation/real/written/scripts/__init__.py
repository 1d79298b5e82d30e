"""Training scripts, each as somebody wrote it: `build(options, rank, ranks, hooks)` is one rank's part."""
