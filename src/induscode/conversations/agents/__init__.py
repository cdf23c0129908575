"""Sub-agents: their files, their tasks, and the sub-sessions that run them for the `task` card."""
