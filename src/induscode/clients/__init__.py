"""Configuration files of other MCP clients: where they are, and how `indus serve` is added to them."""

CLIENT_NAMES = (
    "claude",
    "claude-code",
    "claude-desktop",
    "cursor",
    "vscode",
    "codex",
    "gemini",
    "windsurf",
    "zed",
    "opencode",
)
"""The clients of `indus serve --install`: the keys of `clients.entry.CLIENTS`, without loading it."""
