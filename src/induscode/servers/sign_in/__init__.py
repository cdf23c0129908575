"""Signing in to servers with a person: prompts for a browser, another device or a pasted address, and sign-out."""
