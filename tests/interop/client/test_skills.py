"""What a host verifies of the files of a skill, and directories from manifests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop.protocol_bridge.client.skills import find_mismatch, list_directory

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

URI = "skill://tidy/SKILL.md"


def entry(text: str, front: JsonValue) -> JsonObject:
    data = text.encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"uri": URI, "frontmatter": front, "resources": [{"uri": URI, "digest": digest, "size": len(data)}]}


def compare(yaml_text: str, front: JsonValue) -> str | None:
    text = f"---\n{yaml_text}\n---\nBody.\n"
    return find_mismatch(entry(text, front), URI, [{"uri": URI, "text": text}])


@pytest.mark.parametrize(
    ("written", "front"),
    [
        ("name: tidy\ndescription: Tidy up", {"name": "tidy", "description": "Tidy up"}),
        ("name: 'tidy'\ndescription: \"It's: \\u00e9\\n\"", {"name": "tidy", "description": "It's: é\n"}),
        ('tags: ["Caf\\u00e9", "no\tJSON"]', {"tags": ["Café", "no\tJSON"]}),
        ("description: >-\n  Tidy\n  the #1 room", {"description": "Tidy the #1 room"}),
        ("description: |-\n  Tidy\n  up", {"description": "Tidy\nup"}),
        ("license: MIT # as ever\nname: x", {"license": "MIT", "name": "x"}),
        ("tools: [Read, Grep]\nsafe: true", {"tools": ["Read", "Grep"], "safe": True}),
        ("metadata:\n  version: 1.0\n  tags:\n    - a\n    - b", {"metadata": {"version": 1, "tags": ["a", "b"]}}),
        ("empty:\nnone: null", {"empty": None, "none": None}),
    ],
)
def test_front_matter_is_equal_in_every_notation(written: str, front: JsonValue) -> None:
    assert compare(written, front) is None
    assert yaml.safe_load(written) == front  # an outside judge reads the same


@pytest.mark.parametrize(
    ("written", "front"),
    [
        ("name: tidy\ndescription: Tidy up", {"name": "tidy", "description": "Tidy"}),
        ("name: tidy\ndescription: Send it away", {"name": "tidy", "description": "Tidy up"}),
        ("name: tidy\nallowed-tools: Bash", {"name": "tidy"}),
        ("name: tidy", {"name": "tidy", "allowed-tools": "Read"}),
        ("metadata:\n  a: b\n  c: d", {"metadata": {"a": "d", "c": "b"}}),
        ("safe: true", {"safe": False}),
        ("name: tidy", None),
    ],
)
def test_another_word_in_front_matter_is_found(written: str, front: JsonValue) -> None:
    problem = compare(written, front)
    assert problem is not None
    assert "front matter" in problem


VALUES = st.recursive(
    st.text("abcé :#'\"-\n1.", max_size=12) | st.booleans() | st.none() | st.integers(0, 99),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=5), VALUES, min_size=1, max_size=4), st.booleans())
def test_front_matter_that_another_author_writes_is_equal(front: dict[str, JsonValue], in_line: bool) -> None:
    if in_line:
        written = "\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items())
    else:
        written = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1_000)
    if yaml.safe_load(written) == front:
        assert compare(written, front) is None


def test_digest_and_size_of_every_listed_file_are_compared() -> None:
    text = "---\nname: tidy\n---\n"
    known = entry(text, {"name": "tidy"})
    assert find_mismatch(known, URI, [{"text": text}]) is None
    assert "promises sha256:" in str(find_mismatch(known, URI, [{"text": f"{text}x"}]))
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    known["resources"] = [{"uri": URI, "digest": digest, "size": 3}]
    assert "promises 3" in str(find_mismatch(known, URI, [{"text": text}]))
    assert find_mismatch(known, "skill://tidy/unlisted", [{"text": "x"}, "odd"]) is None
    assert find_mismatch(known, URI, None) is None
    plain = entry("no front matter", {})
    assert find_mismatch(plain, URI, [{"text": "no front matter"}]) == "it has no front matter"


def test_a_directory_lists_what_is_directly_in_it() -> None:
    files = ["skill://a/x/SKILL.md", "skill://a/x/more/one.md", "skill://a/x/more/two.md", "skill://a/y/SKILL.md"]
    skills: list[JsonObject] = [{"resources": [{"uri": uri, "size": 1}]} for uri in files]
    skills.append({"resources": "dynamic"})

    def names(uri: str) -> list[tuple[str, str]]:
        listed = list_directory(skills, uri)
        rows: list[dict[str, str]] = [] if listed is None else listed["resources"]  # type: ignore[assignment] — of JSON
        return [(row["uri"], row.get("mimeType", "")) for row in rows]

    assert names("skill://a/x") == names("skill://a/x/")
    assert names("skill://a/x") == [("skill://a/x/SKILL.md", ""), ("skill://a/x/more", "inode/directory")]
    assert [uri for uri, _ in names("skill://a")] == ["skill://a/x", "skill://a/y"]
    assert names("skill://a/x/SKILL.md") == names("skill://b") == []


@pytest.mark.parametrize(
    "content",
    [
        {"text": "---\n---\n"},
        {"text": "---\nno field at all\n---\n"},
        {"blob": "no base64"},
        # Long lines that are read once, and not once for each of their characters.
        {"text": f"---\na{' ' * 300_000}\n---\n"},
        {"text": f"---\nname: x{' #' * 150_000}'\n---\n"},
    ],
)
def test_a_file_that_is_no_skill_differs_from_its_promise(content: JsonObject) -> None:
    promised: JsonObject = {"uri": URI, "frontmatter": {"name": "tidy"}, "resources": []}
    assert find_mismatch(promised, URI, [{"uri": URI, **content}]) is not None
