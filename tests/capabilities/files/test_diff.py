"""Line differences: patches that `patch` and `git apply` accept, and excerpts for a model."""

from __future__ import annotations

import os
import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import examples

from indusagi.capabilities.files.diff import (
    MAX_EXCERPT_LINES,
    LineDiff,
    compare_lines,
    format_excerpt,
    format_first_lines,
    format_patch,
    format_visible,
)

if TYPE_CHECKING:
    from pathlib import Path

LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"\n", b"c\r\n", b"\xe9\xff\n", b"  d\n", b"-- x\n", b"@@\n"])
    | st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"") + b"\n"),
    max_size=25,
)
TAILS = st.sampled_from([b"", b"end", b"\r", b"a"])


@given(LINES, LINES, TAILS, TAILS)
def test_blocks_lead_from_the_old_version_to_the_new_one(
    old: list[bytes], new: list[bytes], old_tail: bytes, new_tail: bytes
) -> None:
    before, after = b"".join(old) + old_tail, b"".join(new) + new_tail
    diff = compare_lines(before, after)
    assert _apply_blocks(diff, before) == after
    assert len(diff.new) - len(diff.old) == diff.added - diff.removed
    assert bool(diff.blocks) == (before != after)


def _apply_blocks(diff: LineDiff, old: bytes) -> bytes:
    """Put the new version together from the old one and the blocks."""
    skipped = len(b"\n".join(old.split(b"\n")[: diff.skipped])) + 1 if diff.skipped else 0
    parts = [old[:skipped]]
    at = 0
    for block in diff.blocks:
        parts.extend(diff.old[at : block.old_start])
        parts.extend(diff.new[block.new_start : block.new_end])
        at = block.old_end
    parts.extend(diff.old[at:])
    parts.append(old[skipped + len(b"".join(diff.old)) :])
    return b"".join(parts)


def _run_patch(program: str, folder: Path, patch: bytes) -> None:
    commands = {
        "patch": ["patch", "-p1", "--binary", "--no-backup-if-mismatch", "-s", "-f"],
        "git": ["git", "apply", "--whitespace=nowarn", "-"],
    }
    done = subprocess.run(
        commands[program], cwd=folder, input=patch, capture_output=True, timeout=60, check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + patch


@pytest.mark.parametrize("program", ["patch", "git"])
@examples(0.5)
@given(LINES.filter(bool), st.randoms(use_true_random=False), TAILS, TAILS)
def test_patch_and_git_apply_produce_the_new_version(
    tmp_path: Path, program: str, old: list[bytes], chance: random.Random, old_tail: bytes, new_tail: bytes
) -> None:
    new = [line for line in old if chance.random() > 0.2]
    for _ in range(chance.randrange(4)):
        new.insert(chance.randint(0, len(new)), chance.choice([b"n\n", b"m\r\n", b"\xfe\n"]))
    # Another tool's notion of a NUL in a patch is not at stake here.
    before = (b"".join(old) + old_tail).replace(b"\0", b"0") or b"x"
    after = (b"".join(new) + new_tail).replace(b"\0", b"0") or b"y"
    (tmp_path / "file").write_bytes(before)
    patch, _ = format_patch(compare_lines(before, after), "file")
    if before == after:
        assert patch == b""
        return
    _run_patch(program, tmp_path, patch)
    assert (tmp_path / "file").read_bytes() == after


@pytest.mark.parametrize("program", ["patch", "git"])
@pytest.mark.parametrize("name", ["plain", "with space", 'quote"d', "back\\slash", "ü", "tab\there", "d/e/f g", "end "])
def test_a_patch_quotes_the_file_name_as_git_does(tmp_path: Path, program: str, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a\nb\n")
    _run_patch(program, tmp_path, format_patch(compare_lines(b"a\nb\n", b"a\nc\n"), name)[0])
    assert path.read_bytes() == b"a\nc\n"


@pytest.mark.parametrize("program", ["patch", "git"])
@pytest.mark.parametrize("content", [b"one\n", b"one\ntwo", b"\xe9\r\n"])
def test_a_patch_creates_a_file(tmp_path: Path, program: str, content: bytes) -> None:
    _run_patch(program, tmp_path, format_patch(compare_lines(b"", content), "new file", created=True)[0])
    assert (tmp_path / "new file").read_bytes() == content


def test_git_creates_an_empty_file_from_a_patch(tmp_path: Path) -> None:
    _run_patch("git", tmp_path, format_patch(compare_lines(b"", b""), "empty", created=True)[0])
    assert (tmp_path / "empty").read_bytes() == b""


@pytest.mark.parametrize("changes", [1, 40])
def test_few_changes_in_a_long_file_give_the_diff_of_diff_u(tmp_path: Path, changes: int) -> None:
    chance = random.Random(changes)
    old = [b"    }\n" if n % 7 == 0 else b"line %d\n" % n for n in range(4_000)]
    new = list(old)
    for at in chance.sample(range(0, 4_000, 20), changes):
        new[at] = b"changed %d\n" % at
    diff = compare_lines(b"".join(old), b"".join(new))
    (tmp_path / "old").write_bytes(b"".join(old))
    (tmp_path / "new").write_bytes(b"".join(new))
    done = subprocess.run(["diff", "-u", "old", "new"], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    ours = format_patch(diff, "x")[0].split(b"\n")[3:]
    assert ours == done.stdout.split(b"\n")[2:]
    assert (diff.added, diff.removed) == (changes, changes)


def test_a_patch_is_cut_at_the_end_of_a_line() -> None:
    diff = compare_lines(b"a\nb\nc", b"a\nB\nC")
    whole, done = format_patch(diff, "x")
    assert done
    assert format_patch(diff, "x", limit=len(whole)) == (whole, True)
    for limit in range(len(whole)):
        part, done = format_patch(diff, "x", limit=limit)
        assert not done
        assert whole.startswith(part)
        assert part.endswith(b"\n")


def test_versions_without_unique_lines_count_as_replaced() -> None:
    chance = random.Random(1)
    old, new = (b"".join(chance.choice([b"a\n", b"b\n"]) for _ in range(4_000)) for _ in "12")
    diff = compare_lines(old, new)
    assert _apply_blocks(diff, old) == new
    assert len(diff.blocks) == 1


def test_an_excerpt_shows_changed_lines_with_numbers_and_context() -> None:
    old = "".join(f"{n}\n" for n in range(1, 41))
    new = old.replace("10\n", "ten\n").replace("30\n", "")
    shown = format_excerpt(compare_lines(old.encode(), new.encode()), "utf-8")
    assert shown == (
        "     7\t7\n     8\t8\n     9\t9\n    10\tten\n    11\t11\n    12\t12\n    13\t13\n"
        "     …\n"
        "    27\t27\n    28\t28\n    29\t29\n    30\t31\n    31\t32\n    32\t33"
    )


def test_an_excerpt_of_many_lines_is_shortened() -> None:
    old = "".join(f"{n}\n" for n in range(1_000))
    new = "x" * 5_000 + "\n" + "y\n" * 500 + old
    shown = format_excerpt(compare_lines(old.encode(), new.encode()), "utf-8")
    assert len(shown.split("\n")) == MAX_EXCERPT_LINES + 1
    assert "… 444 more lines" in shown
    assert "… [+4700 chars]" in shown
    scattered = old.replace("0\n", "zero\n")
    shown = format_excerpt(compare_lines(old.encode(), scattered.encode()), "utf-8")
    assert "more places" in shown
    assert len(shown.split("\n")) < MAX_EXCERPT_LINES + 20


def test_an_excerpt_of_an_emptied_file_is_empty() -> None:
    assert format_excerpt(compare_lines(b"a\n", b""), "utf-8") == ""
    assert format_first_lines("") == "(empty)"


def test_blanks_and_invisible_characters_are_made_visible() -> None:
    assert format_visible("\ta b\u00a0c\u200b\r\n") == "→a·b\\u00a0c\\u200b"
    assert format_visible("a\udce9b") == "a\ufffdb"
