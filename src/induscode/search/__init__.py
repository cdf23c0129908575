"""Search for tools, prompts, resources and connector actions by description."""
