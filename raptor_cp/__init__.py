"""raptor-cp: schedules neural networks on processing-in-memory chips."""
