"""The twelve native tools: one table, and every view of it derived."""
