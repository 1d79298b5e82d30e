"""Models pipelines as published: the what-if analysis of recordings of pipeline stages and operation types."""
