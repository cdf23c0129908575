"""What a command may see and touch: its environment and its sandbox."""
