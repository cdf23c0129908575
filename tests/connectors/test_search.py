"""The search of operations."""

from __future__ import annotations

from tests.support.openapi import build_document

from induscode.connectors.operations import list_operations
from induscode.connectors.search import OperationIndex, find_methods, split_words


def test_words_are_split_and_reduced_to_stems() -> None:
    assert split_words("listHTTPCategories for the users") == split_words("list http category user")
    assert split_words("releases") == split_words("release")
    assert split_words("address") == ["address"]


def test_verbs_of_a_query_name_methods() -> None:
    assert find_methods("delete the branch") == {"DELETE"}
    assert find_methods("fork a repository") == {"POST", "PUT"}
    assert find_methods("who am I") == frozenset()


def test_a_search_is_limited_to_connectors_and_may_find_nothing() -> None:
    document = build_document()
    operations = [
        spec for name in ("one", "two") for spec in list_operations(document, name, "https://x.example", "/f")[0]
    ]
    index = OperationIndex(operations)
    assert {spec.connector for spec in index.search("create invoice", 5, ["two"])} == {"two"}
    assert index.search("zebra", 5) == []
    assert index.search("", 5) == []
    assert OperationIndex(()).search("invoice", 5) == []
