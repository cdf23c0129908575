"""What the native tools do; each module is imported by the first call of its tool."""
