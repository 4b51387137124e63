"""Keys of the pickup room. None is fixed from outside; the room declares its own here."""
