"""Search over chunk sizes, layer ranges, placements and run-ahead: schedules, and how far any other could be ahead."""
