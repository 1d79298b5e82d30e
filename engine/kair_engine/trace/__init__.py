"""The recorded job as plain data: its operations table, one step's arrays, and order in time within a rank."""
