"""Secrets that configurations refer to: a store of named ones, files, and the output of commands.

`${keyring:NAME}` is a secret of the store, `${file:PATH}` the content of a private file, and `${cmd:COMMAND}` the first
line that a command prints. `reveal` reads them each time a text is used. It passes their values to `hide_secrets`, so
nothing we show, log or store contains them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from indusagi.core.app_dirs import read_small_file
from indusagi.core.faults import CoreError, describe_error
from indusagi.core.json import JsonObject
from indusagi.core.process.child import run_for_output
from indusagi.core.secrets import (
    SecretReference,
    SecretText,
    find_references,
    hide_value,
    is_provider_key,
    parse_secret_text,
)
from indusagi.core.tasks import call_in_daemon_thread, run_in_daemon_thread
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.storage import VaultFiles, VaultKind, VaultRow

T = TypeVar("T")
SECRET_NAME: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE: Final = "use letters, digits, '.', '_' and '-', at most 64, with at least one letter"
MAX_SECRET_BYTES: Final = 64 * 1024
_COMMAND_S: Final = 30.0


class SecretFault(CoreError):
    """A secret can't be read or stored. The message names its reference and the remedy, never its value."""

    def __init__(self, message: str, *, is_locked: bool = False) -> None:
        super().__init__(message)
        self.is_locked = is_locked
        """Whether the keyring has to be unlocked."""


class SecretFiles(VaultFiles):
    """The named secrets of the current user. All methods block."""

    folder_name = "secrets"
    items = "secrets"

    def name_owner(self, facts: JsonObject) -> str | None:
        """Return the name of a secret in its vault."""
        name = facts.get("name")
        return f"secret {name}" if isinstance(name, str) else None

    def list_rows(self) -> Mapping[str, VaultRow]:
        """List the secrets by name, without opening any."""
        return {str(row.facts["name"]): row for row in sorted(self.read_files(), key=lambda row: row.owner)}

    def set(self, name: str, value: str, *, keyring: bool = True) -> VaultKind:
        """Store a secret and return its vault. Without `keyring`, it goes into a file.

        Raises `SecretFault` if the name or value is invalid, the keyring is locked, or the file can't be written.
        """
        if not SECRET_NAME.fullmatch(name):
            raise SecretFault(f"{name!r} is not a valid name of a secret: {NAME_RULE}")
        if not value or len(value.encode()) > MAX_SECRET_BYTES or "\0" in value:
            raise SecretFault(f"a secret has 1 to {MAX_SECRET_BYTES:,} bytes, and no NUL character")
        if keyring:
            self._require_unlocked(f"the secret {name!r} can't be stored")
        hide_value(value)
        try:
            return self.write_file(self._path(name), {"name": name}, value, keyring=keyring)
        except (OSError, AuthFault) as exc:
            raise SecretFault(f"the secret {name!r} can't be stored: {describe_error(exc)}") from exc

    def remove(self, name: str) -> bool:
        """Remove a secret and return whether it existed; raises `SecretFault` if it can't be removed."""
        row = self.list_rows().get(name)
        if row is not None and row.vault == "keyring":
            self._require_unlocked(f"the secret {name!r} can't be removed")
        try:
            return self.remove_file(self._path(name))
        except (OSError, AuthFault) as exc:
            raise SecretFault(f"the secret {name!r} can't be removed: {describe_error(exc)}") from exc

    def read(self, name: str) -> str:
        """Read a secret; raises `SecretFault` if there's none of this name, or it can't be opened."""
        row = self.list_rows().get(name)
        if row is None:
            stored = "" if SECRET_NAME.fullmatch(name) else f" (a name can't be that: {NAME_RULE})"
            raise SecretFault(f"no secret {name!r} is stored{stored}: indus secrets set {shlex.quote(name)}")
        if row.vault == "keyring":
            self._require_unlocked(f"the secret {name!r} waits", ask=sys.stderr.isatty())
        try:
            value = self.read_secret(row)
        except AuthFault as exc:
            raise SecretFault(f"the secret {name!r} can't be opened: {exc}") from exc
        if value is None:
            raise SecretFault(f"the secret {name!r} is gone from the keyring: indus secrets set {name}")
        return value

    def _path(self, name: str) -> str:
        return os.path.join(self.find_folder(), f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json")

    def unlock(self) -> bool:
        """Have the desktop ask the user to unlock the keyring, and return whether it's open."""
        keyring = self.get_keyring()
        return keyring is None or not keyring.is_locked(unlock=True)

    def _require_unlocked(self, problem: str, *, ask: bool = False) -> None:
        """Raise `SecretFault` if the keyring is locked. With `ask`, the desktop asks to unlock it, once per process."""
        global _has_asked
        keyring = self.get_keyring()
        if keyring is None or not keyring.is_locked():
            return
        if ask and not _has_asked:
            _has_asked = True
            if self.unlock():
                return
        raise SecretFault(
            f"{problem}: the keyring is locked; unlock it, for example by: indus secrets check", is_locked=True
        )


_has_asked = False


# -- values -----------------------------------------------------------------------------------


def reveal(text: str) -> str:
    """Return a text with its references replaced by their values. Blocks.

    Raises `SecretFault` if a secret can't be read. A reference inside a value isn't replaced.
    """
    if not isinstance(text, SecretText):
        return text
    return "".join(part if isinstance(part, str) else read_secret(part) for part in text.parts)


def _reveal_all(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _reveal_all(member) for key, member in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return tuple(map(_reveal_all, cast("Iterable[Any]", value)))
    return reveal(value) if isinstance(value, str) else value


async def reveal_value(value: T) -> T:
    """Replace the references in a text, or in the texts of a collection, in a daemon thread; raises like `reveal`."""
    return await run_in_daemon_thread("secrets", _reveal_all, value) if any(find_references(value)) else value


def reveal_variable(name: str, environ: Mapping[str, str]) -> str:
    """Return the value of a variable of ours, or of the secret it refers to; empty if unset. Raises like `reveal`."""
    return reveal(parse_secret_text(environ.get(name, "").strip()))


def read_secret(reference: SecretReference) -> str:
    """Read a secret, and hide its value from now on. Blocks; raises `SecretFault` if it can't be read."""
    value = _READERS[reference.kind](reference)
    hide_value(value)
    return value


def _read_private_file(reference: SecretReference) -> str:
    path = os.path.join(reference.folder, os.path.expanduser(reference.name))
    try:
        value = read_small_file(path, MAX_SECRET_BYTES, private=True).decode().removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else "it isn't text"
        raise SecretFault(f"the file {path!r} can't be read: {reason}") from exc
    if not value:
        raise SecretFault(f"the file {path!r} is empty: write the secret into it")
    return value


def _run_command(reference: SecretReference) -> str:
    """Return the first line that a command prints, or a whole PEM block.

    It runs without a shell in the user's home, with the user's environment except keys of models and ours. Its standard
    error may hold secrets, so it isn't shown.
    """
    shown = f"the command of {reference.written}"
    env = {name: value for name, value in os.environ.items() if not is_provider_key(name)}
    try:
        words = shlex.split(reference.name) or [""]
        if "{" in reference.name:
            raise ValueError("braces don't work in it, so put it into a script")
        words[0] = os.path.expanduser(words[0])
        work = run_for_output(words, env, os.path.expanduser("~"), _COMMAND_S, MAX_SECRET_BYTES + 1)
        # In a thread, since the caller's may run an event loop.
        code, output = call_in_daemon_thread("command of a secret", lambda: asyncio.run(work))
    except TimeoutError:
        raise SecretFault(f"{shown} took longer than {_COMMAND_S:g} s: run it in a terminal") from None
    except (OSError, ValueError) as exc:
        raise SecretFault(f"{shown} can't be started: {describe_error(exc)}") from exc
    if code:
        raise SecretFault(f"{shown} failed (exit code {code}): run it in a terminal to see why")
    text = output.decode("utf-8", "replace").strip("\r\n")
    value = text if text.startswith("-----BEGIN ") else text.partition("\n")[0].rstrip("\r")
    if not value or len(output) > MAX_SECRET_BYTES:
        problem = f"printed more than {MAX_SECRET_BYTES:,} bytes" if value else "printed nothing"
        raise SecretFault(f"{shown} {problem}: run it in a terminal to see why")
    return value


_READERS: Final[Mapping[str, Callable[[SecretReference], str]]] = {
    "keyring": lambda reference: SecretFiles().read(reference.name),
    "file": _read_private_file,
    "cmd": _run_command,
}
