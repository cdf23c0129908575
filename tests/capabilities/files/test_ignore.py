"""Ignore rules, compared with git."""

from __future__ import annotations

import os
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.files import ignore
from indusagi.capabilities.files.ignore import IgnoreRules, RuleFile, compile_glob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ATOMS = [
    *[
        r"a",
        r"b",
        r"ab",
        r"é",
        r".x",
        r"a.b",
        r"*",
        r"?",
        r"**",
        r"/",
        r"*/",
        r"**/",
        r"/**",
        r"/**/",
        r"***",
        r"*.b",
        r"{a,b}",
        r"A",
        r"1",
        r"-",
        r".",
        r"!",
        r"#",
        r"\!",
        r"\#",
        r"\a",
        r"\*",
        r"[",
        r"]",
    ],
    *["[ab]", "[!a]", "[^b]", "[a-c]", "[[:upper:]]", "[[:alpha:]]", "[[:digit:][:space:]]", "[[:foo:]]", "[[:a]"],
    *[r"[]a]", r"[\]a]", r"[--a]", r"[b-a]", r"[a-\c]", r"[a", r"[a-"],
    *("[a\\", "\\", "\\ ", " ", "a b"),
]
NAMES = [
    *[
        r"a",
        r"b",
        r"ab",
        r"ba",
        r"A",
        r"B",
        r"1",
        r".x",
        r"a.b",
        r"b.a",
        r"é",
        r"*",
        r"[a]",
        r"!a",
        r"#a",
        r"{a,b}",
        r"a*",
        r"]",
        r"-",
        r"aab",
        r"\a",
        r"c",
        r"A1",
    ],
    *("a\\", "a b", "a ", "\udce9"),
]


@pytest.fixture(autouse=True)
def _only_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def repository(root: Path) -> Path:
    """Make the least that git takes for a repository, without starting it."""
    for folder in ("objects", "refs", "info"):
        (root / ".git" / folder).mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    return root


def by_git(root: Path) -> set[str]:
    """List the files that git does not ignore."""
    argv = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    said = subprocess.run(argv, cwd=root, capture_output=True, check=True).stdout
    return {os.fsdecode(name) for name in said.split(b"\0") if name}


def by_us(root: Path) -> set[str]:
    return set(_list_kept(str(root), "", IgnoreRules.load(str(root))))


def _list_kept(folder: str, above: str, rules: IgnoreRules) -> Iterator[str]:
    for entry in os.scandir(folder):
        is_dir = entry.is_dir(follow_symlinks=False)
        if entry.name == ".git" or rules.ignores(entry.name, is_dir=is_dir):
            continue
        if not is_dir:
            yield above + entry.name
            continue
        below = rules.below(entry.name, entry.path, os.listdir(entry.path))
        yield from _list_kept(entry.path, f"{above}{entry.name}/", below)


def grow(chance: random.Random, root: Path) -> None:
    """Plant a small tree with rules in several of its directories."""
    folders = [root]
    for _ in range(chance.randint(3, 14)):
        path = chance.choice(folders) / chance.choice(NAMES)
        if os.path.lexists(path):
            continue
        kind = chance.random()
        if kind < 0.45 and len(path.parts) - len(root.parts) < 4:
            path.mkdir()
            folders.append(path)
        elif kind > 0.95:
            path.symlink_to(chance.choice(["a", ".."]))
        else:
            path.touch()
    for folder in folders:
        if folder is root or chance.random() < 0.3:
            (folder / ".gitignore").write_bytes(rule_file(chance))
    if chance.random() < 0.3:
        (root / ".git/info/exclude").write_bytes(rule_file(chance))


def rule_file(chance: random.Random) -> bytes:
    newline = chance.choice(["\n", "\n", "\n", "\r\n"])
    lines = newline.join(rule(chance) for _ in range(chance.randint(1, 6)))
    mark = chance.choice(["", "", "", "\ufeff"])
    return (mark + lines + chance.choice(["", newline])).encode()


def rule(chance: random.Random) -> str:
    text = "".join(chance.choice(ATOMS) for _ in range(chance.choice([1, 1, 2, 2, 3, 3, 4, 5])))
    text = chance.choice(["", "", "", "", "!", "/"]) + text
    return text + chance.choice(["", "", "", "/", " ", "  "])


@pytest.mark.process
@pytest.mark.parametrize("part", range(6))
def test_random_trees_are_ignored_as_git_ignores_them(part: int, tmp_path: Path) -> None:
    """300 trees in all."""
    decided = 0
    for number in range(50):
        root = repository(tmp_path / str(number))
        grow(random.Random(part * 50 + number), root)
        kept = by_git(root)
        assert by_us(root) == kept, f"tree {part * 50 + number}"
        decided += len(kept) < sum(len(files) for _, _, files in os.walk(root))
    assert decided > 10, "hardly any rule of these trees matches a file"


RULES = [
    ("*.pyc", "a.pyc", False, True),
    ("*.pyc\n!keep.pyc", "keep.pyc", False, False),
    ("!keep.pyc\n*.pyc", "keep.pyc", False, True),
    ("build/", "build", True, True),
    ("build/", "build", False, False),
    ("/build", "build", False, True),
    ("# note", "# note", False, False),
    ("\\#a", "#a", False, True),
    ("\\!a", "!a", False, True),
    ("a ", "a", False, True),
    ("a\\ ", "a ", False, True),
    ("a\\\\ ", "a\\", False, True),
    ("[[:upper:]]", "A", False, True),
    ("[[:upper:]]", "a", False, False),
    ("*.{a,b}", "x.a", False, False),
    ("*.{a,b}", "x.{a,b}", False, True),
    ("?", "é", False, False),
    ("??", "é", False, True),
    ("*", ".x", False, True),
    ("[a", "[a", False, False),
    ("\\", "\\", False, False),
    ("a\r", "a", False, True),
    ("!", "!", False, False),
    ("/", "/", True, False),
]


@pytest.mark.parametrize(("rules", "name", "is_dir", "ignored"), RULES)
def test_single_rules_match_as_in_git(rules: str, name: str, is_dir: bool, ignored: bool, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(rules.encode())
    assert IgnoreRules.load(str(tmp_path)).ignores(name, is_dir=is_dir) is ignored


@pytest.mark.parametrize(
    "rule",
    [
        *(b"*\xa9", b"\xc3*", b"\xa9", b"*\xa9.txt", b"*.t\xc3\xa9", b"/sub/\xc3*", b"sub/\xc3\xa9"),
        *(b"\xc3\xa9*", b"/sub/*\xa9", b"sub/**", b"**/\xc3\xa9", b"s*/\xc3\xa9", b"sub/\xe9[a]"),
    ],
)
def test_half_a_character_in_a_rule_matches_bytes(rule: bytes, tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / ".gitignore").write_bytes(rule + b"\n")
    for folder in (tmp_path, tmp_path / "sub"):
        folder.mkdir(exist_ok=True)
        for name in (b"\xc3\xa9", b"\xc3\xa9.txt", b"\xc3", b"\xa9", b"a.t\xc3\xa9", b"\xe9a", b"plain"):
            (folder / os.fsdecode(name)).touch()
    assert by_us(tmp_path) == by_git(tmp_path)


def test_rules_above_apply_up_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.a\n", encoding="utf-8")
    root = repository(tmp_path / "project")
    (root / ".gitignore").write_text("*.b\n/sub/x\n", encoding="utf-8")
    (root / "sub").mkdir()
    rules = IgnoreRules.load(str(root / "sub"))
    assert [rules.ignores(name, is_dir=False) for name in ("1.a", "1.b", "x")] == [False, True, True]


def test_rules_apply_without_a_repository(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.a\n", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    assert IgnoreRules.load(str(tmp_path / "sub")).ignores("1.a", is_dir=False)


def test_a_repository_inside_another_has_rules_of_its_own(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / ".gitignore").write_text("*.a\n", encoding="utf-8")
    inner = repository(root / "inner")
    (inner / ".git/info/exclude").write_text("*.c\n", encoding="utf-8")
    rules = IgnoreRules.load(str(root)).below("inner", str(inner), os.listdir(inner))
    assert not rules.ignores("1.a", is_dir=False)
    assert rules.ignores("1.c", is_dir=False)


@pytest.mark.process
@pytest.mark.parametrize("setting", ["default", "xdg", "named", "home"])
def test_the_rules_of_the_user_have_the_lowest_precedence(
    setting: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("user")
    monkeypatch.setenv("HOME", str(home))
    place = home / ".config/git/ignore"
    if setting == "xdg":
        place = tmp_path / "settings/git/ignore"
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    elif setting != "default":
        place = home / "my-rules"
        written = "~/my-rules" if setting == "home" else str(place)
        config = f'[core]\n\texcludesFile = "{written}"\n'
        (home / ".gitconfig").write_text(config, encoding="utf-8")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("*.user\n*.own\n", encoding="utf-8")
    root = repository(tmp_path / "project")
    (root / ".git/info/exclude").write_text("!2.own\n*.x\n", encoding="utf-8")
    (root / ".gitignore").write_text("!1.user\n!1.x\n", encoding="utf-8")
    for name in ("1.user", "2.user", "1.own", "2.own", "1.x", "2.x"):
        (root / name).touch()
    assert by_us(root) == by_git(root) == {".gitignore", "1.user", "2.own", "1.x"}


def test_without_a_home_the_user_has_no_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert not IgnoreRules.load(str(tmp_path)).ignores("a", is_dir=False)


@pytest.mark.process
def test_a_worktree_has_the_rules_of_its_repository(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    root = tmp_path / "main"
    for step in (
        ["init", "-q", str(root)],
        ["-C", str(root), "commit", "-q", "--allow-empty", "-m", "first"],
        ["-C", str(root), "worktree", "add", "-q", str(tmp_path / "tree")],
    ):
        subprocess.run([*git, *step], check=True, capture_output=True)
    (root / ".git/info/exclude").write_text("*.x\n", encoding="utf-8")
    (tmp_path / "tree/a.x").touch()
    (tmp_path / "tree/a.y").touch()
    assert by_us(tmp_path / "tree") - {".git"} == by_git(tmp_path / "tree") == {"a.y"}


def test_only_a_regular_file_contains_rules(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("*\n", encoding="utf-8")
    (tmp_path / ".gitignore").symlink_to("rules")
    assert not IgnoreRules.load(str(tmp_path)).ignores("a", is_dir=False)
    (tmp_path / ".gitignore").unlink()
    os.mkfifo(tmp_path / ".gitignore")
    assert not IgnoreRules.load(str(tmp_path)).ignores("a", is_dir=False)


def test_rules_are_read_by_directory_descriptor(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.gitignore").write_text("*.a\n", encoding="utf-8")
    handle = os.open(tmp_path / "sub", os.O_RDONLY)
    try:
        rules = IgnoreRules.load(str(tmp_path)).below("sub", handle, [".gitignore"])
    finally:
        os.close(handle)
    assert rules.ignores("1.a", is_dir=False)


def test_a_hundred_thousand_plain_rules_take_one_lookup(tmp_path: Path) -> None:
    lines = "".join(f"name{number}\n" for number in range(60_000))
    (tmp_path / ".gitignore").write_text(lines, encoding="utf-8")
    rules = IgnoreRules.load(str(tmp_path))
    assert [rules.ignores(f"name{number}", is_dir=False) for number in (0, 59_999, 60_000)] == [True, True, False]


def test_a_huge_rule_file_is_applied_in_part(tmp_path: Path) -> None:
    hostile = "".join(f"*{'a*' * 20}{number}\n" for number in range(100_000))
    (tmp_path / ".gitignore").write_text(hostile, encoding="utf-8")
    rules = IgnoreRules.load(str(tmp_path))
    for _ in range(20):
        rules.ignores("a" * 250 + "b", is_dir=False)


def test_many_nested_rule_files_are_applied_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignore, "_CHAIN_BYTES", 100_000)
    lines = "".join(f"name{number}\n" for number in range(2_000))
    folder = tmp_path
    for _ in range(6):
        (folder / ".gitignore").write_text(lines, encoding="utf-8")
        folder /= "sub"
        folder.mkdir()
    rules = IgnoreRules.load(str(folder))
    assert sum(level.rules.size for level in rules.levels) <= 100_000 < 6 * len(lines)


def test_a_pattern_of_many_stars_takes_little_time() -> None:
    for glob in ("*a" * 60 + "b", "**/a*/" * 40 + "b", "a*" * 1_000 + "/**/" * 100 + "b"):
        regex = compile_glob(glob)
        assert regex is not None
        assert not regex.match("a/" * 100 + "a" * 255)
        assert not regex.match("a" * 255)


def test_names_without_a_rule_are_not_decided() -> None:
    rules = RuleFile(b"*.a\n!b.a\n")
    assert [rules.decide(name, name, is_dir=False) for name in ("a.a", "b.a", "c")] == [True, False, None]
