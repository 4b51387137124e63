"""One load through every room while everything around it is hurt, and a verdict for each room."""
