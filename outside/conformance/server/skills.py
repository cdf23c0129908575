"""The skills: two directories with a `SKILL.md`, listed, got, read, and read as directories.

https://modelcontextprotocol.io/seps/2640-skills-extension
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, PaginatedRequestParams, RequestParams, Resource

if TYPE_CHECKING:
    from outside.conformance.server.asking import Asked

EXTENSION = "io.modelcontextprotocol/skills"
SETTINGS = {"directoryRead": True}
_SKILL = "SKILL.md"
_FRONT: dict[str, dict[str, Any]] = {
    "tidy-table": {"name": "tidy-table", "description": "Align the columns of a table: widths, then separators."},
    "count-words": {
        "name": "count-words",
        "description": "Count the words of a text.",
        "license": "Apache-2.0",
        "metadata": {"version": "1.0", "audience": "writers"},
    },
}
_FILES = {
    "skill://tidy-table/SKILL.md": """---
name: tidy-table
description: "Align the columns of a table: widths, then separators."
---

Read references/WIDTHS.md first.
""",
    "skill://tidy-table/references/WIDTHS.md": "A column is as wide as its longest cell.\n",
    "skill://tidy-table/references/more/EMPTY.md": "An empty cell has the width zero.\n",
    "skill://text/count-words/SKILL.md": """---
name: count-words
description: >-
  Count the words
  of a text.
license: Apache-2.0 # as the project
metadata:
  version: "1.0"
  audience: writers
---

Split at white space.
""",
}
_CACHED = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "public"}


class SkillParams(RequestParams):
    """What names one skill, or one directory."""

    uri: str


def listed() -> list[Resource]:
    """Give the manifests as resources; the other files are found by their skill."""
    manifests = [uri for uri in _FILES if uri.endswith(f"/{_SKILL}")]
    return [
        Resource(uri=uri, name=front["name"], description=front["description"], mime_type="text/markdown")
        for uri, front in zip(manifests, _FRONT.values(), strict=True)
    ]


def find_text(uri: str) -> str | None:
    """Give the text of a file of a skill."""
    return _FILES.get(uri)


def _entries() -> dict[str, dict[str, Any]]:
    return {
        str(manifest.uri): {
            "uri": str(manifest.uri),
            "frontmatter": _FRONT[manifest.name],
            "resources": [
                {
                    "uri": uri,
                    "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
                    "size": len(text.encode()),
                }
                for uri, text in _FILES.items()
                if uri.startswith(str(manifest.uri).removesuffix(_SKILL))
            ],
        }
        for manifest in listed()
    }


async def list_skills(ctx: Asked, params: PaginatedRequestParams) -> dict[str, Any]:
    """List them, one to a page."""
    entries = [*_entries().values()]
    start = int(params.cursor or 0)
    more = {"nextCursor": str(start + 1)} if start + 1 < len(entries) else {}
    return {"skills": entries[start : start + 1], **more, **_CACHED}


async def get_skill(ctx: Asked, params: SkillParams) -> dict[str, Any]:
    """Give the entry of one.

    Raises:
        MCPError: There is none of that URI.
    """
    if params.uri not in _entries():
        raise MCPError(INVALID_PARAMS, "there is no such skill", {"uri": params.uri})
    return {"skill": _entries()[params.uri], **_CACHED}


async def read_directory(ctx: Asked, params: SkillParams) -> dict[str, Any]:
    """List what is directly in a directory.

    Raises:
        MCPError: It is none.
    """
    inside = f"{params.uri.rstrip('/')}/"
    rows: dict[str, dict[str, str]] = {}
    for uri in _FILES:
        if uri.startswith(inside):
            name, slash, _ = uri[len(inside) :].partition("/")
            kind = "inode/directory" if slash else "text/markdown"
            rows[name] = {"uri": inside + name, "name": name, "mimeType": kind}
    if not rows:
        raise MCPError(INVALID_PARAMS, "this is no directory", {"uri": params.uri})
    return {"resources": [*rows.values()], **_CACHED}
