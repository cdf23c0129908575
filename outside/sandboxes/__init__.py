"""Real servers in every sandbox profile."""
