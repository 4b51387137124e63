"""One load through every module while faults are injected, and a verdict for each module."""
