"""What an exit code means: for some programs 1 is an answer and no failure.

`grep` says that nothing matched, `diff` that something differs. That holds when such a program came
last and so gave the code; when something before it may have given it, a failure is a failure.
"""

from __future__ import annotations

import re

_ANSWERS = {
    "grep": "nothing matched",
    "egrep": "nothing matched",
    "fgrep": "nothing matched",
    "zgrep": "nothing matched",
    "rg": "nothing matched",
    "ag": "nothing matched",
    "pgrep": "nothing matched",
    "diff": "they differ",
    "cmp": "they differ",
    "test": "not so",
    "[": "not so",
    "[[": "not so",
    "git grep": "nothing matched",
    "git diff": "they differ",
}
_QUIET_FIRST = frozenset({"cd", "pushd", "export", "set", "echo", "printf", "true", ":", "mkdir"})
"""What may stand before it: these say so when they fail."""
_NEVER_FAIL = frozenset({"echo", "printf", "true", ":"})
"""What may stand behind it, after `&&`: these have not given the code."""
_SKIPPED = frozenset({"command", "builtin", "time", "nice", "env", "then", "do", "{", "("})
_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t]|\\\n)+)|(?P<comment>\#[^\n]*)|(?P<op>&&|\|\||[;|\n]|&(?![>0-9])|[()])"""
    r"""|(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[$<>]\([^()]*\)|[^\s;|&()'"\\]"""
    r"""|&(?=[>0-9])|[<>]&)+)|(?P<rest>.)""",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_LONGEST = 4_000
"""Characters of a command that are looked at; one that is longer is a script."""


def explain_exit_code(command: str, code: int, output: str) -> str | None:
    """Say what the exit code 1 of a command means, if it is an answer; else None."""
    if code != 1 or len(command) > _LONGEST or "<<" in command:
        return None
    steps = _steps(command)
    while steps and steps[-1][0] == "&&" and steps[-1][1][0] in _NEVER_FAIL:
        steps.pop()
    if not steps:
        return None
    answer = _answer(steps[-1][1])
    if answer is None or _may_end_before([words for _, words in steps[:-1]]):
        return None
    if not all(_is_sure(before, step) for before, step in _guards(steps)):
        return None
    # The shell itself complained: something could not be run.
    return None if re.search(r"^\S*bash: (line \d+: )?", output, re.MULTILINE) else answer


def _may_end_before(former: list[list[str]]) -> bool:
    """Tell whether one of these may have given the code, and the last one may not have run."""
    if any("exit" in words[:2] for words in former):
        return True
    strict = any(words[0] == "set" and _is_strict(words[1:]) for words in former)
    return strict and not all(words[0] in _QUIET_FIRST for words in former)


def _is_strict(options: list[str]) -> bool:
    return any(option in {"errexit", "pipefail"} or re.fullmatch(r"-\w*e\w*", option) for option in options)


def _guards(steps: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """List the steps without whose success the last one would not have run."""
    found: list[tuple[str, list[str]]] = []
    for at in range(len(steps) - 1, 0, -1):
        if steps[at][0] not in {"&&", "||", "|"}:
            break
        if steps[at][0] != "|":
            found.append((steps[at][0], steps[at - 1][1]))
    return found


def _is_sure(operator: str, words: list[str]) -> bool:
    return operator == "&&" and bool(words) and words[0] in _QUIET_FIRST


def _answer(words: list[str]) -> str | None:
    while words and (words[0] in _SKIPPED or _ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    if not words:
        return None
    name = words[0].rpartition("/")[2]
    if name == "git":
        name = f"git {words[1]}" if len(words) > 1 else name
    return _ANSWERS.get(name)


def _steps(command: str) -> list[tuple[str, list[str]]]:
    """Take a command apart into simple ones, each with the operator before it."""
    steps: list[tuple[str, list[str]]] = [("", [])]
    for match in _TOKEN.finditer(command):
        kind, text = match.lastgroup, match.group()
        if kind == "rest":  # a quote without its end, or what is no shell at all
            return []
        if kind == "op":
            steps.append((text, []))
        elif kind == "word":
            steps[-1][1].append(text)
    # An operator at the end of a line, or an empty line, starts nothing.
    return [step for step in steps if step[1]]
