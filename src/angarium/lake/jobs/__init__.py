"""The lake's jobs: pure functions from DataFrame to DataFrame, and what they know of the rooms."""
