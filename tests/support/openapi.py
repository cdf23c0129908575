"""A large OpenAPI document of a made-up service, and connectors in memory."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.ports import WebSettings
from induscode.connectors.auth import parse_auth
from induscode.connectors.gateway import ConnectorGateway
from induscode.connectors.sources import examine_source
from induscode.connectors.store import ConnectorStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from indusagi.core.json import JsonObject, JsonValue

NOUNS = re.findall(
    r"\w+",
    """
    account address article asset attachment badge banner batch bill bucket calendar campaign carrier cart
    category channel chart comment company contact contract coupon course currency customer dashboard deal
    department device discount dispute domain donation driver employee event export feedback folder form gift
    goal group holiday import invoice label lead lesson meeting menu message mission
    """,
)
ID: JsonObject = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def build_document(**more: JsonValue) -> JsonObject:
    """Build a document of 318 operations: six for each of 53 nouns."""
    paths: dict[str, JsonValue] = {}
    for noun in NOUNS:
        title = noun.capitalize()
        body: JsonObject = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{title}"}}},
        }
        paths[f"/{noun}s"] = {
            "get": _operation(f"list{title}s", f"List all {noun}s", noun, parameters=[_query("limit", "integer")]),
            "post": _operation(f"create{title}", f"Create {_article(noun)} {noun}", noun, requestBody=body),
        }
        paths[f"/{noun}s/{{id}}"] = {
            "parameters": [ID],
            "get": _operation(f"get{title}", f"Get {_article(noun)} {noun} by its id", noun),
            "patch": _operation(f"update{title}", f"Update {_article(noun)} {noun}", noun, requestBody=body),
            "delete": _operation(f"delete{title}", f"Delete {_article(noun)} {noun} for good", noun),
        }
        archive = _operation(f"archive{title}", f"Archive {_article(noun)} {noun}", noun)
        paths[f"/{noun}s/{{id}}/archive"] = {"parameters": [ID], "post": archive}
    schemas: JsonObject = {
        noun.capitalize(): {
            "type": "object",
            "required": ["id", "name"],
            "properties": {
                "id": {"type": "string", "readOnly": True},
                "name": {"type": "string"},
                "size": {"type": "integer", "nullable": True, "minimum": 0, "exclusiveMinimum": True},
                "parent": {"$ref": f"#/components/schemas/{noun.capitalize()}"},
            },
            "additionalProperties": False,
        }
        for noun in NOUNS
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://api.shop.example"}],
        "paths": paths,
        "components": {"schemas": schemas},
        **more,
    }


def _operation(identity: str, summary: str, tag: str, **more: JsonValue) -> JsonObject:
    responses: JsonObject = {"200": {"description": "done"}}
    return {"operationId": identity, "summary": summary, "tags": [tag], "responses": responses, **more}


def _query(name: str, kind: str) -> JsonObject:
    return {"name": name, "in": "query", "schema": {"type": kind}}


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


async def add_connector(
    folder: Path, document: JsonObject, base_url: str, *, auth: str | None = None, name: str = "shop"
) -> ConnectorStore:
    """Write a document to a file, and register it."""
    return await to_thread.run_sync(lambda: add_in_thread(folder, document, base_url, auth, name))


def add_in_thread(
    folder: Path, document: JsonObject, base_url: str, auth: str | None, name: str, state: str | None = None
) -> ConnectorStore:
    """Do the work of `add_connector`; `state` is the directory of the store."""
    source = folder / f"{name}-openapi.json"
    data = json.dumps(document).encode()
    source.write_bytes(data)
    reading = examine_source(name, str(source), data, base_url, None if auth is None else parse_auth(auth))
    store = ConnectorStore(state or str(folder / "state"))
    store.add(reading.row, reading.document, replace=True)
    return store


def build_gateway(store: ConnectorStore, *allowed: str, **variables: str) -> ConnectorGateway:
    """Build a gateway that may reach the named servers of this machine."""
    environ: Mapping[str, str] = variables
    return ConnectorGateway(store, WebSettings(allow_private=allowed, total_s=10), environ)
