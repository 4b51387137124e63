"""The dashboard: a page for people, what it shows of the whole building, and its static files."""
