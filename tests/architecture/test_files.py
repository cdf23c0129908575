"""Files stay small enough to be read, and say what they are for."""

from __future__ import annotations

from tests.support.scripts import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LIMIT = 600
"""A longer file holds two nouns, or has a row here with the reason in its docstring."""
LARGER: dict[str, int] = {}


def test_a_source_file_is_short_and_begins_with_its_purpose() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in SOURCES}
    assert len(texts) > 200
    assert {name for name, text in texts.items() if len(text.splitlines()) > LARGER.get(name, LIMIT)} == set()
    assert {name for name, text in texts.items() if not text.removeprefix("r").startswith('"""')} == set()


def test_both_packages_are_typed() -> None:
    for package in ("indusagi", "induscode"):
        assert (ROOT / "src" / package / "py.typed").exists()


def test_no_commit_names_a_registry() -> None:
    for name in ("requirements.lock", "bootstrap.lock", "pyproject.toml"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8")
    assert not (ROOT / "uv.lock").exists()
