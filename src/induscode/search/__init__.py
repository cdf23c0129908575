"""Search of tools, prompts, resources and connector actions by what they do."""
