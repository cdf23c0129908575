"""Implementations of the native tools; the first call of a tool imports its module."""
