"""What-if traces: the Parquet format of the ByteDance StragglerAnalysis artifact."""
