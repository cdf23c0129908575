"""Consent to servers configured by a project.

A project's file can name any command, so nothing in it starts until the user has agreed to that exact row of that
file. Consent is stored outside of projects, as a digest. A changed row needs new consent.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from indusagi.core.app_dirs import PrivateJsonFile, state_dir
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.secrets.names import hide_secrets, looks_secret
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from induscode.core.consent import Consent, ConsentState, build_consent, digest_facts
from induscode.servers.config.auth_fields import format_auth
from induscode.servers.config.expansion import UnresolvedVariableError, expand, reference_pattern
from induscode.servers.config.references import find_references, quote, show_url, show_value
from induscode.servers.config.rows import SWITCHES, TYPES, ServerRow

_VERSION = 1
_MAX_BYTES = 16 * 1024 * 1024
_STEERING = re.compile(
    r"(?:npm|uv|pip|ld|dyld|docker|containers?|git|ssl|xdg|bun|deno|yarn|corepack)_.*|python.*|bash_env|env|ifs|shell"
    r"|node_(?:options|path|extra_ca_certs|tls_reject_unauthorized)|path|home|tmpdir|perl5(?:lib|opt)|ruby(?:lib|opt)"
    r"|(?:http|https|all|no)_proxy|requests_ca_bundle|curl_ca_bundle|_?java(?:_tool)?_options|classpath",
    re.IGNORECASE,
)
"""Variables that control what a launcher downloads or a program loads."""
_CODE_FLAGS = {
    "npx": ("-c", "--call"),
    "npm": ("-c", "exec"),
    "node": ("-e", "--eval", "-p", "--print", "-r", "--require"),
    "python": ("-c",),
    "uvx": ("--from", "--with"),
    "uv": ("--with",),
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh", "fish"), ("-c",)),
    "deno": ("eval",),
    "perl": ("-e",),
    "ruby": ("-e",),
    "env": ("-S", "--split-string"),
}
"""Options that make a harmless-looking launcher run code from its arguments."""
_SHOWN = frozenset(
    (
        *("name", "type", "transport", *SWITCHES, "command", "args", "env", "environment", "cwd", "env_vars"),
        *("url", "serverUrl", "httpUrl", "proxy", "headers", "http_headers", "env_http_headers"),
        *("sandbox", "bearer_token_env_var", "auth", "oauth", "headersHelper", "headers_helper"),
    )
)
"""Fields the prompt describes in words, or that have no effect."""


def server_facts(config: ServerConfig) -> JsonObject:
    """Return the facts of a configuration, including variable values."""
    if isinstance(config, StdioServerConfig):
        return {
            "id": config.id,
            "transport": config.kind,
            "argv": [config.command, *config.args],
            "cwd": config.cwd,
            "env": dict(config.env),
        }
    headers: list[JsonValue] = [*sorted(config.headers)]
    return {"id": config.id, "transport": config.kind, "url": config.url, "headers": headers, "proxy": config.proxy}


def consent_facts(row: ServerRow) -> JsonObject:
    """Return everything consent to a row covers: the row as written, and whatever determines the program it runs.

    Excludes the values of other variables, since they're the user's and tokens get renewed, and the on/off switch.
    """
    config, facts = row.config, server_facts(row.config)
    covered: JsonObject = {"name": row.id}
    if isinstance(config, StdioServerConfig):
        covered |= {"command": config.command, "args": [*config.args], "env": dict(config.env), "cwd": config.cwd}
        if config.replicas > 1:
            facts["replicas"] = config.replicas
    else:
        covered |= {"url": config.url, "proxy": config.proxy, "headers": dict(config.headers)}
        if config.headers:
            facts["header_values"] = dict(config.headers)
    if row.auth is not None:
        facts["auth"] = row.auth
    references: list[JsonValue] = [[reference.place, reference.written] for reference in find_references(row)]
    if references:
        facts["references"] = references
        if row.expansion != "shell":
            facts["expansion"] = row.expansion
        facts |= {f"{place}, now": value for place, value in find_programs(row).items()}
        facts |= {f"file {path}": content for path, content in read_project_files(row).items()}
    for key, value in row.written.items():
        is_known_type = key in {"type", "transport"} and isinstance(value, str) and value in TYPES
        if not is_known_type and key not in SWITCHES and (key not in covered or covered[key] != value):
            facts[f"field {key}"] = value
    return facts


def server_identity(config: ServerConfig) -> str:
    """Digest the identity of a server, which owns its pins, regardless of the file.

    Excludes variable values: renewing a token doesn't change the server.
    """
    facts = server_facts(config)
    if isinstance(config, StdioServerConfig):
        facts["env"] = [*sorted(config.env)]
    return digest_facts(facts)


def _find_code_flag(config: StdioServerConfig) -> str | None:
    """Find the option that makes a launcher run code from its arguments; `-lc` and `--call=x` count too."""
    launcher = os.path.basename(config.command).rstrip("0123456789.")
    for flag in _CODE_FLAGS.get(launcher, ()):
        for word in config.args:
            is_bundled = len(flag) == 2 and word.startswith("-") and word[1:].isalpha() and word.endswith(flag[1])
            if word == flag or is_bundled or (flag.startswith("-") and word.startswith(f"{flag}=")):
                return flag
    return None


def steers_code(name: str) -> bool:
    """Tell whether a variable controls what a launcher downloads or which code a program loads."""
    return _STEERING.fullmatch(name) is not None


def find_programs(row: ServerRow) -> Mapping[str, str | None]:
    """Expand the references that determine which program runs, keyed by place. `None`: a variable has no value."""
    config, texts = row.config, dict[str, str]()
    if isinstance(config, StdioServerConfig):
        texts["the command"] = config.command
        if _find_code_flag(config) is not None:
            texts |= {f"argument {number}": text for number, text in enumerate(config.args, 1)}
    words = (row.auth or {}).get("header_command")
    for number, word in enumerate(words if isinstance(words, list) else (), 1):
        texts[f"word {number} of its header command"] = str(word)
    context, values = row.make_context(os.environ), dict[str, str | None]()
    for place, text in texts.items():
        if reference_pattern(row.expansion).search(text):
            try:
                values[place] = expand(text, row.expansion, context)
            except UnresolvedVariableError:
                values[place] = None
    return values


def read_project_files(row: ServerRow) -> Mapping[str, str | None]:
    """Read the project files a row refers to, keyed by path. `None`: unreadable. Blocks.

    Files elsewhere belong to the user.
    """
    context, files = row.make_context(os.environ), dict[str, str | None]()
    folder = os.path.join(os.path.realpath(context.folder), "")
    for reference in find_references(row):
        path = os.path.abspath(os.path.join(context.folder, os.path.expanduser(reference.name)))
        entry = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if reference.is_file and any(one.startswith(folder) for one in (entry, os.path.realpath(path))):
            try:
                files[reference.name] = context.file(reference.name)
            except UnresolvedVariableError:
                files[reference.name] = None
    return files


def describe_row(row: ServerRow) -> Consent:
    """Build the prompt for starting a server."""
    subject = f"server {row.id!r} of {os.path.realpath(row.origin.file)}"
    return build_consent(subject, consent_facts(row), _lines(row), _warnings(row))


class TrustStore:
    """This user's consents, in one private file outside of projects."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """The path of the file; raises `OSError` without a home directory."""
        return self._path or os.path.join(state_dir(), "trust.json")

    def _file(self) -> PrivateJsonFile[_Consents]:
        return PrivateJsonFile(self.path, _MAX_BYTES, _parse_consents, _dump_consents)

    def consent(self, row: ServerRow) -> ConsentState:
        """Look up the consent to the current row. A damaged store has none."""
        store, _ = self._file().read()
        known = store.rows.get(_row_key(row.origin.file, row.id))
        if known is None:
            return "unknown"
        return "trusted" if known.get("digest") == digest_facts(consent_facts(row), store.salt) else "changed"

    def approve(self, row: ServerRow, digest: str) -> None:
        """Store the consent to a server. `digest` identifies the prompt the user accepted.

        Raises:
            ConsentChangedError: The user accepted something else.
            OSError: The file can't be written.
        """
        describe_row(row).check_digest(digest)
        file, facts = row.origin.file, consent_facts(row)
        with self._file().change() as store:
            parts: JsonObject = {name: digest_facts(value, store.salt) for name, value in facts.items() if name != "id"}
            store.rows[_row_key(file, row.id)] = {
                "file": os.path.realpath(file),
                "server": row.id,
                "digest": digest_facts(facts, store.salt),
                "parts": parts,
                "at": iso_utc(now_ms()),
            }

    def has_consent(self, file: str, server: str) -> bool:
        """Tell whether a server in a file ever got consent, even if it has changed since."""
        store, _ = self._file().read()
        return _row_key(file, server) in store.rows

    def revoke(self, file: str, server: str) -> bool:
        """Remove a consent and tell whether it existed.

        Raises:
            OSError: The file can't be written.
        """
        with self._file().change() as store:
            return store.rows.pop(_row_key(file, server), None) is not None

    def question(self, row: ServerRow) -> Consent:
        """Build the prompt for a server, listing facts that changed since an earlier consent."""
        store, _ = self._file().read()
        known = store.rows.get(_row_key(row.origin.file, row.id))
        parts = known.get("parts") if known is not None else None
        question = describe_row(row)
        if not is_json_object(parts):
            return question
        present = {name: digest_facts(value, store.salt) for name, value in consent_facts(row).items() if name != "id"}
        names = [name for name in {**present, **parts} if present.get(name) != parts.get(name)]
        changed = (f"CHANGED since it was consented to: {quote(name)[1:-1]}" for name in names)
        return replace(question, lines=(*question.lines, *changed))


# -- the prompt -------------------------------------------------------------------------------


def _lines(row: ServerRow) -> list[str]:
    config, rule = row.config, row.expansion

    def line(kind: str, name: str, value: str) -> str:
        shown = show_value(value, rule)
        return f"{kind}: {quote(name)} " + ("(a value is set)" if shown is None else quote(shown))

    if isinstance(config, StdioServerConfig):
        argv = [f"argument: {quote(argument)}" for argument in config.args]
        cwd = [f"directory: {quote(config.cwd)}"] if config.cwd else []
        env = [line("variable", name, value) for name, value in config.env.items()]
        env += [f"variable: {quote(name)} (handed on from your environment)" for name in row.secrets]
        may = "off: it can touch everything you can" if config.sandbox is None else config.sandbox.describe()
        return [
            f"command: {quote(config.command)}",
            *argv,
            *cwd,
            *env,
            f"sandbox: {quote(may)[1:-1]}",
            *_more_lines(row),
        ]
    headers = [line("header", name, value) for name, value in config.headers.items()]
    proxy = [f"proxy: {quote(show_url(config.proxy, rule))}"] if config.proxy else []
    auth = row.auth or {}
    signing_in = [
        f"sign-in, {name}: " + ("(a value is set)" if (shown := format_auth(name, value)) is None else quote(shown))
        for name, value in auth.items()
    ]
    return [f"address: {quote(show_url(config.url, rule))}", *proxy, *headers, *signing_in, *_more_lines(row)]


def _more_lines(row: ServerRow) -> Iterator[str]:
    """Yield the current values of variables and files that determine what runs, then the other fields."""
    is_secret = any(reference.looks_secret for reference in find_references(row))
    for place, value in find_programs(row).items():
        if value is not None:
            yield f"{place}, now: " + ("(a value is set)" if is_secret else quote(value))
    for path, content in read_project_files(row).items():
        yield f"file {quote(path)}: " + ("it can't be read" if content is None else f"SHA-256 {digest_facts(content)}")
    for key, value in row.written.items():
        if key not in _SHOWN:
            is_hidden = isinstance(value, dict) or looks_secret(key)
            shown = "(a value is set)" if is_hidden else hide_secrets(json.dumps(value))
            yield f"{quote(key)[1:-1]}: {shown}"


def _warnings(row: ServerRow) -> tuple[str, ...]:
    config = row.config
    disclosed = [reference.warning for reference in find_references(row) if reference.looks_secret]
    if not isinstance(config, StdioServerConfig):
        encrypted = config.url.lower().startswith("https://")
        runs = "It runs a command on this machine, whose output is sent to the server."
        command = [runs] if row.auth is not None and "header_command" in row.auth else []
        return (*disclosed, *command, *([] if encrypted else ["The address is not encrypted."]))
    code = [f"The variable {name} can change which code runs." for name in config.env if steers_code(name)]
    warnings = [*disclosed, *code]
    flag = _find_code_flag(config)
    if flag is not None:
        warnings.append(f"{os.path.basename(config.command)} {flag} runs whatever its arguments say.")
    if os.sep in config.command and not os.path.isabs(config.command):
        warnings.append("The command is a file of the project itself.")
    return tuple(warnings)


# -- the file ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Consents:
    salt: str
    rows: dict[str, JsonObject]


def _parse_consents(document: JsonValue) -> tuple[_Consents, bool]:
    salt = document.get("salt") if is_json_object(document) else None
    rows = document.get("approved") if is_json_object(document) else None
    if not isinstance(salt, str) or not is_json_object(rows):
        return _Consents(secrets.token_hex(16), {}), True
    return _Consents(salt, {key: row for key, row in rows.items() if is_json_object(row)}), False


def _dump_consents(consents: _Consents) -> JsonValue:
    return {"version": _VERSION, "salt": consents.salt, "approved": dict(sorted(consents.rows.items()))}


def _row_key(file: str, server: str) -> str:
    """Build the key of a consent. A link and its target differ: commands may be relative to the file."""
    entry = os.path.join(os.path.realpath(os.path.dirname(file)), os.path.basename(file))
    target = os.path.realpath(file)
    return digest_facts([target, server] if entry == target else [target, server, entry])
