"""The environment and sandbox of commands."""
