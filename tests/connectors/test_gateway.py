"""The gateway to connectors: what is found, what is sent, and what comes back."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.http_peer import Exchange, http_server
from tests.support.openapi import add_connector, build_document, build_gateway
from tests.support.ssrf import URLS

from indusagi.capabilities.ports import WebSettings
from indusagi.core.json import is_json_object
from induscode.connectors.openapi import ConnectorFault
from induscode.deck.contract import ActionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.connectors.gateway import ConnectorGateway

pytestmark = pytest.mark.anyio

DESCRIPTIONS = {
    "add a new customer": "SHOP_CREATE_CUSTOMER",
    "show me all invoices": "SHOP_LIST_INVOICES",
    "remove a coupon": "SHOP_DELETE_COUPON",
    "change the details of a contact": "SHOP_UPDATE_CONTACT",
    "look up one employee": "SHOP_GET_EMPLOYEE",
    "put a lesson into the archive": "SHOP_ARCHIVE_LESSON",
    "delete an event permanently": "SHOP_DELETE_EVENT",
    "which discounts are there": "SHOP_LIST_DISCOUNTS",
    "open a dispute": "SHOP_CREATE_DISPUTE",
    "edit a campaign": "SHOP_UPDATE_CAMPAIGN",
    "read a single contract": "SHOP_GET_CONTRACT",
    "list the drivers": "SHOP_LIST_DRIVERS",
    "create a department": "SHOP_CREATE_DEPARTMENT",
    "archive an old dashboard": "SHOP_ARCHIVE_DASHBOARD",
    "make a gift": "SHOP_CREATE_GIFT",
    "modify the address": "SHOP_UPDATE_ADDRESS",
    "drop a label": "SHOP_DELETE_LABEL",
    "fetch an attachment": "SHOP_GET_ATTACHMENT",
    "find all leads": "SHOP_LIST_LEADS",
    "start an export": "SHOP_CREATE_EXPORT",
}


async def _open(folder: Path, url: str, *, auth: str | None = None, **variables: str) -> ConnectorGateway:
    host = url.split("/")[2]
    store = await add_connector(folder, build_document(), f"http://{host}/v1", auth=auth)
    return build_gateway(store, host, **variables)


def _object(value: JsonValue) -> JsonObject:
    assert is_json_object(value)
    return value


async def _fail(gateway: ConnectorGateway, slug: str, **arguments: JsonValue) -> ActionError:
    with pytest.raises(ActionError) as caught:
        await gateway.execute(slug, arguments)
    return caught.value


# -- discover ---------------------------------------------------------------------------------


async def test_described_operations_are_among_the_first_five_of_three_hundred(tmp_path: Path) -> None:
    gateway = build_gateway(await add_connector(tmp_path, build_document(), "https://api.shop.example"))
    (toolkit,) = await gateway.discover(None, [])
    assert toolkit["operations"] == 318
    found = 0
    for query, slug in DESCRIPTIONS.items():
        actions = await gateway.discover(query, [])
        assert len(actions) <= 5
        found += slug in [action["slug"] for action in actions]
    assert found >= 18


async def test_a_slug_as_query_shows_the_complete_schema(tmp_path: Path) -> None:
    gateway = build_gateway(await add_connector(tmp_path, build_document(), "https://api.shop.example"))
    (action,) = await gateway.discover("SHOP_UPDATE_CUSTOMER", [])
    assert action["request"] == "PATCH /customers/{id}"
    schema = _object(action["arguments"])
    assert schema["required"] == ["id", "body"]
    customer = _object(_object(schema["$defs"])["Customer"])
    assert customer["required"] == ["name"]
    assert "id" not in _object(customer["properties"])


async def test_a_toolkit_without_a_query_lists_its_operations(tmp_path: Path) -> None:
    gateway = build_gateway(await add_connector(tmp_path, build_document(), "https://api.shop.example"))
    actions = await gateway.discover(None, ["shop"])
    assert len(actions) == 50
    assert actions[0]["slug"] == "SHOP_LIST_ACCOUNTS"
    with pytest.raises(ActionError, match="there is no connector 'shp'; there are: shop"):
        await gateway.discover(None, ["shp"])


async def test_invisible_characters_of_a_document_are_removed(tmp_path: Path) -> None:
    get: JsonObject = {"operationId": "get", "summary": "Get it\u200b\U000e0041", "description": "x\u202ey"}
    document = build_document(paths={"/it": {"get": get}})
    gateway = build_gateway(await add_connector(tmp_path, document, "https://api.shop.example"))
    (action,) = await gateway.discover("get it", [])
    assert (action["summary"], action["description"]) == ("Get it", "xy")


# -- execute: requests ------------------------------------------------------------------------


async def _echo(exchange: Exchange) -> None:
    request = exchange.request
    await exchange.reply_json(
        {
            "method": request.method,
            "path": request.path,
            "authorization": request.headers.get("authorization"),
            "key": request.headers.get("x-key"),
            "body": request.body.decode(),
        }
    )


async def test_right_arguments_are_sent_and_the_answer_is_parsed(tmp_path: Path) -> None:
    async with http_server(_echo) as server:
        gateway = await _open(tmp_path, server.url)
        answer = _object(
            await gateway.execute("SHOP_UPDATE_CUSTOMER", {"id": "a/b?c#d", "body": {"name": "Ada", "size": None}})
        )
        listed = _object(await gateway.execute("SHOP_LIST_CUSTOMERS", {"limit": 3}))
    assert answer["status"] == 200
    assert answer["body"] == {
        "method": "PATCH",
        "path": "/v1/customers/a%2Fb%3Fc%23d",
        "authorization": None,
        "key": None,
        "body": '{"name":"Ada","size":null}',
    }
    assert _object(listed["body"])["path"] == "/v1/customers?limit=3"


@pytest.mark.parametrize(
    ("slug", "arguments", "problem"),
    [
        ("SHOP_UPDATE_CUSTOMER", {"id": "1", "body": {"nam": "x"}}, "'body.name' is missing and required"),
        ("SHOP_UPDATE_CUSTOMER", {"body": {"name": "x"}}, "'id' is missing and required"),
        ("SHOP_LIST_CUSTOMERS", {"limit": "many"}, "'limit' must be integer"),
        ("SHOP_LIST_CUSTOMERS", {"limt": 3}, "did you mean 'limit'"),
        ("SHOP_CREATE_CUSTOMER", {"body": {"name": "x", "size": 0}}, "0"),
        ("SHOP_GET_CUSTOMER", {"id": ".."}, "it cannot be '..'"),
        ("SHOP_GET_CUSTOMER", {"id": "a/../b"}, "it cannot be 'a/../b'"),
        ("SHOP_GET_CUSTOMER", {"id": ""}, "it cannot be ''"),
    ],
)
async def test_wrong_arguments_send_nothing(tmp_path: Path, slug: str, arguments: JsonObject, problem: str) -> None:
    async with http_server(_echo) as server:
        gateway = await _open(tmp_path, server.url)
        error = await _fail(gateway, slug, **arguments)
    assert error.code == "invalid_arguments"
    assert problem in str(error)
    assert not server.requests


async def test_an_action_with_an_unusable_schema_is_not_executed(tmp_path: Path) -> None:
    kind: JsonObject = {"name": "kind", "in": "query", "schema": {"enum": 3}}
    operation: JsonObject = {"operationId": "LIST_KINDS", "summary": "List", "parameters": [kind]}
    async with http_server(_echo) as server:
        host = server.url.split("/")[2]
        store = await add_connector(tmp_path, build_document(paths={"/kinds": {"get": operation}}), f"http://{host}")
        error = await _fail(build_gateway(store, host), "SHOP_LIST_KINDS", kind="new")
    assert (error.code, server.requests) == ("bad_schema", [])
    assert "its schema in the document cannot be used" in str(error)


async def test_an_unknown_slug_is_named_as_given_with_similar_ones(tmp_path: Path) -> None:
    gateway = build_gateway(await add_connector(tmp_path, build_document(), "https://api.shop.example"))
    error = await _fail(gateway, "SHOP_CUSTOMER_CREATE")
    assert error.code == "not_found"
    assert "there is no action 'SHOP_CUSTOMER_CREATE'" in str(error)
    assert "SHOP_CREATE_CUSTOMER" in str(error)


async def test_a_recorded_slug_stays_as_it_is(tmp_path: Path) -> None:
    operation: JsonObject = {"operationId": "GITHUB_CREATE_ISSUE", "summary": "Create an issue"}
    document = build_document(paths={"/issues": {"post": operation}})
    async with http_server(_echo) as server:
        host = server.url.split("/")[2]
        store = await add_connector(tmp_path, document, f"http://{host}", name="github")
        answer = _object(await build_gateway(store, host).execute("GITHUB_CREATE_ISSUE", {}))
    assert _object(answer["body"])["method"] == "POST"
    assert server.requests[0].headers["content-length"] == "0"


# -- execute: credentials ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ("bearer:SHOP_TOKEN", {"authorization": "Bearer [SHOP_TOKEN]"}),
        ("header:X-Key:SHOP_TOKEN", {"key": "[SHOP_TOKEN]"}),
        ("query:api_key:SHOP_TOKEN", {"path": "/v1/customers?limit=1&api_key=[SHOP_TOKEN]"}),
        ("basic:SHOP_USER:SHOP_TOKEN", {"authorization": "Basic [SHOP_USER+SHOP_TOKEN]"}),
    ],
)
async def test_credentials_are_sent_and_never_shown(tmp_path: Path, auth: str, expected: JsonObject) -> None:
    secret = "s3cr3t/+= v"
    async with http_server(_echo) as server:
        gateway = await _open(tmp_path, server.url, auth=auth, SHOP_TOKEN=secret, SHOP_USER="ada")
        answer = await gateway.execute("SHOP_LIST_CUSTOMERS", {"limit": 1})
    body = _object(_object(answer)["body"])
    assert {name: body[name] for name in expected} == expected
    assert secret not in json.dumps(answer)
    request = server.requests[0]
    sent = [request.headers.get("authorization"), request.headers.get("x-key"), request.path]
    assert any(text and ("s3cr3t" in text or text == "Basic YWRhOnMzY3IzdC8rPSB2") for text in sent)
    assert secret not in (tmp_path / "state" / "connectors.json").read_text()


async def test_a_variable_without_a_value_is_named(tmp_path: Path) -> None:
    async with http_server(_echo) as server:
        gateway = await _open(tmp_path, server.url, auth="bearer:SHOP_TOKEN")
        error = await _fail(gateway, "SHOP_LIST_CUSTOMERS")
    assert error.code == "auth"
    assert "the variable SHOP_TOKEN is not set" in str(error)
    assert not server.requests


async def test_a_secret_in_the_query_is_hidden_in_errors(tmp_path: Path) -> None:
    async def move(exchange: Exchange) -> None:
        await exchange.reply(302, headers={"Location": f"https://elsewhere.example{exchange.request.path}"})

    async with http_server(move) as server:
        gateway = await _open(tmp_path, server.url, auth="query:key:SHOP_TOKEN", SHOP_TOKEN="s3cr3t")
        error = await _fail(gateway, "SHOP_LIST_CUSTOMERS")
    assert "key=[SHOP_TOKEN]" in str(error)
    assert "s3cr3t" not in f"{error} {error.facts}"


# -- execute: answers -------------------------------------------------------------------------


def _answer(status: int, body: bytes = b"", **headers: str) -> Callable[[Exchange], Awaitable[None]]:
    async def behave(exchange: Exchange) -> None:
        await exchange.reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return behave


async def test_401_names_the_variable(tmp_path: Path) -> None:
    async with http_server(_answer(401, b'{"message":"Bad credentials"}', Content_Type="application/json")) as server:
        gateway = await _open(tmp_path, server.url, auth="bearer:SHOP_TOKEN", SHOP_TOKEN="s3cr3t")
        error = await _fail(gateway, "SHOP_LIST_CUSTOMERS")
    assert (error.code, error.facts["status"]) == ("http_status", 401)
    assert "answered 401 Unauthorized; the credentials of SHOP_TOKEN were refused" in str(error)
    assert "Bad credentials" in str(error)


async def test_429_reports_when_to_try_again(tmp_path: Path) -> None:
    async with http_server(_answer(429, b"slow down", Content_Type="text/plain", Retry_After="17")) as server:
        gateway = await _open(tmp_path, server.url)
        error = await _fail(gateway, "SHOP_LIST_CUSTOMERS")
    assert (error.facts["status"], error.facts["retryAfter"]) == (429, "17")
    assert "Retry-After: 17" in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_within_the_host_is_followed(tmp_path: Path, status: int) -> None:
    async def move(exchange: Exchange) -> None:
        if exchange.request.path == "/v1/customers":
            await exchange.reply(status, headers={"Location": "/v2/customers"})
        else:
            await _echo(exchange)

    async with http_server(move) as server:
        gateway = await _open(tmp_path, server.url, auth="bearer:SHOP_TOKEN", SHOP_TOKEN="s3cr3t")
        answer = _object(await gateway.execute("SHOP_LIST_CUSTOMERS", {}))
    assert _object(answer["body"])["path"] == "/v2/customers"
    assert str(answer["redirectedTo"]).endswith("/v2/customers")
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer s3cr3t"] * 2


@pytest.mark.parametrize(("status", "method", "body"), [(307, "POST", '{"name":"x"}'), (303, "GET", "")])
async def test_a_writing_request_is_repeated_or_becomes_a_reading_one(
    tmp_path: Path, status: int, method: str, body: str
) -> None:
    async def move(exchange: Exchange) -> None:
        if exchange.request.path == "/v1/customers":
            await exchange.reply(status, headers={"Location": "/v2/customers"})
        else:
            await _echo(exchange)

    async with http_server(move) as server:
        gateway = await _open(tmp_path, server.url)
        answer = _object(await gateway.execute("SHOP_CREATE_CUSTOMER", {"body": {"name": "x"}}))
    echoed = _object(answer["body"])
    assert (echoed["method"], echoed["body"]) == (method, body)


async def test_a_moved_writing_request_is_not_repeated_by_another_method(tmp_path: Path) -> None:
    async with http_server(_answer(302, Location="/v2/customers")) as server:
        gateway = await _open(tmp_path, server.url)
        error = await _fail(gateway, "SHOP_CREATE_CUSTOMER", body={"name": "x"})
    assert "302 Found to /v2/customers, not followed" in str(error)
    assert len(server.requests) == 1


async def test_a_redirect_to_another_port_gets_no_request(tmp_path: Path) -> None:
    async with http_server(_echo) as other, http_server(_answer(302, Location=other.url)) as server:
        host = server.url.split("/")[2]
        store = await add_connector(tmp_path, build_document(), f"http://{host}", auth="bearer:SHOP_TOKEN")
        gateway = build_gateway(store, "127.0.0.1", SHOP_TOKEN="s3cr3t")
        error = await _fail(gateway, "SHOP_LIST_CUSTOMERS")
    assert error.code == "redirect"
    assert "not followed" in str(error)
    assert not other.requests


async def test_a_huge_answer_is_cut_and_says_so(tmp_path: Path) -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.head(200, {"Content-Type": "application/json"})
        await exchange.write(b'["')
        for _ in range(96):
            await exchange.write(b"x" * 65_536)
        exchange.end()

    async with http_server(flood) as server:
        gateway = await _open(tmp_path, server.url)
        answer = _object(await gateway.execute("SHOP_LIST_CUSTOMERS", {}))
    assert answer["truncated"] == "size"
    assert len(str(answer["body"])) == 5 * 1024 * 1024


async def test_a_compression_bomb_is_cut(tmp_path: Path) -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    async with http_server(_answer(200, bomb, Content_Type="text/plain", Content_Encoding="gzip")) as server:
        gateway = await _open(tmp_path, server.url)
        answer = _object(await gateway.execute("SHOP_LIST_CUSTOMERS", {}))
    assert answer["truncated"] == "size"
    assert len(str(answer["body"])) == WebSettings().hard_bytes


async def test_xml_of_any_kind_is_text(tmp_path: Path) -> None:
    async with http_server(_answer(200, b"<feed/>", Content_Type="application/atom+xml")) as server:
        gateway = await _open(tmp_path, server.url)
        answer = _object(await gateway.execute("SHOP_LIST_CUSTOMERS", {}))
    assert answer["body"] == "<feed/>"


async def test_a_binary_answer_is_saved_in_a_private_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    async with http_server(_answer(200, data, Content_Type="application/zip")) as server:
        gateway = await _open(tmp_path, server.url)
        answer = _object(await gateway.execute("SHOP_LIST_CUSTOMERS", {}))
    path = anyio.Path(str(answer["savedAs"]))
    assert (answer["body"], answer["bytes"]) == (None, len(data))
    assert await path.read_bytes() == data
    assert (await path.stat()).st_mode & 0o777 == 0o600


async def test_an_empty_answer_and_invalid_json_are_answers(tmp_path: Path) -> None:
    async with http_server(_answer(204)) as server:
        assert await (await _open(tmp_path, server.url)).execute("SHOP_LIST_CUSTOMERS", {}) == {
            "status": 204,
            "body": None,
        }
    async with http_server(_answer(200, b'{"half', Content_Type="application/json")) as server:
        answer = await (await _open(tmp_path, server.url)).execute("SHOP_LIST_CUSTOMERS", {})
    assert _object(answer)["body"] == '{"half'


async def test_invisible_characters_of_an_answer_are_escaped(tmp_path: Path) -> None:
    body = json.dumps({"text": "a\u200bb"}).encode()
    async with http_server(_answer(200, body, Content_Type="application/json")) as server:
        answer = await (await _open(tmp_path, server.url)).execute("SHOP_LIST_CUSTOMERS", {})
    text = str(_object(_object(answer)["body"])["text"])
    assert "\u200b" not in text
    assert "200b" in text.lower()


# -- execute: where requests may go -----------------------------------------------------------


@pytest.mark.parametrize("url", [url for url in URLS if "{port}" in url or "169" in url])
async def test_ssrf_forms_of_a_base_url_reach_nothing(tmp_path: Path, url: str) -> None:
    async with http_server(_echo) as server:
        port = server.url.split(":")[2].split("/")[0]
        operation: JsonObject = {"operationId": "get", "summary": "Get"}
        document = build_document(paths={"/it": {"get": operation}})
        base = url.format(port=port).rstrip("/")
        refusal = ""
        try:
            store = await add_connector(tmp_path, document, base)
        except ConnectorFault:
            refusal = "when it is added"
        else:
            refusal = (await _fail(build_gateway(store), "SHOP_GET")).code
    assert refusal in {"when it is added", "denied", "not_found", "unsupported"}
    assert not server.requests


async def test_a_named_host_is_reached_and_its_neighbour_is_not(tmp_path: Path) -> None:
    async with http_server(_echo) as server:
        host = server.url.split("/")[2]
        store = await add_connector(tmp_path, build_document(), f"http://{host}")
        assert _object(await build_gateway(store, host).execute("SHOP_LIST_CUSTOMERS", {}))["status"] == 200
        error = await _fail(build_gateway(store, "127.0.0.1:1"), "SHOP_LIST_CUSTOMERS")
    assert error.code == "denied"
    assert "--web-allow" in str(error)
    assert len(server.requests) == 1


# -- changed documents ------------------------------------------------------------------------


async def test_a_changed_document_disables_the_connector_until_it_is_approved(tmp_path: Path) -> None:
    async with http_server(_echo) as server:
        host = server.url.split("/")[2]
        store = await add_connector(tmp_path, build_document(), f"http://{host}")
        source = tmp_path / "shop-openapi.json"
        text = source.read_text()
        source.write_text(text.replace("Delete a customer for good", "Delete a customer, ask the admin first"))
        error = await _fail(build_gateway(store, host), "SHOP_LIST_CUSTOMERS")
        (listed,) = await build_gateway(store, host).discover("customer", ["shop"])
        assert not server.requests
        source.write_text(json.dumps(json.loads(text), indent=1).replace('"done"', '"fine"'))
        answer = _object(await build_gateway(store, host).execute("SHOP_LIST_CUSTOMERS", {}))
    assert error.code == "drift"
    assert "1 changed (SHOP_DELETE_CUSTOMER)" in str(error)
    assert "indus connectors approve shop" in str(listed["disabled"])
    assert answer["status"] == 200, "responses and white space make no difference"


async def test_an_absent_source_leaves_the_approved_document_in_use(tmp_path: Path) -> None:
    async with http_server(_echo) as server:
        host = server.url.split("/")[2]
        store = await add_connector(tmp_path, build_document(), f"http://{host}")
        (tmp_path / "shop-openapi.json").unlink()
        answer = _object(await build_gateway(store, host).execute("SHOP_LIST_CUSTOMERS", {}))
    assert answer["status"] == 200


async def test_a_lost_document_disables_the_connector(tmp_path: Path) -> None:
    store = await add_connector(tmp_path, build_document(), "https://api.shop.example")
    (tmp_path / "state" / "connectors" / "shop.json").write_text("{")
    error = await _fail(build_gateway(store), "SHOP_LIST_CUSTOMERS")
    assert error.code == "drift"
    assert "remove and add the connector" in str(error)
