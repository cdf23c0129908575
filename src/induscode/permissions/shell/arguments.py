"""Checks whether a rule with a `*` covers a command's arguments.

A rule such as `bash(sort *)` covers `sort` with operands and with the options that the program table lists as harmless.
Anything else is a `Problem` unless the rule spells out the word: an unlisted option, a word that only the shell can
resolve (`$x`, `*`), a program text that may run or write something.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from indusagi.core.records import record
from induscode.deck.programs.git import Check, Program
from induscode.deck.programs.table import (
    MODULES,
    NEVER_SAVED,
    PACKAGE,
    PROGRAMS,
    SAVED_AS_WRITTEN,
    STARTING_WORDS,
    TASK_RUNNERS,
)
from induscode.permissions.shell.launchers import find_launch, find_runner
from induscode.permissions.shell.syntax import Word

_UNKNOWN_PROGRAM = Program()
_PLAIN_OPERAND = re.compile(r"(?![-+@])(?!/(?:dev|proc)/)[\w./:@,+%~^-]+")
_VERSIONED = re.compile(r"(python|pypy|lua|perl|ruby|php)[0-9.]+w?")
_INPUT_FILE = re.compile(r"/(?:dev|proc)/.*|(?:.*/)?(?:stdin|fd/[0-9]+|[0-9]+)|\+.*|[a-z][a-z0-9+.-]+:.*")
"""Scripts that aren't files: standard input, URLs. Shells treat `+x` as an option."""
_PRINTS_VARIABLE = re.compile(r"%[-+ #0-9.*']*[hlLjzt]*n")
"""`%n` of bash's `printf` sets a variable: https://man7.org/linux/man-pages/man1/bash.1.html, `printf`."""
_PACKAGE = re.compile(PACKAGE)
_TEST_UNARY = frozenset(f"-{letter}" for letter in "bcdefgGhkLnNOprsStuwxz")
_TEST_INTEGER = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_TEST_BINARY = _TEST_INTEGER | {"=", "==", "!=", "<", ">", "-nt", "-ot", "-ef"}
_TEST_OTHER = frozenset(["!", "(", ")", "-a"])
_INTEGER = re.compile(r"[+-]?[0-9]+|\$[?#$]|\$\{[?#]\}")
_AWK_RUNS = re.compile(r"system|getline|close|@|\bcmd\b")
_AWK_ACTS = re.compile(r"system|getline|close|printf?[^;}\n]*[>|]|[>|]|@|\bcmd\b")
_SED_TEXT = r"(?:(?!\1)[^\\\n]|\\[^\n])*"
_SED_CLASS = r"\[[:.=]\w+[:.=]\]"
_SED_LIST = rf"\[\^?+\]?+(?:{_SED_CLASS}|(?!\1)[^\]\[/\\\n])*\]"
"""A bracket expression without the delimiter: a delimiter inside brackets doesn't end the pattern."""
_SED_PATTERN = rf"(?:(?!\1)[^\[\\\n]|\\[^\n]|{_SED_LIST})*"
_SED_ADDRESS_PATTERN = _SED_PATTERN.replace(r"(?!\1)", "(?!/)")
_SED_ADDRESS = rf"(?:[0-9]+|\$|/{_SED_ADDRESS_PATTERN}/I?)"
_SED_COMMAND = re.compile(
    rf"[\s;]*(?:{_SED_ADDRESS}(?:,[+~]?{_SED_ADDRESS})?)?\s*!?\s*"
    rf"(?:\{{|\}}|(?:[pdDPgGhHxnN=]|[qQ][0-9]*|s([/|#,:]){_SED_PATTERN}\1{_SED_TEXT}\1[gpiI0-9]*)"
    r"\s*(?=[;\n}]|$))"
)
_SPREADS = re.compile(r"[\s*?\[]|^$")
"""Values that an unquoted expansion splits, globs or drops."""
_CURL_DATA = frozenset({"-d", "-H", "--header"})
_CURL_FILE = re.compile(r"@.*", re.DOTALL)
_TAR_HOST = re.compile(r"[^/]*:")
"""An archive on another host: https://man7.org/linux/man-pages/man1/tar.1.html, `--force-local`."""
_ENVIRONMENT_PROGRAM = re.compile(r"(?:python|pypy)[0-9.]*|ruby|node|pytest|py\.test|ruff|mypy|black")
"""Programs of a project's environment. Others in the table need a separate rule."""
_ENVIRONMENT_TOOLS = frozenset({"pytest", "py.test", "ruff", "mypy", "black"})
_STARTED = re.compile(r"(?![-+])[\w./+@-]+")
"""A plain name: Bundler passes any other single word to a shell."""
_SHELL_TEXT = re.compile(r"[;&|<>$`(){}\n]")
"""hatch joins its arguments and passes them to a shell."""


@record
class Problem:
    """The reason a rule doesn't cover a command's arguments."""

    reason: str
    acts: bool = False
    """Whether the arguments run or write something else. Such a command never gets a rule."""


def find_program(name: str) -> Program | None:
    """Look up a program, ignoring its directory and version."""
    base = os.path.basename(name.rstrip("/"))
    program = PROGRAMS.get(base)
    versioned = _VERSIONED.fullmatch(base) if program is None else None
    return PROGRAMS.get(versioned[1]) if versioned else program


def find_problem(words: Sequence[Word], named: frozenset[int] = frozenset(), *, fed: bool = False) -> Problem | None:
    """Return the first problem with a command's arguments, or `None` if they're harmless.

    `named` has the indexes of the words that a rule spells out. `fed`: another command writes to its standard input.
    """
    name = words[0].shown
    program = find_program(name)
    if (program is None or program.always_acts) and len(words) == 2 and words[1].text in {"--version", "--help"}:
        return None
    if program is None:
        if len(words) > 1 and words[1].text in STARTING_WORDS and 1 not in named:
            return Problem(f"{name} {words[1].text} may run its arguments")
        return _ArgumentReader(name, _UNKNOWN_PROGRAM, words, named).check_unknown(fed=fed)
    return _ArgumentReader(os.path.basename(name), program, words, named).check()


def starts_commands(name: str) -> bool:
    """Return whether a program that a rule may allow can run its arguments as a command."""
    program = find_program(name)
    if program is None or program.check == "npx":
        return True
    return any(subcommand.starts for subcommand in program.subcommands.values())


def is_never_saved(words: Sequence[Word]) -> bool:
    """Return whether a command must never get a saved rule, which would allow anything the program starts."""
    name = os.path.basename(words[0].shown)
    program = find_program(name)
    starts = program is not None and program.check in {"awk", "npx", "sed"}
    return starts or name in NEVER_SAVED or find_launch(name) in {"shell", "wrapper"} or find_runner(words) is not None


def count_saved_words(texts: Sequence[str | None]) -> int | None:
    """Count the leading words that define what a command does; `None` if it takes all of them.

    "Always" saves a rule with these words: `git commit -m x` becomes `git commit *`, `pipenv run pytest -q` becomes
    `pipenv run pytest *`, and a script stays as written.
    """
    name = texts[0] if texts else None
    if name is None or "/" in name or name in SAVED_AS_WRITTEN | NEVER_SAVED:
        return None
    program = find_program(name)
    if program is None:
        if len(texts) > 1 and texts[1] in STARTING_WORDS:
            return None
        return 1 + (name in TASK_RUNNERS and len(texts) > 1)
    count = 1
    while program is not None:
        if program.always_acts or program.check == "script":
            return None
        if program.starts:
            started = count_saved_words(texts[count:])
            return None if started is None else count + started
        if not program.subcommands:
            return count + program.further
        text = texts[count] if count < len(texts) else None
        if text is None or text.startswith("-"):
            return None
        further, program = program.further, program.subcommands.get(text)
        if program is None and text in STARTING_WORDS:
            return None
        count += 1 if program is not None else max(1, further)
    return count


@lru_cache(maxsize=1024)
def _parse_options(text: str) -> Mapping[str, bool]:
    """Parse a list of options, mapping each to whether it takes a value."""
    return {word.removesuffix("="): word.endswith("=") for word in text.split()}


class _ArgumentReader:
    """Reads the words of a command as its program does."""

    def __init__(self, name: str, program: Program, words: Sequence[Word], named: frozenset[int]) -> None:
        self.name = name
        self.program = program
        self.words = words
        self.named = named
        self.index = 1
        self.operands: list[Word] = []
        self.ended = False
        """Whether `--` was read."""
        self.scripts: list[Word] = []
        """Program texts in option values."""

    def check_unknown(self, *, fed: bool) -> Problem | None:
        """Check an unlisted program, which may have plain operands and the words that the rule spells out."""
        if fed:
            return Problem(f"{self.name} is not a known program, and another command feeds it")
        for index in range(1, len(self.words)):
            if index in self.named:
                continue
            for text in _get_texts(self.words[index]) or [""]:
                if not _PLAIN_OPERAND.fullmatch(text) or self.words[index].glob:
                    shown = self.words[index].shown
                    return Problem(f"{self.name} is not a known program: what is {shown} to it?")
        return None

    def check(self) -> Problem | None:
        """Check a listed program, subcommand by subcommand."""
        program = self.program
        all_named = len(self.words) > 1 and self.named.issuperset(range(1, len(self.words)))
        if program.always_acts and not all_named:
            return Problem(f"{self.name} runs or writes what its arguments say", acts=True)
        if program.check == "test":
            return _check_test(self)
        index = self._find_module()
        if index is not None:
            shown = f"{self.name} -m {self.words[index].shown}"
            module = MODULES.get(self.words[index].text or "")
            before = _ArgumentReader(self.name, program, self.words[: index - 1], self.named)
            problem = before._read_words()
            if problem is None and module is not None:
                named = frozenset(position - index for position in self.named if position >= index)
                return _ArgumentReader(shown, module, self.words[index:], named).check()
            if problem is None and index not in self.named:
                return Problem(f"{shown} may run text as code", acts=True)
            return problem
        problem = self._read_words()
        if problem is not None:
            return problem
        if program.check is not None:
            return _CHECKS[program.check](self)
        return self._check_operands()

    def _find_module(self) -> int | None:
        """Find the module of `python -m`, which ends Python's own options."""
        if self.program.check != "script" or not self.name.startswith(("python", "pypy")):
            return None
        for index, word in enumerate(self.words[1:-1], 1):
            if not word.shown.startswith("-"):
                return None
            if word.text == "-m":
                return index + 1
        return None

    def _check_operands(self) -> Problem | None:
        # `@file` reads arguments from the file.
        for index, word in enumerate(self.words[1:] if self.program.argument_files else (), 1):
            for text in _get_texts(word) or [word.prefix or "@"]:
                if text.startswith("@") and index not in self.named:
                    return Problem(f"{self.name} may read options from {word.shown}", acts=True)
        most = self.program.most_operands
        many = any(word.glob or not word.single for word in self.operands)
        if most is not None and (many or len(self.operands) > most):
            return Problem(f"{self.name} writes to {self.operands[-1].shown}", acts=True)
        for word in self.operands if self.program.operand else ():
            texts = _get_texts(word)
            if texts is None and not word.prefix.startswith(("/", "./")):
                return Problem(f"only the shell knows what {word.shown} is to {self.name}")
            for text in texts or ():
                if not re.fullmatch(self.program.operand, text, re.DOTALL):
                    return Problem(f"{self.name} {text} may do more than it seems to")
        return None

    def _read_words(self) -> Problem | None:
        while self.index < len(self.words):
            if self.operands and self.program.options_first:
                rest = self.words[self.index :]
                self.operands += rest
                globs = [word for word in rest if word.glob and not _is_path_like(word.prefix)]
                return self._build_glob_problem(globs[0]) if globs else None
            problem = self._read_word(self.words[self.index])
            if problem is not None:
                return problem
            self.index += 1
            if self.operands and self._has_commands():
                return self._read_command()
        return None

    def _has_commands(self) -> bool:
        return bool(self.program.subcommands) or self.program.starts

    def _read_command(self) -> Problem | None:
        """Check the rest as a subcommand, or as the command that the program starts."""
        first = self.index - 1
        rest = self.words[first:]
        named = frozenset(index - first for index in self.named if index >= first)
        self.index = len(self.words)
        if self.program.starts:
            name = os.path.basename(rest[0].shown)
            is_certain = rest[0].text is not None and _STARTED.fullmatch(rest[0].text) is not None
            if any(_SHELL_TEXT.search(text) for word in rest for text in _get_texts(word) or (word.prefix,)):
                return Problem(f"{self.name} may pass its arguments to a shell", acts=True)
            if self.program.fetches and 0 not in named:
                return Problem(f"{self.name} may fetch {rest[0].shown} and run it")
            is_known = find_program(name) is not None and not _ENVIRONMENT_PROGRAM.fullmatch(name)
            if not is_certain or (is_known and 0 not in named):
                return Problem(f"{self.name} starts {rest[0].shown}", acts=True)
            if find_runner(rest) is not None or find_launch(name) == "wrapper":
                return Problem(f"{self.name} {name} runs other commands", acts=True)
            return find_problem(rest, named)
        # A variable may hold any subcommand.
        sub = None if rest[0].text is None else self.program.subcommands.get(rest[0].text)
        if sub is None:
            if first in self.named:
                sub = _UNKNOWN_PROGRAM
                return _ArgumentReader(f"{self.name} {rest[0].shown}", sub, rest, named).check_unknown(fed=False)
            return Problem(f"{self.name} {rest[0].shown} is not a known command of {self.name}")
        return _ArgumentReader(f"{self.name} {rest[0].shown}", sub, rest, named).check()

    def _read_word(self, word: Word) -> Problem | None:
        is_named = self.index in self.named
        texts = _get_texts(word)
        if word.glob and not is_named and not self.ended and not _is_path_like(word.prefix):
            return self._build_glob_problem(word)
        if self.ended:
            self.operands.append(word)
            return None
        if texts is None:
            if self.program.any_options or (word.single and _is_path_like(word.prefix)):
                self.operands.append(word)
                return None
            return Problem(f"only the shell knows whether {word.shown} is an option of {self.name}")
        if word.text is not None:
            return self._read_text(word, word.text, is_named=is_named)
        # A variable with known values may be empty at run time, so the words after it must mean the same either way.
        first = self.program.options_first or self._has_commands() or self.program.old_style
        if any(text.startswith("-") for text in texts) or (first and not word.single):
            return Problem(f"only the shell knows what {word.shown} is to {self.name}")
        self.operands.append(word)
        return None

    def _build_glob_problem(self, word: Word) -> Problem:
        ways = f"write ./{word.shown}" + (", or -- before it" if self.program.ends_options else "")
        return Problem(f"{word.shown} may find a file with the name of an option: {ways}")

    def _read_text(self, word: Word, text: str, *, is_named: bool) -> Problem | None:
        if text == "--" and self.program.ends_options:
            self.ended = True
            return None
        if self.program.old_style and self.index == 1 and not text.startswith("-"):
            return None if is_named else self._read_letters(text, is_joined=False)
        if not text.startswith("-") or text == "-":
            self.operands.append(word)
            return None
        if self.program.any_options:
            return None
        if is_named:
            # The rule spells out the option; skip its value too.
            name = text.lstrip("-")
            has_value = _parse_options(self.program.long).get(name) or _parse_options(self.program.words).get(name)
            if has_value or (len(name) == 1 and name in self.program.values):
                self._take_value(text)
            return None
        if text.startswith("--"):
            return self._read_long(text)
        name, equals, _ = text[1:].partition("=")
        if self.program.words and name in _parse_options(self.program.words):
            return self._take_value(text) if _parse_options(self.program.words)[name] and not equals else None
        return self._read_letters(text[1:], is_joined=True)

    def _read_long(self, text: str) -> Problem | None:
        name, sign, value = text[2:].partition("=")
        options = _parse_options(self.program.long)
        if name not in options:
            return self._build_option_problem(f"--{name}")
        if options[name] and not sign:
            return self._take_value(f"--{name}")
        if self.program.check == "sed" and name == "expression":
            self.scripts.append(Word(value, (value,), prefix=value))
        return self._check_value(f"--{name}", value, is_joined=True)

    def _read_letters(self, letters: str, *, is_joined: bool) -> Problem | None:
        """Read a bundle of short options. In the old style (`tar cf`), values are separate words."""
        if self.program.numeric and letters.isdigit():
            return None
        for place, letter in enumerate(letters):
            rest = letters[place + 1 :]
            if letter in self.program.values:
                if rest and is_joined:
                    if self.program.check == "sed" and letter == "e":
                        self.scripts.append(Word(rest, (rest,), prefix=rest))
                    return self._check_value(f"-{letter}", rest, is_joined=True)
                problem = self._take_value(f"-{letter}")
                if problem is not None or is_joined:
                    return problem
            elif letter in self.program.optional and is_joined:
                return None
            elif letter not in self.program.flags:
                return self._build_option_problem(f"-{letter}")
        return None

    def _take_value(self, option: str) -> Problem | None:
        """Consume the next word as the value of an option."""
        self.index += 1
        if self.index >= len(self.words) or self.index in self.named:
            return None
        word = self.words[self.index]
        if self.program.check == "sed" and option in {"-e", "--expression"}:
            self.scripts.append(word)
        texts = _get_texts(word)
        if word.glob or (texts is None and not word.single):
            return Problem(f"only the shell knows the value {word.shown} of {option}")
        # A value with an unknown suffix may be `host:archive` or `@file`.
        is_archive = self.program.check == "tar" and option in {"-f", "--file"}
        is_data = self.name == "curl" and option in _CURL_DATA
        may_name_more = (is_archive and "/" not in word.prefix) or (is_data and not word.prefix)
        if texts is None and (may_name_more or option in self.program.value_patterns):
            return Problem(f"only the shell knows what {word.shown} is to {self.name} {option}")
        for text in texts or [word.prefix]:
            problem = self._check_value(option, text)
            if problem is not None:
                return problem
        return None

    def _check_value(self, option: str, text: str, *, is_joined: bool = False) -> Problem | None:
        if not is_joined and text.startswith("-") and len(text) > 1 and not text[1:2].isdigit():
            return Problem(f"{text} after {self.name} {option} may be an option")
        pattern = self.program.value_patterns.get(option)
        if pattern is not None and not re.fullmatch(pattern, text, re.DOTALL):
            return Problem(f"{self.name} {option} {text} can run or write more", acts=True)
        if self.program.check == "tar" and option in {"-f", "--file"} and _TAR_HOST.match(text):
            return Problem(f"tar starts a remote shell for {text}", acts=True)
        if self.name == "curl" and option in _CURL_DATA and _CURL_FILE.fullmatch(text):
            return Problem(f"curl {option} {text} sends a file")
        return None

    def _build_option_problem(self, option: str) -> Problem:
        acts = self.program.acts.split()
        is_prefix = option.startswith("--") and any(name.startswith(option) for name in acts)
        if option in acts or is_prefix:
            return Problem(f"{self.name} {option} can run or write something else", acts=True)
        return Problem(f"{self.name} {option} is not known to be harmless")


def _is_path_like(prefix: str) -> bool:
    """Return whether a word with this prefix can't be an option."""
    return bool(prefix) and not prefix.startswith(("-", "+"))


def _get_texts(word: Word) -> Sequence[str] | None:
    """Return all possible texts of a word, or `None` if they're unknown."""
    if word.glob:
        return None
    if word.text is not None:
        return (word.text,)
    spreads = not word.single and any(_SPREADS.search(guess) for guess in word.guesses)
    return None if word.hole or spreads else word.guesses


# -- checks for particular programs -------------------------------------------------------------


def _check_script(reader: _ArgumentReader) -> Problem | None:
    """Check that an interpreter's script is a file."""
    name, words = reader.name, reader.words
    if not reader.operands:
        asked = {word.text for word in words[1:]} & {"--version", "-V", "-v", "--test"}
        return None if asked else Problem(f"{name} runs its standard input", acts=True)
    script = reader.operands[0]
    for text in _get_texts(script) or [""]:
        debugs = name.startswith("node") and text == "inspect"
        if not text or text == "-" or _INPUT_FILE.fullmatch(text) or debugs:
            return Problem(f"{name} {script.shown} may be text as code", acts=True)
    return None


def _check_sed(reader: _ArgumentReader) -> Problem | None:
    scripts = reader.scripts or reader.operands[:1]
    if not scripts:
        return Problem("sed has no readable program")
    for word in scripts:
        text = "" if word.text is None or word.glob else word.text
        index = 0
        while text[index:].strip("; \t\n") and (match := _SED_COMMAND.match(text, index)) is not None:
            index = match.end()
        if index == 0 or text[index:].strip("; \t\n"):
            return Problem("sed has a program that may write or run something", acts=True)
    return None


def _check_awk(reader: _ArgumentReader) -> Problem | None:
    if not reader.operands:
        return Problem(f"{reader.name} has no readable program")
    program, *others = reader.operands
    unknown = any(word.text is None for word in reader.operands)
    writes = any(_AWK_ACTS.search(word.shown) for word in others)
    # Only output statements, which are in braces, redirect. In a pattern, `>` and `|` compare:
    # https://pubs.opengroup.org/onlinepubs/9799919799/utilities/awk.html.
    pattern, _, statements = program.shown.partition("{")
    if unknown or writes or _AWK_RUNS.search(pattern) or _AWK_ACTS.search(statements):
        return Problem(f"{reader.name} has a program that may write or run something", acts=True)
    return None


def _check_printf(reader: _ArgumentReader) -> Problem | None:
    for word in reader.operands[:1]:
        if word.text is None or word.glob or _PRINTS_VARIABLE.search(word.text):
            return Problem("printf has a format that may set a variable", acts=True)
    return None


def _check_npx(reader: _ArgumentReader) -> Problem | None:
    for word in reader.operands[:1]:
        is_known = find_program(word.shown) is not None and word.shown not in _ENVIRONMENT_TOOLS
        runs = is_known or find_runner([word]) is not None
        if word.text is None or runs or not _PACKAGE.fullmatch(word.text):
            return Problem(f"{reader.name} {word.shown} is more than the name of a package")
    return None


def _check_test(reader: _ArgumentReader) -> Problem | None:
    """Check `test`. Operators on files and texts are harmless; `-v` and others evaluate an array index.

    The argument count decides which argument is the operator:
    https://pubs.opengroup.org/onlinepubs/9799919799/utilities/test.html.
    """
    words = [*reader.words[1:]]
    operators = _TEST_UNARY | _TEST_BINARY | _TEST_OTHER
    for index, word in enumerate(words):
        texts = _get_texts(word)
        if texts is None:
            operator = {2: 0, 3: 1}.get(len(words))
            if not word.single or word.glob or len(words) > 3 or index == operator:
                return Problem(f"only the shell knows whether {word.shown} is an operator of test")
            if len(words) == 3 and index == 0 and words[1].text not in _TEST_BINARY:
                return Problem(f"only the shell knows whether {word.shown} is an operator of test")
            continue
        for text in texts:
            if text.startswith("-") and text not in operators and not text[1:].isdigit():
                return Problem(f"test {text} is not known to be harmless")
    return _check_integers(words)


def _check_integers(words: Sequence[Word]) -> Problem | None:
    """Check the operands of `-eq`, `-t` and others, which some shells evaluate."""
    for index, word in enumerate(words):
        operands: list[Word] = []
        if word.text in _TEST_INTEGER and len(words) > 2:
            operands = [*words[max(index - 1, 0) : index], *words[index + 1 : index + 2]]
        elif word.text == "-t":
            operands = [*words[index + 1 : index + 2]]
        for operand in operands:
            for text in _get_texts(operand) or [""]:
                if not _INTEGER.fullmatch(text):
                    return Problem(f"test {word.text} may evaluate {operand.shown}")
    return None


_CHECKS: dict[Check, Callable[[_ArgumentReader], Problem | None]] = {
    "awk": _check_awk,
    "npx": _check_npx,
    "printf": _check_printf,
    "script": _check_script,
    "sed": _check_sed,
    "tar": lambda reader: None if reader.words[1:] else Problem("tar has nothing to do"),
    "test": _check_test,
}
