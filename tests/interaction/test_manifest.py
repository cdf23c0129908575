"""A test for each requirement and a requirement for each test."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from tests.interaction.findings import FINDINGS, THIRD_REVIEW
from tests.interaction.requirements import REQUIREMENTS

HERE = Path(__file__)


def shown() -> dict[str, tuple[str, ...]]:
    """Map every other test of this folder to the requirements it shows."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(HERE.parent.glob("test_*.py")):
        if path == HERE:
            continue
        spec = importlib.util.spec_from_file_location(f"manifest_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in vars(module).items():
            if name.startswith("test_"):
                found[f"{path.stem}::{name}"] = value.__dict__.get("requirements", ())
    return found


def test_every_test_shows_a_requirement() -> None:
    assert [name for name, ids in shown().items() if not ids] == []


def test_every_requirement_is_shown_by_a_test_and_no_other_is_named() -> None:
    named = {identity for ids in shown().values() for identity in ids}
    assert named == {requirement.id for requirement in REQUIREMENTS}


def test_no_id_stands_for_two_requirements() -> None:
    ids = [requirement.id for requirement in REQUIREMENTS]
    assert len(ids) == len(set(ids))


def test_every_finding_has_a_test_and_every_such_test_a_finding() -> None:
    tests = HERE.parents[1]
    names = {
        identity
        for path in tests.rglob("test_*.py")
        for identity in re.findall(r"def test_finding_(\d?[a-z]\d+[a-z]?|s[a-g])_", path.read_text("utf-8"))
    }
    assert not FINDINGS.keys() & THIRD_REVIEW.keys()
    assert names == FINDINGS.keys() | THIRD_REVIEW.keys()
