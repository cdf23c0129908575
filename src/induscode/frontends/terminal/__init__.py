"""The interactive session in a terminal: input line, live region, finished output."""
