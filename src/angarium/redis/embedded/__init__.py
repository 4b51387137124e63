"""The Redis or Valkey server that Angarium starts in its home folder."""
