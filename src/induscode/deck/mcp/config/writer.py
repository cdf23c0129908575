"""The only writer of our own configuration files: merged, in one step, and nothing lost.

A file of another program is never written. Ours keeps every key it has, its order and its
indentation. What could not be kept is a reason to write nothing: comments, a key that stands there
twice, a way of writing that is not ours. Two processes wait for each other.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import locked_directory, make_dirs, read_small_file
from indusagi.core.config_file import LARGEST_BYTES, parse_json
from indusagi.core.ids import new_ulid
from indusagi.core.json import is_json_object
from induscode.deck.contract import BridgeFault
from induscode.deck.mcp.config import list_config_paths
from induscode.deck.mcp.config.dialects import detect_dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.mcp.config.rows import Scope

_KEYS = {"indus": "servers", "claude-code": "mcpServers"}
"""The two ways in which our file may be written, and where the servers stand in each."""
_INDENT = re.compile(r"\n([ \t]+)\S")


def own_config_path(scope: Scope, cwd: str) -> str:
    """Name our own file of a user or of a project."""
    return next(path for path, whose in list_config_paths(cwd) if whose == scope)


class OwnConfig:
    """The servers of one of our files, while it is being changed."""

    def __init__(self, path: str, document: JsonObject) -> None:
        dialect = detect_dialect(path, document) if document else None
        name = "indus" if dialect is None else dialect.name
        if name not in _KEYS:
            raise BridgeFault(f"{path} is written the way of {name}: change it by hand")
        self.path = path
        self.document = document
        self._key = _KEYS[name]
        found = document.setdefault(self._key, {})
        if not isinstance(found, (dict, list)):
            raise BridgeFault(f"{path}: its {self._key!r} are neither a list nor an object")
        self._found = found

    def rows(self) -> Mapping[str, JsonObject]:
        """Give the rows by the name of their server; of two the last counts."""
        if isinstance(self._found, list):
            named = [(row.get("name"), row) for row in self._found if is_json_object(row)]
            return {name: row for name, row in named if isinstance(name, str)}
        return {name: row for name, row in self._found.items() if is_json_object(row)}

    def put(self, name: str, fields: JsonObject) -> None:
        """Write a row, in the place of one of the same name."""
        if isinstance(self._found, dict):
            self._found[name] = fields
            return
        named: JsonObject = {"name": name, **fields}
        places = [at for at, row in enumerate(self._found) if _is_called(row, name)]
        if places:
            self._found[places[-1]] = named
        else:
            self._found.append(named)

    def remove(self, name: str) -> bool:
        """Take a row out, and tell whether there was one."""
        if isinstance(self._found, dict):
            return self._found.pop(name, None) is not None
        kept = [row for row in self._found if not _is_called(row, name)]
        gone = len(kept) < len(self._found)
        self._found[:] = kept
        return gone


def _is_called(row: JsonValue, name: str) -> bool:
    return is_json_object(row) and row.get("name") == name


def read_own_config(path: str) -> OwnConfig:
    """Read one of our files; one that is not there has no servers.

    Raises:
        BridgeFault: It cannot be read, or not be written without a loss.
    """
    return OwnConfig(path, _document(path)[0])


@contextmanager
def edit_own_config(path: str, *, private: bool) -> Generator[OwnConfig]:
    """Let the caller change one of our files; it is written when the block ends without error.

    A `private` file is for this user's eyes alone, and may be a link to where the user keeps it. A
    project's may not: whoever wrote the project could have it lead anywhere.

    Raises:
        BridgeFault: It cannot be read, not be written without a loss, or somebody holds it.
        OSError: It cannot be written.
    """
    folder = os.path.dirname(path)
    if private:
        path = os.path.realpath(path)
        folder = os.path.dirname(path)
    else:
        _refuse_links(path, folder)
    make_dirs(folder, 0o700 if private else 0o777)
    with _turn(folder):
        document, text = _document(path)
        config = OwnConfig(path, document)
        before = _text(document, text)
        yield config
        after = _text(document, text)
        if after != before:
            _write(path, after, private=private)


def _refuse_links(path: str, folder: str) -> None:
    for name in (folder, path):
        if os.path.islink(name):
            raise BridgeFault(f"{name} is a link: it is not followed, put a file there instead")


@contextmanager
def _turn(folder: str) -> Generator[None]:
    try:
        with locked_directory(folder):
            yield
    except TimeoutError as exc:
        raise BridgeFault(f"{folder}: {exc.strerror}") from None


def _document(path: str) -> tuple[JsonObject, str]:
    try:
        text = read_small_file(path, LARGEST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return {}, ""
    except OSError as exc:
        raise BridgeFault(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise BridgeFault(f"{path} is not UTF-8 at byte {exc.start}: correct it first") from exc
    if not text.strip():
        return {}, text
    found = parse_json(text)
    if found.trouble is not None:
        raise BridgeFault(f"{path}: {found.trouble}: correct it first")
    if found.repeated:
        raise BridgeFault(f"{path}: the key {found.repeated[0]!r} stands there twice: take one out")
    if not _is_plain(text):
        raise BridgeFault(f"{path} has comments or trailing commas, which would be lost: change it by hand")
    if not is_json_object(found.document):
        raise BridgeFault(f"{path} holds no JSON object: correct it first")
    return found.document, text


def _is_plain(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _text(document: JsonObject, before: str) -> str:
    """Write a document the way it was written before."""
    found = _INDENT.search(before)
    indent = found[1] if found else "  "
    try:
        text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as exc:
        raise BridgeFault(f"the file holds what cannot be written again: {exc}") from exc
    return f"{text}\n"


def _write(path: str, text: str, *, private: bool) -> None:
    temporary = f"{path}.{new_ulid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        handle = os.open(temporary, flags, 0o600 if private else 0o666)
        with os.fdopen(handle, "wb") as file:
            if not private and os.path.exists(path):
                os.fchmod(handle, stat.S_IMODE(os.stat(path).st_mode))
            # Half a surrogate pair has no UTF-8 form; as an escape, which JSON allows, it has one.
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def change_row(path: str, name: str, change: Callable[[JsonObject], JsonObject], *, private: bool) -> bool:
    """Change one row of a file, and tell whether there was one to change.

    Raises:
        BridgeFault: As for `changing`.
        OSError: It cannot be written.
    """
    with edit_own_config(path, private=private) as config:
        row = config.rows().get(name)
        if row is None:
            return False
        config.put(name, change(dict(row)))
    return True
