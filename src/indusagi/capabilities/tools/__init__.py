"""The twelve native tools."""
