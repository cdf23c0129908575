"""Remedies for failed servers: the cause and the command that fixes it."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field

import click

from indusagi.capabilities.sandbox.behaviour import find_blocked_path
from indusagi.core.config_file import read_config_file
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerConfig, StdioServerConfig
from induscode.launch.options import list_server_words

_REASONS = {
    "auth": "it refuses the credentials: check the header in its row, or sign in again: {login}",
    "exited": "it exited: run its command in a shell to see why",
    "frame_too_large": "it sent more than one message may hold",
    "not_found": "install the command, or correct it: {get}",
    "rate_limited": "try again later",
    "redirect": "put the address it redirects to into its row",
    "refused": "nothing listens at its address: start it, or correct the address",
    "secret": "see what each reference says: indus secrets check",
    "sign_in": "sign in: {login}",
    "version": "it uses another version of the protocol: update it",
}
_KINDS = {
    "timeout": "it took too long: give it more time with startup_timeout_sec in its row",
    "spawn_failed": "try its command in a shell",
    "transport": "check that its address is right and can be reached from here",
    "protocol": "its responses are invalid: check whether it is an MCP server",
}
_OWN_ERROR = "this is the server's own error: compare what its documentation requires with its row: {get}"
_NOISE = (
    "its standard output may carry protocol messages only: have it log to standard error; if it is "
    "an HTTP server, add it by its address: indus mcp add -t http {name} URL"
)
# Rows can't set the time limit of a listing, and more time to start wouldn't help.
_NOT_LISTED = "it came up and does not list its tools: see whether it waits for something, such as a login or a network"
_SHOWN_NAMES = 12
_NAMED_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"permission denied.*docker\.sock|docker\.sock.*(permission denied|EACCES)", re.I),
        "you may not use Docker: add yourself to the group docker, or start the rootless one",
    ),
    (
        re.compile(
            r"cannot connect to the docker daemon|docker\.sock|error while fetching server api version"
            r"|docker desktop is (not running|unable)|docker_engine|is the docker daemon running",
            re.IGNORECASE,
        ),
        "Docker isn't running: start it, and check it with: docker info",
    ),
    (
        re.compile(r"cannot connect to podman|podman\.sock", re.I),
        "Podman isn't running: start it, and check it with: podman info",
    ),
    (
        re.compile(r"env: .?node.?: no such file|\bnode: (command )?not found", re.I),
        "Node.js is missing: install it, and check it with: node --version",
    ),
    (
        re.compile(r"EBADENGINE|unsupported engine|engine \"node\" is incompatible|requires node(\.js)? ", re.I),
        "it needs another version of Node.js: compare its documentation with: node --version",
    ),
    (
        re.compile(r"(could not|failed to|waiting to|timeout.*) acquire.*lock|blocking waiting for file lock", re.I),
        "another install holds the lock of the cache: try again when it has ended",
    ),
    (
        re.compile(r"npm (error|err!) (code E404|404)|not found in the package registry", re.I),
        "there's no package of this name and version: correct it: {get}",
    ),
    (
        re.compile(r"\b(EAI_AGAIN|ENOTFOUND|getaddrinfo)\b|dns error|name resolution", re.I),
        "a name could not be resolved: check the network, and the proxy if you need one",
    ),
)
"""Patterns of process output and their remedies. The first match wins."""
_GENERAL_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"(ModuleNotFoundError|ImportError): No module named|Cannot find (module|package)|ERR_MODULE_NOT_FOUND"
        ),
        "a module it needs is missing: install what it depends on, and compare its command: {get}",
    ),
    (
        re.compile(r"EADDRINUSE|address already in use", re.I),
        "its port is in use: stop what listens there, or give it another port: {get}",
    ),
    (
        re.compile(r"\b(EACCES|EPERM|Permission denied|PermissionError)\b"),
        "it may not use a file or directory that its last output names: change its permissions, or its row: {get}",
    ),
    (
        re.compile(r"\bENOENT\b|No such file or directory|FileNotFoundError"),
        "a file or directory that its last output names doesn't exist: create it, or correct its row: {get}",
    ),
)
"""Causes that a more special one may explain."""
_VARIABLE = r"\b(?!ERR_)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b"
_MISSING_VARIABLE = re.compile(
    rf"(?:variables?|missing|required|set|provide|KeyError)\b[^\n]{{0,40}}?[:\s'\"`]+{_VARIABLE}"
    rf"|{_VARIABLE}[^\n]{{0,40}}?\b(?:required|missing|not set|not defined|must be|undefined|unset)\b"
)
_PROGRAMS = {
    "npx": "Node.js, which has npx",
    "npm": "Node.js, which has npm",
    "node": "Node.js",
    "uvx": "uv, which has uvx",
    "uv": "uv",
    "docker": "Docker",
    "podman": "Podman",
    "bunx": "Bun, which has bunx",
    "deno": "Deno",
}
_LOCK_FRESH_S = 10.0
"""npx touches its lock every second, so an older lock is stale."""


@record
class Advice:
    """The remedy for a fault, and further notes."""

    remedy: str
    notes: Sequence[str] = field(default=())
    variable: str = ""
    """The variable that it needs, if that's the cause."""


def format_command(*words: str) -> str:
    """Format an `indus` command for a shell, with this run's `--mcp` and `--cwd`, so that it reads the same files."""
    context = click.get_current_context(silent=True)
    return shlex.join(["indus", *words, *([] if context is None else list_server_words(context))])


def format_server_command(verb: str, server: str) -> str:
    """Format the command `indus mcp VERB SERVER` for a shell, with this run's `--mcp` and `--cwd`."""
    return f"{format_command('mcp', verb)} {shlex.quote(server)}"


def advise(
    name: str, config: ServerConfig, fault: ProtocolFault, environ: Mapping[str, str], *, connected: bool = False
) -> Advice:
    """Choose the remedy for a failed start or, once `connected`, a failed listing."""
    notes: list[str] = []
    words = {"name": shlex.quote(name), **{verb: format_server_command(verb, name) for verb in ("get", "login")}}
    if isinstance(config, StdioServerConfig):
        from indusagi.interop.protocol_bridge.client.stdio import find_withheld  # noqa: PLC0415 — on a fault

        output = "\n".join((str(fault), *fault.detail.stderr, *fault.detail.stdout))
        names = find_withheld(environ, config.env, output)
        if names:
            more = len(names) - _SHOWN_NAMES
            shown = ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
            notes.append(
                f"set in this shell and not passed on to it: {shown}; if it needs one, name it in "
                'its row: "env_vars": ["NAME"]'
            )
        if config.sandbox is not None and config.sandbox.container is None:
            compare = f"{format_server_command('doctor', name)} --sandbox"
            notes.append(f"it runs in the sandbox {config.sandbox.title}; whether that's the cause: {compare}")
            used = find_blocked_path(fault.detail.stderr, environ, is_strict=config.sandbox.is_strict)
            if used is not None:
                return Advice(f'in its sandbox, {used.lack}: {used.remedy} the "sandbox" of {config.id!r}', notes)
        named = _name_cause(config, fault, output, environ)
        if named is not None:
            variable = find_missing_variable(fault) if "needs the variable" in named else ""
            return Advice(named.format_map(words), notes, variable)
    if fault.detail.rpc_code is not None and fault.detail.http_status is None:
        return Advice(_OWN_ERROR.format_map(words), notes)
    if fault.detail.stdout and fault.detail.reason in {None, "exited", "closed", "malformed"}:
        return Advice(_NOISE.format_map(words), notes)
    if connected and fault.kind == "timeout":
        return Advice(_NOT_LISTED, notes)
    remedy = _REASONS.get(fault.detail.reason or "") or _KINDS.get(fault.kind, "see the fault")
    return Advice(remedy.format_map(words), notes)


def _name_cause(config: StdioServerConfig, fault: ProtocolFault, output: str, environ: Mapping[str, str]) -> str | None:
    """Recognise why a process failed and return the remedy, a template with literal braces doubled."""
    from indusagi.interop.protocol_bridge.client.causes import find_cause, needs_sdk_1  # noqa: PLC0415 — on a fault
    from indusagi.interop.protocol_bridge.client.start import find_launcher  # noqa: PLC0415 — on a fault

    manager = find_launcher(config)
    known = "" if manager is None else manager.name
    if fault.detail.reason == "not_found":
        program = os.path.basename(config.command)
        return f"install {_PROGRAMS[program]}, or correct the command: {{get}}" if program in _PROGRAMS else None
    lines = (*fault.detail.stderr, *fault.detail.stdout)
    if needs_sdk_1(lines):
        cause = "it was written for version 1 of the Python SDK and got a newer one"
        if known not in {"uvx", "uv"}:
            return f"{cause}: install 'mcp<2' where it runs"
        command = "uvx" if known == "uvx" else "uv run"
        return f"{cause}: add --with 'mcp<2' to its row: {command} --with 'mcp<2' … ({{get}})"
    for text in (find_cause(lines), output):
        for pattern, remedy in _NAMED_CAUSES:
            if pattern.search(text):
                return remedy
    if (damage := _find_damage(config, fault, known, environ)) is not None:
        return damage.replace("{", "{{").replace("}", "}}")
    name = find_missing_variable(fault)
    if not name:
        return next((remedy for pattern, remedy in _GENERAL_CAUSES if pattern.search(output)), None)
    return (
        f'it needs the variable {name}: add it to its row, as in "env": {{{{"{name}": "${{{{{name}}}}}"}}}} ({{get}})'
    )


def find_missing_variable(fault: ProtocolFault) -> str:
    """Find the variable whose absence a process complained about, or return an empty text."""
    found = _MISSING_VARIABLE.search("\n".join((*fault.detail.stderr, *fault.detail.stdout)))
    return "" if found is None else found[1] or found[2]


def _find_damage(
    config: StdioServerConfig, fault: ProtocolFault, manager: str, environ: Mapping[str, str]
) -> str | None:
    """Recognise a package manager's damaged cache and return the cause and repair command."""
    from indusagi.interop.protocol_bridge.client.causes import find_cache_damage  # noqa: PLC0415 — on a fault

    package = _find_package(config.args)
    name = package.rpartition("@")[0] or package
    damage = find_cache_damage((*fault.detail.stderr, *fault.detail.stdout), manager or None, name)
    if damage is not None and damage.command:
        return f"{damage.cause}; mend it: {damage.command}"
    if manager not in {"", "npx", "npm"} or not package:
        return None
    # npm's cache: https://docs.npmjs.com/cli/using-npm/config#cache
    variables = {**environ, **config.env}
    cache = variables.get("npm_config_cache") or variables.get("NPM_CONFIG_CACHE")
    cache = cache or os.path.join(variables.get("HOME", os.path.expanduser("~")), ".npm")
    folders = glob.glob(os.path.join(glob.escape(cache), "_npx", "*"))
    own = [folder for folder in sorted(folders) if _is_of_package(folder, package)]
    if damage is not None and damage.folder and damage.folder not in own:
        return None  # it belongs to another package
    locks = [lock for folder in own if os.path.exists(lock := os.path.join(folder, "concurrency.lock"))]
    if locks and (damage is not None or fault.kind in {"timeout", "spawn_failed"}):
        if now_ms() / 1000 - max(map(os.path.getmtime, locks)) < _LOCK_FRESH_S:
            return "npx is installing it just now: try again when it has ended"
        cause = "npx left a lock behind when it was killed"
        return f"{cause}; mend it: rm -rf {shlex.join(map(os.path.dirname, locks))}"
    if damage is None:
        return None
    return f"{damage.cause}; mend it: {f'rm -rf {shlex.join(own)}' if own else 'npm cache verify'}"


def _find_package(args: Sequence[str]) -> str:
    """Return the package a package manager runs: after `-p`, or the first word that isn't an option or verb."""
    for index, word in enumerate(args):
        if word in {"-p", "--package"}:
            return args[index + 1] if index + 1 < len(args) else ""
        if word.startswith("--package="):
            return word.partition("=")[2]
        if not word.startswith("-") and "=" not in word and word not in {"run", "tool", "exec", "x", "dlx"}:
            return word
    return ""


def _is_of_package(folder: str, package: str) -> bool:
    """Tell whether an npx folder holds this package, by its `package.json` or else by its name."""
    document = read_config_file(os.path.join(folder, "package.json")).document
    packages = document.get("dependencies") if is_json_object(document) else None
    if is_json_object(packages):
        name = package.rpartition("@")[0] or package
        return name in packages
    # npm names the folder after the package: the first 16 digits of its SHA-512.
    return os.path.basename(folder) == hashlib.sha512(package.encode("utf-8", "replace")).hexdigest()[:16]
