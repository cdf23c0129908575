"""The command line as users see it: lines, tables, JSON, questions, and how a long-running command ends."""
