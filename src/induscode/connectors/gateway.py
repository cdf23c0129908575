"""Gateway to connectors: `discover` finds operations by description, `execute` sends an operation's request.

Connectors load on the first call and don't change after that, so the request sent is the one permissions saw; a changed
connector needs a new gateway. Arguments are checked against the approved document before sending. Answers are cleaned
of invisible characters and credential values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote, urlencode

import anyio
from anyio import to_thread

from indusagi.capabilities.arguments import ArgumentChecker
from indusagi.capabilities.budget import SessionDir
from indusagi.capabilities.web.page import decode_text
from indusagi.core.app_dirs import create_private_file, make_private_dir
from indusagi.core.faults import CoreError
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, content_hash
from indusagi.core.records import record
from indusagi.core.text import clean_json, cut_text, make_visible
from indusagi.core.time import now_ms
from indusagi.interop.auth.contract import AuthFault, CredentialStore, SignInRequired
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.net.address import FetchError
from indusagi.net.client import CrossSiteRedirect, WebClient, WebRequest, WebResponse, get_media_type
from induscode.connectors.auth import AuthReference, Credentials
from induscode.connectors.openapi import ConnectorFault, abbreviate_schema
from induscode.connectors.operations import (
    BODY,
    ApiRequest,
    OperationIndex,
    OperationSpec,
    build_arguments_schema,
    build_request,
)
from induscode.connectors.sources import find_change, is_url, list_approved_operations, read_bytes
from induscode.deck.contract import ActionError, ActionTarget

if TYPE_CHECKING:
    from indusagi.capabilities.ports import WebSettings
    from induscode.connectors.sign_in import ConnectorTokens
    from induscode.connectors.store import ConnectorRow, ConnectorStore

FOUND: Final = 5
"""Operations returned by a search."""
_MAX_LISTED: Final = 50
"""Operations returned by a listing without a query."""
_MAX_SCHEMA_CHARS: Final = 4_000
_MAX_TEXT_CHARS: Final = 400
_MAX_ERROR_CHARS: Final = 2_000
_MAX_SIMILAR: Final = 3
_CHECK_INTERVAL_MS: Final = 24 * 3600 * 1000
"""Compare a remote document once a day, and a file in every run."""
_COMPARE_TIMEOUT_S: Final = 10.0
_ACCEPT: Final = "application/json, text/*;q=0.8, */*;q=0.5"
_SHOWN_HEADERS: Final = ("link", "location", "retry-after", "etag")
_MAX_SENDS: Final = 6
"""Per request: the service may reject a token, then a scope, then a nonce. A rejected request wasn't executed."""
_TEXT_TYPES: Final = ("text/", "application/xml", "application/javascript", "application/x-www-form-urlencoded")


@record(kw_only=True)
class LoadedConnector:
    """A connector in this run: its approved document and operations, or the reason it's disabled."""

    row: ConnectorRow
    document: JsonObject
    operations: Mapping[str, OperationSpec]
    disabled: str | None = None


class ConnectorGateway:
    """Finds and executes connector operations. Sign-ins are by default in the files all commands use."""

    def __init__(
        self,
        store: ConnectorStore,
        web: WebSettings,
        environ: Mapping[str, str],
        sign_ins: CredentialStore | None = None,
    ) -> None:
        self._store = store
        self._web = web
        self._environ = environ
        self._loading = anyio.Lock()
        self._connectors: Mapping[str, LoadedConnector] | None = None
        self._index: OperationIndex | None = None
        self._owners: Mapping[str, str] = {}
        self._session = SessionDir()
        self._opening = anyio.Lock()
        self._tokens: dict[str, ConnectorTokens] = {}
        self._sign_ins = sign_ins or CredentialFiles()

    async def discover(self, query: str | None, toolkits: Sequence[str]) -> Sequence[Mapping[str, JsonValue]]:
        """Find operations by description. A slug as the query returns its complete schema.

        Without a query, list the toolkits' operations, or the connectors if there are no toolkits either. Raises
        `ActionError` if a toolkit is unknown.
        """
        connectors = await self._load()
        for name in toolkits:
            if name not in connectors:
                message = f"there is no connector {name!r}; there are: {', '.join(connectors) or 'none'}"
                raise ActionError(message, code="not_found")
        if not query and not toolkits:
            return [self._describe_connector(connector) for connector in connectors.values()]
        disabled = [
            self._describe_connector(connectors[name]) for name in toolkits if connectors[name].disabled is not None
        ]
        if not query:
            listed = [spec for name in toolkits for spec in self._list_usable(connectors[name])]
            return [*disabled, *(_describe_briefly(spec) for spec in listed[:_MAX_LISTED])]
        owner = self._owners.get(query.strip())
        if owner is not None:
            return [await self._describe(connectors[owner].operations[query.strip()], complete=True)]
        found = await self._search(query, FOUND, toolkits)
        return [*disabled, *[await self._describe(spec) for spec in found]]

    async def execute(self, slug: str, arguments: JsonObject) -> JsonValue:
        """Send an operation's request, and return the answer's status and parsed body.

        Raises `ActionError` if the slug is unknown, the arguments are invalid, the request isn't allowed, or the
        service returned an error.
        """
        connector, operation = await self._find(slug)
        await self._check_arguments(connector, operation, arguments)
        row = connector.row
        try:
            request = build_request(operation, row.base_url, arguments)
        except ConnectorFault as exc:
            message = f"{slug} was not executed: connector {row.name!r}: {exc}"
            raise ActionError(message, code="invalid_arguments") from exc
        try:
            tokens = await self._find_tokens(connector)
            sends = 0
            while True:
                sends += 1
                if tokens is not None:
                    credentials = await tokens.build_credentials(operation, request.url)
                elif isinstance(row.auth, AuthReference):
                    credentials = await row.auth.find_credentials(self._environ)
                else:
                    credentials = Credentials()
                answer = await self._send(connector, operation, request, credentials)
                wants_retry = tokens is not None and await tokens.handle_answer(operation, credentials, answer)
                if not wants_retry or sends == _MAX_SENDS:
                    break
        except (ConnectorFault, AuthFault) as exc:
            owner = "" if isinstance(exc, SignInRequired) else f"connector {row.name!r}: "
            raise ActionError(f"{slug} was not executed: {owner}{exc}", code="auth") from exc
        return await self._build_answer(connector, operation, answer, credentials)

    async def _find_tokens(self, connector: LoadedConnector) -> ConnectorTokens | None:
        """Return the tokens of a connector with a sign-in, opening them on its first request.

        Raises `ConnectorFault` if the variable with the client secret isn't set.
        """
        row = connector.row
        if row.oauth is None:
            return None
        async with self._opening:
            if row.name not in self._tokens:
                # Lazy: it loads the HTTP client for sign-ins and the JWT library.
                from induscode.connectors.sign_in import open_tokens  # noqa: PLC0415

                self._tokens[row.name] = await open_tokens(
                    row,
                    connector.document,
                    connector.operations.values(),
                    self._sign_ins,
                    self._environ,
                    self._web.proxy,
                )
            return self._tokens[row.name]

    async def _send(
        self, connector: LoadedConnector, operation: OperationSpec, request: ApiRequest, credentials: Credentials
    ) -> WebResponse:
        """Send one request, only to the origin of the base URL.

        Raises `ActionError` if there was no answer, or a redirect to another origin.
        """
        row, slug, url = connector.row, operation.slug, request.url
        if credentials.query is not None:
            url += f"{'&' if '?' in url else '?'}{urlencode([credentials.query], quote_via=quote)}"
        headers = {"Accept": _ACCEPT, **request.headers, **credentials.headers}
        sent = WebRequest(url, operation.method, headers, request.body, follow="origin")
        try:
            answer = await WebClient(self._web).send(sent)
        except FetchError as exc:
            message = credentials.hide_text(f"{slug}: {exc}")
            if exc.code == "timeout" and not operation.is_reading:
                message += "; the service may have executed it: look before you try again"
            facts = cast("JsonObject", credentials.hide(dict(exc.facts)))
            raise ActionError(message, code=exc.code, **facts) from exc
        if isinstance(answer, CrossSiteRedirect):
            message = (
                f"{slug}: {row.base_url} redirects to another host or port ({answer.url}): not followed, since the "
                f"credentials and rules of connector {row.name!r} are for its base URL"
            )
            raise ActionError(credentials.hide_text(message), code="redirect", status=answer.status)
        return answer

    async def aclose(self) -> None:
        """Finish pending work, saving a token refresh that was already sent."""
        for tokens in self._tokens.values():
            await tokens.close()

    async def find_target(self, slug: str, arguments: JsonObject) -> ActionTarget | None:
        """Return an action's request. With invalid arguments, its URL ends with the document's path template."""
        connectors = await self._load()
        owner = self._owners.get(slug)
        if owner is None:
            return None
        row, operation = connectors[owner].row, connectors[owner].operations[slug]
        try:
            url = build_request(operation, row.base_url, arguments).url
        except (ConnectorFault, CoreError):
            url = f"{row.base_url}{operation.path}"
        pin = content_hash([row.base_url, operation.method, operation.path, operation.id])
        names = [*(parameter.argument for parameter in operation.parameters), *([BODY] if operation.body else [])]
        return ActionTarget(operation.method, url, pin, tuple(names))

    # -- loading --------------------------------------------------------------------------------

    async def _load(self) -> Mapping[str, LoadedConnector]:
        async with self._loading:
            if self._connectors is None:
                rows, _ = await to_thread.run_sync(self._store.read)
                loaded = {name: await self._load_connector(row) for name, row in rows.items()}
                usable = [spec for connector in loaded.values() for spec in self._list_usable(connector)]
                self._index = await to_thread.run_sync(OperationIndex, usable)
                self._owners = {spec.slug: spec.connector for spec in reversed(usable)}
                self._connectors = loaded
            return self._connectors

    async def _load_connector(self, row: ConnectorRow) -> LoadedConnector:
        def load() -> tuple[JsonObject, Mapping[str, OperationSpec]]:
            document = self._store.read_document(row.name)
            return document, {spec.slug: spec for spec in list_approved_operations(row, document)}

        try:
            document, operations = await to_thread.run_sync(load)
        except CoreError as exc:
            return LoadedConnector(row=row, document={}, operations={}, disabled=str(exc))
        disabled = await self._find_drift(row)
        return LoadedConnector(row=row, document=document, operations=operations, disabled=disabled)

    async def _find_drift(self, row: ConnectorRow) -> str | None:
        """Compare the source with the approved document, which stays in use while the source can't be read."""
        remedy = (
            f"look at it with: indus connectors doctor {row.name}; approve it with: indus connectors approve {row.name}"
        )
        known = f"its document has changed; {remedy}" if row.changed else None
        if is_url(row.source) and 0 <= now_ms() - row.checked_ms < _CHECK_INTERVAL_MS:
            return known
        try:
            data = await read_bytes(row.source, replace(self._web, total_s=min(_COMPARE_TIMEOUT_S, self._web.total_s)))
        except ConnectorFault:
            return known
        try:
            change = await to_thread.run_sync(find_change, row, data)
            problem = None if change is None else f"its document has changed: {change}; {remedy}"
        except CoreError as exc:
            problem = f"its document has changed and cannot be used: {exc}; {remedy}"
        if is_url(row.source):
            compared = replace(row, checked_ms=now_ms(), changed=problem is not None)
            try:
                await to_thread.run_sync(self._store.update, compared)
            except OSError:
                pass  # the next run compares again
        return problem

    @staticmethod
    def _list_usable(connector: LoadedConnector) -> Sequence[OperationSpec]:
        return () if connector.disabled is not None else tuple(connector.operations.values())

    async def _find(self, slug: str) -> tuple[LoadedConnector, OperationSpec]:
        connectors = await self._load()
        owner = self._owners.get(slug)
        if owner is not None:
            return connectors[owner], connectors[owner].operations[slug]
        for connector in connectors.values():
            if connector.disabled is not None and slug in connector.row.digests:
                message = f"{slug} was not executed: connector {connector.row.name!r} is disabled: {connector.disabled}"
                raise ActionError(message, code="drift")
        similar = [spec.slug for spec in await self._search(slug.replace("_", " ").lower(), _MAX_SIMILAR)]
        hint = f"; did you mean {' or '.join(similar)}?" if similar else "; discover finds actions by what they do."
        raise ActionError(f"there is no action {slug!r}{hint} Nothing was executed.", code="not_found")

    async def _search(self, query: str, limit: int, toolkits: Sequence[str] = ()) -> Sequence[OperationSpec]:
        return () if self._index is None else await to_thread.run_sync(self._index.search, query, limit, toolkits)

    async def _check_arguments(
        self, connector: LoadedConnector, operation: OperationSpec, arguments: JsonObject
    ) -> None:
        try:
            schema = await to_thread.run_sync(build_arguments_schema, connector.document, operation)
            problems = await ArgumentChecker(schema).check(arguments)
        except Exception as exc:  # the validator raises various types for an invalid schema
            message = f"{operation.slug} was not executed: its schema in the document cannot be used: {exc}"
            raise ActionError(message, code="bad_schema") from exc
        if problems:
            message = f"{operation.slug} was not executed: {'; '.join(problems)}"
            raise ActionError(message, code="invalid_arguments", slug=operation.slug)

    # -- answers --------------------------------------------------------------------------------

    async def _build_answer(
        self, connector: LoadedConnector, operation: OperationSpec, answer: WebResponse, credentials: Credentials
    ) -> JsonValue:
        result: dict[str, JsonValue] = {"status": answer.status}
        kind = get_media_type(answer.headers)
        if answer.body:
            result["contentType"] = kind
        headers = {name: answer.headers[name] for name in _SHOWN_HEADERS if name in answer.headers}
        if headers:
            result["headers"] = dict(headers)
        if answer.hops:
            result["redirectedTo"] = answer.target.url
        if answer.cut is not None:
            result["truncated"] = answer.cut
        result |= await to_thread.run_sync(self._parse_body, kind, answer)
        shown = clean_json(credentials.hide(result), make_visible)[0]
        assert isinstance(shown, dict)
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return shown
        raise _build_status_error(connector, operation, answer.status, shown)

    def _parse_body(self, kind: str, answer: WebResponse) -> dict[str, JsonValue]:
        """Parse a body as JSON or text, and save other bytes in a private file. Blocks."""
        data = answer.body
        if not data:
            return {"body": None}
        is_json = kind == "application/json" or kind.endswith("+json")
        is_text = is_json or not kind or kind.startswith(_TEXT_TYPES) or kind.endswith("+xml")
        if is_text and (kind or b"\0" not in data[:1024]):
            text = decode_text(data, answer.headers.get("content-type", ""), whole=answer.cut is None).text
            if (is_json or not kind) and answer.cut is None:
                try:
                    return {"body": cast("JsonValue", json.loads(text))}
                except (ValueError, RecursionError):
                    pass  # show it as text
            return {"body": text}
        facts: dict[str, JsonValue] = {"body": None, "bytes": len(data)}
        try:
            folder = make_private_dir(os.path.join(self._session.make(), "downloads"))
            path = os.path.join(folder, f"connector-{new_ulid()}.bin")
            with os.fdopen(create_private_file(path), "wb", buffering=0) as file:
                file.write(data)
        except OSError as exc:
            return {**facts, "note": f"it is no text, and could not be saved: {exc.strerror or exc}"}
        return {**facts, "savedAs": path}

    # -- descriptions ---------------------------------------------------------------------------

    def _describe_connector(self, connector: LoadedConnector) -> Mapping[str, JsonValue]:
        if connector.disabled is not None:
            return {"toolkit": connector.row.name, "disabled": connector.disabled}
        info = connector.document.get("info")
        title = info.get("title") if isinstance(info, dict) else None
        tags = dict.fromkeys(tag for spec in connector.operations.values() for tag in spec.tags)
        described: JsonObject = {
            "toolkit": connector.row.name,
            "title": title if isinstance(title, str) else "",
            "operations": len(connector.operations),
            "tags": cast("list[JsonValue]", [*tags][:_MAX_LISTED]),
        }
        return cast("JsonObject", clean_json(described)[0])

    async def _describe(self, operation: OperationSpec, *, complete: bool = False) -> Mapping[str, JsonValue]:
        connectors = await self._load()
        document = connectors[operation.connector].document
        described: dict[str, JsonValue] = {**_describe_briefly(operation)}
        description = operation.description if complete else cut_text(operation.description, _MAX_TEXT_CHARS)
        if description:
            described["description"] = description
        try:
            schema = await to_thread.run_sync(build_arguments_schema, document, operation)
            shown, is_short = (schema, False) if complete else abbreviate_schema(schema, _MAX_SCHEMA_CHARS)
        except ConnectorFault as exc:
            described["unusable"] = str(exc)
        else:
            described["arguments"] = shown
            if is_short:
                described["abbreviated"] = "discover with the slug as query shows the complete schema"
        return cast("JsonObject", clean_json(described)[0])


def _describe_briefly(operation: OperationSpec) -> Mapping[str, JsonValue]:
    described: dict[str, JsonValue] = {
        "slug": operation.slug,
        "toolkit": operation.connector,
        "request": f"{operation.method} {operation.path}",
        "summary": cut_text(operation.summary, _MAX_TEXT_CHARS),
    }
    if operation.deprecated:
        described["deprecated"] = True
    return cast("JsonObject", clean_json(described)[0])


def _build_status_error(
    connector: LoadedConnector, operation: OperationSpec, status: int, shown: JsonObject
) -> ActionError:
    """Build the error for an unsuccessful status."""
    row = connector.row
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    message = f"{operation.slug}: {row.name} answered {phrase}"
    headers = shown.get("headers")
    facts: dict[str, JsonValue] = {"status": status}
    if status == HTTPStatus.UNAUTHORIZED:
        if row.auth is None:
            message += f"; connector {row.name!r} has no credentials: add it with --auth"
        elif isinstance(row.auth, AuthReference):
            message += f"; the credentials of {', '.join(row.auth.variables)} were refused"
        else:
            message += f"; its sign-in was refused: indus connectors login {row.name}"
    elif isinstance(headers, dict) and "retry-after" in headers:
        facts["retryAfter"] = headers["retry-after"]
        message += f"; Retry-After: {cut_text(str(headers['retry-after']), 100)}"
    elif isinstance(headers, dict) and "location" in headers:
        message += f" to {cut_text(str(headers['location']), 300)}, not followed: clients disagree about its method"
    body = shown.get("body")
    if body is not None:
        text = body if isinstance(body, str) else compact_json(body)
        message += f"\n{cut_text(text, _MAX_ERROR_CHARS)}"
    return ActionError(message, code="http_status", **facts)
