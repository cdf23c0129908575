"""Servers as users configure them: rows, dialects, trust, other clients, registries, sign-in."""
