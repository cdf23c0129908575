"""Parsing of shell commands for permission rules."""
