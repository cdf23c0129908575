"""The search of operations."""

from __future__ import annotations

from tests.support.openapi import build_document

from induscode.connectors.operations import OperationIndex, list_operations
from induscode.search.index import find_verb_groups, list_stems


def test_words_are_split_and_reduced_to_stems() -> None:
    assert list_stems("list-Categories for the users") == list_stems("list category user")
    assert list_stems("releases") == list_stems("release")
    assert list_stems("address") == ["address"]


def test_verbs_that_people_use_for_one_another_are_one_group() -> None:
    assert find_verb_groups(list_stems("delete the branch")) == find_verb_groups(list_stems("removing it"))
    assert find_verb_groups(list_stems("fork a repository")) == frozenset()


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
