"""Other MCP clients' configuration files: where they are, and how to add `indus serve` to them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import config_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from induscode.servers.config.rows import Scope

DEFAULT_ADDRESS = "127.0.0.1:7332"
"""Where `indus serve --http` listens by default."""
CLIENT_NAMES = (
    "claude", "claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "windsurf", "zed", "opencode",
    "qwen", "copilot",
)  # fmt: skip
"""The clients `indus serve --install` supports: the keys of `clients.entry.CLIENTS`, without importing it."""
PROGRAMS = (
    "claude-desktop", "claude-code", "vscode", "cursor", "codex", "gemini", "opencode", "windsurf", "zed", "qwen",
    "amp", "copilot", "cline",
)  # fmt: skip
"""Command-line names of the clients whose files we know."""
_EDITORS = ("Code", "Code - Insiders", "VSCodium")
_CLINE_EXTENSION = ("User", "globalStorage", "saoudrizwan.claude-dev", "settings")
_OPENCODE = ("opencode.json", "opencode.jsonc")
_PROJECT_FILES: Mapping[str, Sequence[str]] = {
    "claude-code": (".mcp.json",),
    "vscode": (".vscode/mcp.json",),
    "cursor": (".cursor/mcp.json",),
    "codex": (".codex/config.toml",),
    "gemini": (".gemini/settings.json",),
    "opencode": (*_OPENCODE, *(f".opencode/{name}" for name in _OPENCODE)),
    "zed": (".zed/settings.json",),
    "qwen": (".qwen/settings.json",),
    "amp": (".amp/settings.json",),
}


def config_places(program: str, cwd: str, environ: Mapping[str, str]) -> Sequence[tuple[str, Scope]]:
    """List a client's files, existing or not. The first one of each scope is the usual one."""
    home = environ.get("HOME") or os.path.expanduser("~")
    config = config_home(environ)
    support = os.path.join(home, "Library", "Application Support")
    # Desktop applications use the first one on their system.
    roots = (support, config) if sys.platform == "darwin" else (config, support)
    join = os.path.join
    editors = [join(root, name) for root in roots for name in _EDITORS]
    gemini = environ.get("GEMINI_CLI_HOME") or home
    opencode = [join(config, "opencode", name) for name in (*_OPENCODE, "config.json")]
    named = environ.get("OPENCODE_CONFIG")
    cline = environ.get("CLINE_DATA_DIR") or join(home, ".cline", "data")
    user: dict[str, Sequence[str]] = {
        "claude-desktop": [join(root, "Claude", "claude_desktop_config.json") for root in roots],
        "claude-code": [join(environ.get("CLAUDE_CONFIG_DIR") or home, ".claude.json")],
        "vscode": [join(editor, "User", "mcp.json") for editor in editors],
        "cursor": [join(home, ".cursor", "mcp.json")],
        "codex": [join(environ.get("CODEX_HOME") or join(home, ".codex"), "config.toml")],
        "gemini": [join(gemini, ".gemini", "settings.json")],
        "opencode": [named, *opencode] if named else opencode,
        "windsurf": [join(home, ".codeium", "windsurf", "mcp_config.json")],
        "zed": [join(config, "zed", "settings.json")],
        "qwen": [join(home, ".qwen", "settings.json")],
        "amp": [join(config, "amp", "settings.json")],
        "copilot": [join(environ.get("COPILOT_HOME") or join(home, ".copilot"), "mcp-config.json")],
        "cline": [
            join(cline, "settings", "cline_mcp_settings.json"),
            *(join(editor, *_CLINE_EXTENSION, "cline_mcp_settings.json") for editor in editors),
        ],
    }
    project = [join(cwd, name) for name in _PROJECT_FILES.get(program, ())]
    return (*((path, "user") for path in user[program]), *((path, "project") for path in project))
