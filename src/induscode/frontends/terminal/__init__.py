"""The interactive terminal session: input line, live region, finished output."""
