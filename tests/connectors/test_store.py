"""The store of connectors, and the credentials it refers to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.openapi import add_in_thread, build_document

from induscode.connectors.auth import parse_auth
from induscode.connectors.openapi import ConnectorFault
from induscode.connectors.sources import examine_source, find_change
from induscode.connectors.store import ConnectorStore, check_name


def _add(folder: Path, auth: str | None = None, name: str = "shop") -> ConnectorStore:
    return add_in_thread(folder, build_document(), "https://api.shop.example", auth, name)


def test_a_row_survives_the_file(tmp_path: Path) -> None:
    store = _add(tmp_path, "header:X-Key:SHOP_TOKEN")
    rows, is_damaged = ConnectorStore(store.folder).read()
    row = rows["shop"]
    assert (is_damaged, str(row.auth), row.base_url) == (False, "header:X-Key:SHOP_TOKEN", "https://api.shop.example")
    assert len(row.digests) == 319
    assert store.read_document("shop")["openapi"] == "3.0.3"
    for path in (Path(store.folder), Path(store.folder, "connectors.json"), Path(store.folder, "connectors/shop.json")):
        assert path.stat().st_mode & 0o077 == 0


def test_a_name_is_taken_until_it_is_removed(tmp_path: Path) -> None:
    store = _add(tmp_path)
    row, document = store.read()[0]["shop"], store.read_document("shop")
    with pytest.raises(ConnectorFault, match="there is a connector 'shop' already"):
        store.add(row, document)
    assert store.remove("shop")
    assert not store.has_rows()
    assert not store.remove("shop")
    assert not Path(store.folder, "connectors/shop.json").exists()


def test_a_comparison_does_not_bring_back_what_was_removed_or_approved(tmp_path: Path) -> None:
    store = _add(tmp_path)
    row = store.read()[0]["shop"]
    store.update(replace(row, changed=True))
    assert store.read()[0]["shop"].changed
    store.update(replace(row, source_digest="other", changed=False))
    assert store.read()[0]["shop"].changed
    store.remove("shop")
    store.update(row)
    assert store.read()[0] == {}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"connectors": {"shop": 1}}',
        '{"connectors": {"shop": {"source": "/f", "baseUrl": "https://x.example", "digests": {}, "auth": "bearer:x"}}}',
        '{"connectors": {"../shop": {"source": "/f", "baseUrl": "https://x.example", "digests": {}}}}',
    ],
)
def test_a_damaged_row_is_no_connector(tmp_path: Path, text: str) -> None:
    (tmp_path / "connectors.json").write_text(text)
    assert ConnectorStore(str(tmp_path)).read() == ({}, True)


@pytest.mark.parametrize("name", ["", "Shop", "a b", "../x", "x" * 33, "1a"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConnectorFault, match="cannot be the name of a connector"):
        check_name(name)


@pytest.mark.parametrize(
    "text",
    [
        *("bearer:ghp_notASecret", "bearer:", "bearer", "oauth:X", "bearer:A:B"),
        *("header:X-Key", "header:bad name:OWN", "basic:ADA", "query:k:sk-live-123"),
    ],
)
def test_a_secret_in_place_of_a_variable_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConnectorFault) as caught:
        parse_auth(text)
    for part in text.split(":")[1:]:
        assert len(part) < 3 or part not in str(caught.value)


def test_a_value_with_line_ends_is_not_sent() -> None:
    with pytest.raises(ConnectorFault, match="the variable TOKEN contains characters a header can't carry"):
        parse_auth("bearer:TOKEN").read_credentials({"TOKEN": "abc\r\nX-Evil: 1"})


def test_credentials_do_not_show_in_their_repr() -> None:
    credentials = parse_auth("basic:A:B").read_credentials({"A": "ada", "B": "s3cr3t"})
    assert "s3cr3t" not in repr(credentials)
    assert credentials.hide({"s3cr3t": ["x s3cr3t", 1]}) == {"[B]": ["x [B]", 1]}


def test_a_new_server_in_the_document_is_a_change_unless_the_base_url_was_given(tmp_path: Path) -> None:
    document = build_document()
    data = json.dumps(document).encode()
    moved = json.dumps({**document, "servers": [{"url": "https://evil.example"}]}).encode()
    taken = examine_source("shop", str(tmp_path / "f"), data, None, None).row
    change = find_change(taken, moved)
    assert change is not None
    assert change.base_url == "https://evil.example"
    given = examine_source("shop", str(tmp_path / "f"), data, "https://api.shop.example", None).row
    assert find_change(given, moved) is None


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("ftp://x.example", "another scheme"),
        ("https://user:pass@x.example", "user name or password"),
        ("https://x.example?a=b", "has a query"),
        ("http://0x7f.1/", "four decimal numbers"),
    ],
)
def test_other_base_urls_are_refused(base: str, message: str) -> None:
    with pytest.raises(ConnectorFault, match=message):
        examine_source("shop", "/f", json.dumps(build_document()).encode(), base, None)
