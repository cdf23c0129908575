"""Background commands, one table per session."""
