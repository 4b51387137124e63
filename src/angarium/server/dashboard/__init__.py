"""The dashboard: its API operations and its static files."""
