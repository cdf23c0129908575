"""Skills of servers: what a host verifies of their files, and the directories that their manifests describe.

https://modelcontextprotocol.io/seps/2640-skills-extension#integrity-and-verification
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import zip_longest

from indusagi.core.json import JsonObject, JsonValue, is_json_object

SKILLS = "io.modelcontextprotocol/skills"
"""The extension."""
READ_DIRECTORY = "resources/directory/read"
DIRECTORY_READ = "directoryRead"
"""The setting of the extension that declares it."""
_DIRECTORY = "inode/directory"
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#")
# Possessive, so that a long line without a colon is read once: https://docs.python.org/3/library/re.html#index-9.
_KEY = re.compile(r"^[\"']?([^\s\"'#:-][^\"':\n]*+)[\"']?[ \t]*+:(?=\s|$)", re.MULTILINE)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_EITHER_QUOTED = re.compile(rf"'(?:[^']|'')*'|{_QUOTED.pattern}")
_WORD = re.compile(r"\d+(?:\.\d+)?|\w+")


def find_mismatch(definition: JsonObject, uri: str, contents: JsonValue) -> str | None:
    """Return how a file of a skill differs from what the skill promises; `None` if it does not.

    Digest and size are compared of every file of the manifest, and of `SKILL.md` also the front matter.
    """
    for data in _list_data(contents):
        if data is None:
            return "its content is no base64"
        problem = _find_digest_mismatch(definition, uri, data)
        if problem is None and uri == definition.get("uri"):
            problem = _find_front_matter_mismatch(definition.get("frontmatter"), data.decode("utf-8", "replace"))
        if problem is not None:
            return problem
    return None


def _list_data(contents: JsonValue) -> Iterator[bytes | None]:
    """Decode each content; `None` stands for one that cannot be decoded."""
    for content in filter(is_json_object, contents if isinstance(contents, list) else ()):
        text, blob = content.get("text"), content.get("blob")
        try:
            yield text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b64decode(str(blob or ""))
        except ValueError:
            yield None


def _find_digest_mismatch(definition: JsonObject, uri: str, data: bytes) -> str | None:
    row = next((row for row in _list_files(definition) if row.get("uri") == uri), None)
    if row is None:
        return None
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if digest != row.get("digest"):
        return f"its digest is {digest}, and the skill promises {row.get('digest')}"
    if len(data) != row.get("size"):
        return f"it has {len(data):,} bytes, and the skill promises {row.get('size')}"
    return None


def _find_front_matter_mismatch(promised: JsonValue, text: str) -> str | None:
    """Compare the front matter of a `SKILL.md` with that of its entry, field by field.

    A field is compared by the words of its value in their order. The notations of YAML for one value, quotes and
    indentation for instance, make no difference; another word does.
    """
    front = _FRONT_MATTER.match(text)
    if front is None:
        return "it has no front matter"
    keys = [*_KEY.finditer(front[1])]
    ends = [key.start() for key in keys[1:]]
    values = {key[1].strip(): front[1][key.end() : end] for key, end in zip_longest(keys, ends)}
    fields = promised if is_json_object(promised) else {}
    for name in {**fields, **values}:
        expected = _list_words(" ".join(_list_leaves(fields.get(name))))
        if (name in values) != (name in fields) or expected not in _read_words(values[name]):
            return f"the field {name!r} of its front matter is not the one that the skill promises"
    return None


def _read_words(value: str) -> Iterator[list[str]]:
    """Read the words of a value in YAML: as it is written, without comments, and without escapes."""
    yield _list_words(value)
    yield _list_words("\n".join(map(_remove_comment, value.split("\n"))))
    for pattern in (_QUOTED, _EITHER_QUOTED):  # an apostrophe in plain text opens no quotation
        yield _list_words(pattern.sub(_unquote, value))


def _remove_comment(line: str) -> str:
    """Remove the comment of a line: what follows the first `#` after its last quote."""
    comment = _COMMENT.search(line, max(line.rfind('"'), line.rfind("'")) + 1)
    return line if comment is None else line[: comment.start()]


def _unquote(quoted: re.Match[str]) -> str:
    with suppress(ValueError):
        return f" {json.loads(quoted[0])} "
    return quoted[0]


def _list_leaves(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _list_leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_leaves(inner)
    else:
        yield str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _list_words(text: str) -> list[str]:
    words = _WORD.findall(text)
    return [f"{float(word):g}" if word[0].isdecimal() and word.isascii() else word for word in words if word != "null"]


def _list_files(definition: JsonObject) -> Iterable[JsonObject]:
    files = definition.get("resources")
    return filter(is_json_object, files if isinstance(files, list) else ())


def list_directory(skills: Iterable[JsonObject], uri: str) -> JsonObject | None:
    """List a directory from the manifests of skills; `None` if none of them has files in it.

    https://modelcontextprotocol.io/seps/2640-skills-extension#directory-reads
    """
    prefix = f"{uri.rstrip('/')}/"
    children: dict[str, JsonValue] = {}
    for file in (file for skill in skills for file in _list_files(skill)):
        address = file.get("uri")
        if not isinstance(address, str) or not address.startswith(prefix) or address == prefix:
            continue
        name, slash, _ = address[len(prefix) :].partition("/")
        child: JsonObject = {"uri": f"{prefix}{name}", "name": name}
        if slash:
            child["mimeType"] = _DIRECTORY
        else:
            child |= {key: file[key] for key in ("size", "mimeType") if key in file}
        children[name] = child
    return {"resources": [*children.values()]} if children else None
