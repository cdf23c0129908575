"""Programs: one table that permissions, saved rules and checkpoints read."""
