"""Consent to servers configured by a project.

A project's file can name any command, so nothing in it starts until the user has agreed to that exact row of that
file. Consent is stored outside of projects, as a digest. A changed row needs new consent.

Wherever users look at or decide about a server, they see references as written, the variables and files that expansion
replaces with their values: they consent to the variable's name, not its value. Literal values next to it stay hidden.
References are everything `dialects.expand` replaces (both use the same patterns), plus names in a default, which
another program reading the file may replace.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from indusagi.core.app_dirs import PrivateJsonFile, state_dir
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import REDACTED, hide_secrets, looks_secret, parse_secret
from indusagi.core.text import quote_for_shell
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.redaction import find_option_secrets
from induscode.core.consent import Consent, ConsentState, build_consent, digest_facts
from induscode.servers.config.dialects import (
    PATTERNS,
    Expansion,
    ReferenceKind,
    UnresolvedVariableError,
    expand,
    parse_reference,
)
from induscode.servers.config.rows import SWITCHES, TYPES, ServerRow, format_auth, iter_auth_texts
from induscode.servers.labels import format_labels

_NESTED = re.compile(r"\$\{?(?:env:)?([A-Za-z_][A-Za-z0-9_]*)|\{(?:env|file):([^}]*)")
"""A reference inside another one's default."""
_SCHEME_WORD = re.compile(r"\s*(?:(?:Bearer|Basic|Token|ApiKey|Digest|Negotiate)\s+)?", re.I)
_URL_PARTS = re.compile(
    r"(?P<scheme>[^:/?#]*:)?(?://(?P<authority>[^/?#]*))?(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?",
    re.DOTALL,
)
"""The five parts of a URL: RFC 3986 appendix B (https://www.rfc-editor.org/rfc/rfc3986#appendix-B)."""
_FIRST_MARK = 0xE000
_MARKS = range(_FIRST_MARK, 0xF900)
"""Private-use characters that stand in for references while splitting a URL: a default may hold `?`, `#` or `@`."""


@record
class Reference:
    """A variable or file whose value would be disclosed."""

    written: str
    """As written in the row: `${GITHUB_TOKEN}`."""
    name: str
    """The variable, or the file's path."""
    place: str
    """Where the value goes: `header "Authorization"`."""
    recipient: str
    """Who gets the value: the address's host, or the program."""
    looks_secret: bool
    kind: ReferenceKind = "variable"
    is_secret: bool = False
    """Whether it's a reference to a secret, which is read at each start."""

    def as_json(self) -> JsonObject:
        """Return the facts for `--json`."""
        return {
            "written": self.shown,
            "place": self.place,
            "recipient": self.recipient,
            "looksSecret": self.looks_secret,
        }

    @property
    def shown(self) -> str:
        """As written. Nothing of a command is hidden, since it runs."""
        return self.written if self.is_secret else hide_secrets(self.written)

    @property
    def warning(self) -> str:
        """The secret, its place and its recipient."""
        seen = " Other users see it in the process list." if self.place.startswith("argument ") else ""
        if self.kind == "cmd":
            ran = f"The command {quote(self.name)} runs on this machine with all your rights"
            return f"{ran}: {self.recipient} gets its output, in {self.place}.{seen}"
        if self.is_secret:
            what = "secret" if self.kind == "keyring" else "file"
            return f"Your {what} {quote(self.name)} is read: {self.recipient} gets its value, in {self.place}.{seen}"
        shown = self.shown
        return f"{shown} looks like a secret: {self.recipient} gets its value, in {self.place}."


def find_references(row: ServerRow) -> Sequence[Reference]:
    """List the references of a row, in field order."""
    return tuple(dict.fromkeys(_find(row)))


def _find(row: ServerRow) -> Iterator[Reference]:
    config, rule = row.config, row.expansion
    if isinstance(config, StdioServerConfig):
        program = f"the program {quote(os.path.basename(config.command) or config.command)}"
        fields = [
            ("the command", config.command),
            *((f"argument {number}", text) for number, text in enumerate(config.args, 1)),
            ("the directory", config.cwd or ""),
            *((f"variable {quote(name)}", text) for name, text in config.env.items()),
        ]
        for place, text in fields:
            yield from _references(text, rule, place, program)
        for name in row.secrets:
            place = f"variable {quote(name)}"
            yield Reference(f"${{{name}}}", name, place, program, looks_secret(name))
        return
    host = url_host(config.url, rule)
    yield from _url_references(config.url, rule, "the address")
    for name, text in config.headers.items():
        yield from _references(text, rule, f"header {quote(name)}", host)
    if config.proxy:
        yield from _url_references(config.proxy, rule, "the proxy")
    for place, text in iter_auth_texts(row.auth or {}):
        # The server names its own issuer, so these values may reach any address.
        yield from _references(text, rule, f"{quote(place)} of its auth", f"{host}, or an issuer that it names,")


def _references(text: str, rule: Expansion, place: str, recipient: str) -> Iterator[Reference]:
    for match in PATTERNS[rule].finditer(text):
        kind, name = parse_reference(rule, match)
        is_secret = parse_secret(match[0]) is not None
        yield Reference(match[0], name, place, recipient, kind != "variable" or looks_secret(name), kind, is_secret)
        if is_secret:
            continue
        for inner in _NESTED.finditer(match[0], 1 + len(name)):
            nested = inner[1] or inner[2]
            written = f"${{{nested}}}" if inner[1] else f"{inner[0]}}}"
            yield Reference(written, nested, place, recipient, looks_secret(nested))


def _url_references(url: str, rule: Expansion, place: str) -> Iterator[Reference]:
    """Yield the references of a URL. In place of a password, they count as secrets."""
    marked, references = _mark_references(url, rule)
    user, _, _ = (_split_url(marked)["authority"] or "").rpartition("@")
    first, colon, password = user.partition(":")
    credentials = {
        references[ord(char) - _FIRST_MARK] for char in (password if colon else first) if ord(char) in _MARKS
    }
    for reference in _references(url, rule, place, url_host(url, rule)):
        is_credential = _show_reference(reference.written) in credentials
        yield replace(reference, looks_secret=True) if is_credential else reference


def quote(text: str) -> str:
    """Quote a text in ASCII, making every character visible."""
    return json.dumps(text, ensure_ascii=True)


# -- display ----------------------------------------------------------------------------------


def show_value(text: str, rule: Expansion) -> str | None:
    """Show a value with references as written and literal parts hidden, or return `None` without references.

    Keeps the scheme before a credential (`Bearer`, RFC 9110 §11.1).
    """
    shown, end, has_reference = "", 0, False
    for match in PATTERNS[rule].finditer(text):
        shown += _hide_literal(text[end : match.start()]) + _show_reference(match[0])
        end, has_reference = match.end(), True
    return shown + _hide_literal(text[end:]) if has_reference else None


def _show_reference(written: str) -> str:
    return hide_secrets(written) if parse_secret(written) is None else written


def _hide_literal(text: str) -> str:
    return text if _SCHEME_WORD.fullmatch(text) else REDACTED


def show_arguments(args: Sequence[str], rule: Expansion) -> list[str]:
    """Show arguments without passwords in URLs and values of options that name a secret. References stay."""
    secrets = {
        index: value for index, _, value in find_option_secrets(args) if value and not any(map(str.isspace, value))
    }
    return [
        arg
        if PATTERNS[rule].search(arg)
        else arg.removesuffix(secrets[index]) + REDACTED
        if index in secrets
        else hide_secrets(arg)
        for index, arg in enumerate(args)
    ]


def show_url(url: str, rule: Expansion = "none") -> str:
    """Show a URL with references as written, hiding credentials and query."""
    marked, references = _mark_references(url, rule)
    parts = _split_url(marked)
    if parts["authority"] is None:
        return REDACTED if not references else "".join(references)
    user, _, host = parts["authority"].rpartition("@")
    userinfo = ""
    if user:
        hidden = ":".join(map(_keep_marks, user.split(":"))) if _has_mark(user) else REDACTED
        userinfo = f"{hidden}@"
    shown = f"{parts['scheme'] or ''}//{userinfo}{host}"
    shown += hide_secrets(parts["path"] or "")
    if parts["query"]:
        shown += f"?{_show_query(parts['query'])}"
    if parts["fragment"] and _has_mark(parts["fragment"]):
        shown += f"#{_keep_marks(parts['fragment'])}"
    return _unmark(shown, references)


def url_host(url: str, rule: Expansion) -> str:
    """Return the host of a URL as written, with its port."""
    marked, references = _mark_references(url, rule)
    authority = _split_url(marked)["authority"]
    host = (authority or "").rpartition("@")[2]
    return _unmark(host, references) if host else "an address that cannot be read"


def _split_url(text: str) -> dict[str, str | None]:
    match = _URL_PARTS.fullmatch(text)
    assert match is not None, "every part is optional"
    return match.groupdict()


def _mark_references(text: str, rule: Expansion) -> tuple[str, list[str]]:
    marked, references, end = "", list[str](), 0
    for match in PATTERNS[rule].finditer(text):
        marked += _drop_marks(text[end : match.start()]) + chr(_FIRST_MARK + len(references))
        references.append(_show_reference(match[0]))
        end = match.end()
        if len(references) == len(_MARKS):
            break
    return marked + _drop_marks(text[end:]), references


def _drop_marks(text: str) -> str:
    return "".join(REDACTED if ord(char) in _MARKS else char for char in text)


def _has_mark(text: str) -> bool:
    return any(ord(char) in _MARKS for char in text)


def _unmark(text: str, references: Sequence[str]) -> str:
    return "".join(references[ord(char) - _FIRST_MARK] if ord(char) in _MARKS else char for char in text)


def _keep_marks(text: str) -> str:
    """Hide the literal parts of a text with marked references."""
    kept = "".join(char if ord(char) in _MARKS else "\0" for char in text)
    return re.sub("\0+", REDACTED, kept)


def _show_query(query: str) -> str:
    """Show parameters with a reference by name; hide the others."""
    if not _has_mark(query):
        return REDACTED
    shown: list[str] = []
    for pair in query.split("&"):
        name, sign, value = pair.partition("=")
        if not _has_mark(pair):
            shown.append(REDACTED)
        else:
            shown.append(f"{name}{sign}{_keep_marks(value)}" if sign else _keep_marks(name))
    return "&".join(shown)


# -- consent ----------------------------------------------------------------------------------


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
        *("sandbox", "labels", "bearer_token_env_var", "auth", "oauth", "headersHelper", "headers_helper"),
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
        if PATTERNS[row.expansion].search(text):
            try:
                values[place] = str(expand(text, row.expansion, context))
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
        if (
            reference.kind == "file"
            and not reference.is_secret
            and any(one.startswith(folder) for one in (entry, os.path.realpath(path)))
        ):
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
        return "trusted" if known.get("digest") == _digest(row, store) else "changed"

    def approve(self, row: ServerRow, digest: str) -> None:
        """Store the consent to a server. `digest` identifies the prompt the user accepted.

        Raises `ConsentChangedError` if the user accepted something else, and `OSError` if the file can't be written.
        """
        describe_row(row).check_digest(digest)
        file, facts = row.origin.file, consent_facts(row)
        with self._file().change() as store:
            parts: JsonObject = {name: digest_facts(value, store.salt) for name, value in facts.items() if name != "id"}
            store.rows[_row_key(file, row.id)] = {
                "file": os.path.realpath(file),
                "server": row.id,
                "digest": _digest(row, store),
                "parts": parts,
                "at": iso_utc(now_ms()),
            }

    def has_consent(self, file: str, server: str) -> bool:
        """Tell whether a server in a file ever got consent, even if it has changed since."""
        store, _ = self._file().read()
        return _row_key(file, server) in store.rows

    def revoke(self, file: str, server: str) -> bool:
        """Remove a consent and tell whether it existed; raises `OSError` if the file can't be written."""
        with self._file().change() as store:
            return store.rows.pop(_row_key(file, server), None) is not None

    def postpone(self, rows: Sequence[ServerRow]) -> None:
        """Store that the user left these servers for later; `OSError` if the file can't be written."""
        with self._file().change() as store:
            for row in rows:
                store.rows[f"{_row_key(row.origin.file, row.id)} later"] = {"digest": _digest(row, store)}

    def is_postponed(self, row: ServerRow) -> bool:
        """Tell whether the user left a server for later, as it is."""
        store, _ = self._file().read()
        known = store.rows.get(f"{_row_key(row.origin.file, row.id)} later", {})
        return known.get("digest") == _digest(row, store)

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
        words = map(quote_for_shell, (config.command, *show_arguments(config.args, rule)))
        cwd = [f"directory: {quote(config.cwd)}"] if config.cwd else []
        env = [line("variable", name, value) for name, value in config.env.items()]
        env += [f"variable: {quote(name)} (handed on from your environment)" for name in row.secrets]
        may = "off: it can touch everything you can" if config.sandbox is None else config.sandbox.describe()
        return [f"command: {' '.join(words)}", *cwd, *env, f"sandbox: {quote(may)[1:-1]}", *_more_lines(row)]
    headers = [line("header", name, value) for name, value in config.headers.items()]
    proxy = [f"proxy: {quote(show_url(config.proxy, rule))}"] if config.proxy else []
    auth = row.auth or {}
    signing_in = [
        f"sign-in, {name}: " + ("(a value is set)" if (shown := format_auth(name, value)) is None else quote(shown))
        for name, value in auth.items()
    ]
    return [f"address: {quote(show_url(config.url, rule))}", *proxy, *headers, *signing_in, *_more_lines(row)]


def _more_lines(row: ServerRow) -> Iterator[str]:
    """Yield its labels, the current values of variables and files that determine what runs, then the other fields."""
    if row.labels:
        yield f"labels: {compact_json(format_labels(row.labels))}"
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


def _digest(row: ServerRow, store: _Consents) -> str:
    return digest_facts(consent_facts(row), store.salt)


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
