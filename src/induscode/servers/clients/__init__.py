"""Other MCP clients' configuration files: where they are, and how to add `indus serve` to them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import config_home
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from induscode.servers.config.rows import Scope


DEFAULT_ADDRESS = "127.0.0.1:7332"
"""Where `indus serve --http` listens by default."""
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


TOKEN_VARIABLE = "INDUS_SERVE_TOKEN"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BRACED = re.compile(r"\$\{[^}]*\}")
_DOLLARED = re.compile(r"\$(?:\w+|\{[^}]*\})")
_OPENCODE_WORD = re.compile(r"\{(?:env|file):[^}]*\}")
_COMMANDS = frozenset({"indus", "indusr", "indusagir", "indus-deck"})
_MODULES = frozenset({"induscode", "induscode.__main__"})


@record(kw_only=True)
class Address:
    """The address of a gateway over HTTP."""

    url: str
    with_token: bool


@record(kw_only=True)
class Entry:
    """The command that starts the gateway, plus its address if it serves over HTTP."""

    name: str
    command: Sequence[str]
    address: Address | None = None


@record
class Client:
    """An MCP client: format and location of an entry in its configuration."""

    title: str
    program: str
    """Its name in `PROGRAMS`."""
    place: str
    """Where to paste an entry by hand."""
    keys: tuple[str, ...] = ("mcpServers",)
    """The path to the object with the servers."""
    local: JsonObject = field(default_factory=dict[str, "JsonValue"])
    """Fields of a row before its command."""
    remote: JsonObject = field(default_factory=dict[str, "JsonValue"])
    """Fields of a row before its address."""
    more: JsonObject = field(default_factory=dict[str, "JsonValue"])
    """Fields at the end of a row."""
    url_key: str = "url"
    reference: str = ""
    """How its configuration refers to the token. `NAME` stands for the name of the entry."""
    replaces: re.Pattern[str] | None = None
    """Command-line text the client replaces with a variable's value; no client can escape it."""
    lacks: tuple[str, ...] = ()
    """Which of `http` and `token` its configuration can't express."""
    inputs: Callable[[Entry], Sequence[JsonObject]] = field(default=lambda _: ())
    """Questions for its user, under the key `inputs`."""
    add_command: Callable[[Entry], Sequence[str]] | None = None
    """The client's CLI command that adds the entry, if any."""

    @property
    def is_toml(self) -> bool:
        """Whether its configuration is TOML (https://toml.io/en/v1.0.0). The others are JSON, some with comments."""
        return self.program == "codex"

    def row(self, entry: Entry) -> JsonObject:
        """Build the row of an entry."""
        address = entry.address
        if address is None:
            program, *arguments = entry.command
            command: JsonObject = {"command": program, "args": [*arguments]}
            if self.program == "opencode":
                command = {"command": [*entry.command]}
            return {**self.local, **command, **self.more}
        token: JsonObject = {}
        if address.with_token and self.is_toml:
            token["bearer_token_env_var"] = TOKEN_VARIABLE
        elif address.with_token:
            token["headers"] = {"Authorization": f"Bearer {self.reference.replace('NAME', entry.name)}"}
        return {**self.remote, self.url_key: address.url, **token, **self.more}

    def format(self, entry: Entry) -> str:
        """Format a configuration with just this entry."""
        if self.is_toml:
            return format_toml_table(self.keys[0], entry.name, self.row(entry))
        document: JsonObject = {entry.name: self.row(entry)}
        for key in reversed(self.keys):
            document = {key: document}
        inputs = self.inputs(entry)
        return json.dumps({"inputs": [*inputs], **document} if inputs else document, indent=2)

    def find_obstacle(self, entry: Entry) -> str | None:
        """Return the reason this client can't express an entry, if any."""
        address = entry.address
        if address is not None:
            if "http" in self.lacks:
                return f"{self.title} starts commands only: leave out --http"
            if "token" in self.lacks and address.with_token:
                return f"{self.title} has no way to name a token: give --no-token, or use no --http"
            return None
        for word in entry.command:
            try:
                word.encode()
            except UnicodeEncodeError:
                return f"{word!r} is not UTF-8, as the file of a client has to be"
            match = None if self.replaces is None else self.replaces.search(word)
            if match is not None:
                return f"{word!r} would be read with a value in the place of {match[0]!r}; give it another name"
        return None


def build_own_command() -> Sequence[str]:
    """Return the command line that starts this program by absolute path."""
    program = sys.argv[0]
    if os.path.basename(program) == "__main__.py":
        return (sys.executable, "-m", "induscode")
    path = program if os.path.dirname(program) else shutil.which(program)
    return (os.path.abspath(path or program),)


def is_own_row(row: JsonValue, url: str | None = None, name: str = "") -> bool:
    """Tell whether a row of a client's configuration came from one of our entries.

    A command counts if it runs `indus serve`, at any path and with any launcher (`uvx indus-deck serve`, `python -m
    induscode serve`, a shell). An address counts if it's `url` or comes with our token: its variable, or `name`'s
    input for it.
    """
    if not is_json_object(row):
        return False
    addresses = [row.get(key) for key in ("url", "httpUrl", "serverUrl")]
    if any(addresses):
        marks = (TOKEN_VARIABLE, _format_input(name))
        return (url is not None and url in addresses) or any(mark in json.dumps(row) for mark in marks)
    command = row.get("command")
    if is_json_object(command):  # older versions of Zed
        row, command = command, command.get("path")
    arguments = row.get("args")
    first = command if isinstance(command, list) else [command]
    return _runs_gateway([*first, *(arguments if isinstance(arguments, list) else ())])


def _runs_gateway(words: Sequence[JsonValue]) -> bool:
    """Tell whether a command line runs `indus serve`, directly or through launchers and shells."""
    texts = [part for word in words if isinstance(word, str) for part in _split_word(word)]
    for index, word in enumerate(texts):
        # `indus-deck@1.2`, `indus-deck[all]==1.2`, `C:\\bin\\indus.exe`
        program = re.split(r"[\\/]", re.split(r"[@\[=<>~!]", word)[0])[-1].lower().removesuffix(".exe")
        is_ours = program in _COMMANDS or (texts[index - 1 : index] == ["-m"] and word in _MODULES)
        if is_ours and "serve" in texts[index + 1 :]:
            return True
    return False


def _split_word(word: str) -> Sequence[str]:
    """Split a word that is itself a command line, as after `sh -c`."""
    try:
        return shlex.split(word) if " " in word else [word]
    except ValueError:  # an open quote
        return word.split()


def format_toml_table(key: str, name: str, row: JsonObject) -> str:
    """Format a table of strings and arrays of strings (https://toml.io/en/v1.0.0#table)."""
    lines = [f"[{key}.{name if _BARE_KEY.fullmatch(name) else format_toml_string(name)}]"]
    for field_name, value in row.items():
        if isinstance(value, list):
            text = f"[{', '.join(format_toml_string(str(item)) for item in value)}]"
        else:
            text = format_toml_string(str(value))
        lines.append(f"{field_name} = {text}")
    return "\n".join(lines)


def format_toml_string(text: str) -> str:
    """Format a basic string (https://toml.io/en/v1.0.0#string). TOML lacks the surrogate pairs JSON escapes use."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04X}", quoted)


# -- the clients' own questions and commands --------------------------------------------------


def _format_input(name: str) -> str:
    return f"${{input:{name}-token}}"


def _vscode_inputs(entry: Entry) -> Sequence[JsonObject]:
    if entry.address is None or not entry.address.with_token:
        return ()
    question: JsonObject = {
        "type": "promptString",
        "id": f"{entry.name}-token",
        "description": f"Token of {entry.name}",
        "password": True,
    }
    return (question,)


def _claude_add(entry: Entry) -> Sequence[str]:
    row = json.dumps(_CLAUDE_CODE.row(entry))
    return ("claude", "mcp", "add-json", "--scope", "user", entry.name, row)


def _build_add_command(entry: Entry, program: str, token: Sequence[str]) -> Sequence[str]:
    start = (program, "mcp", "add", entry.name)
    if entry.address is None:
        return (*start, "--", *entry.command)
    return (*start, "--url", entry.address.url, *(token if entry.address.with_token else ()))


def _gemini_add(entry: Entry, program: str = "gemini") -> Sequence[str]:
    start = (program, "mcp", "add", "--scope", "user")
    if entry.address is None:
        return (*start, entry.name, entry.command[0], "--", *entry.command[1:])
    header = f"Authorization: Bearer ${TOKEN_VARIABLE}"
    token = ("--header", header) if entry.address.with_token else ()
    return (*start, "--transport", "http", entry.name, entry.address.url, *token)


# -- the clients ------------------------------------------------------------------------------

_CLAUDE_CODE = Client(
    "Claude Code", "claude-code", ".mcp.json of a project, or ~/.claude.json",
    local={"type": "stdio"}, remote={"type": "http"}, reference=f"${{{TOKEN_VARIABLE}}}", replaces=_BRACED,
    add_command=_claude_add,
)  # fmt: skip
_GEMINI = Client(
    "Gemini CLI", "gemini", ".gemini/settings.json of a project, or ~/.gemini/settings.json",
    url_key="httpUrl", reference=f"${TOKEN_VARIABLE}", replaces=_DOLLARED, add_command=_gemini_add,
)  # fmt: skip
_CLIENTS = (
    _CLAUDE_CODE,
    Client(
        "Claude Desktop", "claude-desktop", "claude_desktop_config.json (Settings, Developer, Edit Config)",
        lacks=("http",),
    ),
    Client(
        "Cursor", "cursor", ".cursor/mcp.json of a project, or ~/.cursor/mcp.json",
        reference=f"${{env:{TOKEN_VARIABLE}}}", replaces=_BRACED,
    ),
    Client(
        "VS Code", "vscode", ".vscode/mcp.json of a workspace, or 'MCP: Open User Configuration'", ("servers",),
        local={"type": "stdio"}, remote={"type": "http"}, reference=_format_input("NAME"), replaces=_BRACED,
        inputs=_vscode_inputs,
    ),
    Client(
        "Codex", "codex", "~/.codex/config.toml", ("mcp_servers",),
        add_command=partial(_build_add_command, program="codex", token=("--bearer-token-env-var", TOKEN_VARIABLE)),
    ),
    _GEMINI,
    Client(
        "Windsurf", "windsurf", "~/.codeium/windsurf/mcp_config.json",
        url_key="serverUrl", reference=f"${{env:{TOKEN_VARIABLE}}}", replaces=_BRACED,
    ),
    Client("Zed", "zed", "settings.json of Zed (zed: open settings)", ("context_servers",), lacks=("token",)),
    Client(
        "opencode", "opencode", "opencode.json of a project, or ~/.config/opencode/opencode.json", ("mcp",),
        local={"type": "local"}, remote={"type": "remote"}, more={"enabled": True},
        reference=f"{{env:{TOKEN_VARIABLE}}}", replaces=_OPENCODE_WORD, add_command=partial(
            _build_add_command, program="opencode", token=("--header", f"Authorization=Bearer {{env:{TOKEN_VARIABLE}}}")
        ),
    ),
    replace(
        _GEMINI, title="Qwen Code", program="qwen", place=".qwen/settings.json of a project, or ~/.qwen/settings.json",
        add_command=partial(_gemini_add, program="qwen"),
    ),
    Client(
        "Copilot CLI", "copilot", "~/.copilot/mcp-config.json",
        local={"type": "local"}, remote={"type": "http"}, more={"tools": ["*"]},
        reference=f"${{{TOKEN_VARIABLE}}}", replaces=_BRACED,
    ),
)  # fmt: skip
CLIENTS: Mapping[str, Client] = {"claude": _CLAUDE_CODE, **{client.program: client for client in _CLIENTS}}
"""Clients by command-line name. `claude` is Claude Code."""
