"""Whether the arguments of a command are harmless: what a rule with a `*` lets through.

A rule such as `bash(sort *)` stands for `sort` with the options that the table of programs calls
harmless, and with operands. Everything else is a `Problem`, unless the rule names that word
literally: an option that is not in the table, a word of which only the shell knows whether it is an
option (`$x`, `*`), a program text that may run or write something.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from induscode.session.permissions.shell.launchers import WRAPPERS, find_runner
from induscode.session.permissions.shell.programs import MODULES, PACKAGE, PROGRAMS, Check, Program
from induscode.session.permissions.shell.syntax import Word

_UNKNOWN_PROGRAM = Program()
_PLAIN_OPERAND = re.compile(r"(?![-+@])(?!/(?:dev|proc)/)[\w./:@,+%~^-]+")
_VERSIONED = re.compile(r"(python|pypy|lua|perl|ruby|php)[0-9.]+w?")
_FED_FILE = re.compile(r"/(?:dev|proc)/.*|(?:.*/)?(?:stdin|fd/[0-9]+|[0-9]+)|\+.*|[a-z][a-z0-9+.-]+:.*")
"""What is text as code: files that a command is fed, URLs. A shell takes `+x` for an option."""
_PRINTS_VARIABLE = re.compile(r"%[-+ #0-9.*']*[hlLjzt]*n")
"""`%n` of bash's printf sets a variable."""
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
"""A bracket expression without the sign that ends the pattern: sed reads on behind one in it."""
_SED_PATTERN = rf"(?:(?!\1)[^\[\\\n]|\\[^\n]|{_SED_LIST})*"
_SED_ADDRESS_PATTERN = _SED_PATTERN.replace(r"(?!\1)", "(?!/)")
_SED_ADDRESS = rf"(?:[0-9]+|\$|/{_SED_ADDRESS_PATTERN}/I?)"
_SED_COMMAND = re.compile(
    rf"[\s;]*(?:{_SED_ADDRESS}(?:,[+~]?{_SED_ADDRESS})?)?\s*!?\s*"
    rf"(?:\{{|\}}|(?:[pdDPgGhHxnN=]|[qQ][0-9]*|s([/|#,:]){_SED_PATTERN}\1{_SED_TEXT}\1[gpiI0-9]*)"
    r"\s*(?=[;\n}]|$))"
)
_SPREADS = re.compile(r"[\s*?\[]|^$")
"""What an expansion outside of quotes does not keep as one word."""
_CURL_DATA = frozenset({"-d", "-H", "--header"})
_CURL_FILE = re.compile(r"@.*", re.DOTALL)
_TAR_HOST = re.compile(r"[^/]*:")
"""An archive on another host, unless a slash comes before the colon: tar(1), `--force-local`."""
_STARTED = re.compile(r"(?:python|pypy)[0-9.]*|ruby|node|pytest|py\.test|ruff|mypy|black")
"""Programs of a project's environment: others of the table want a rule of their own."""
_ENVIRONMENT_TOOLS = frozenset({"pytest", "py.test", "ruff", "mypy", "black"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the arguments of a command are asked about."""

    reason: str
    acts: bool = False
    """Whether it is known to run or write something else: then it is never allowed for always."""


def find_program(name: str) -> Program | None:
    """Find a program of the table by its name, with its directory or a version."""
    base = os.path.basename(name.rstrip("/"))
    found = PROGRAMS.get(base)
    versioned = _VERSIONED.fullmatch(base) if found is None else None
    return PROGRAMS.get(versioned[1]) if versioned else found


def find_problem(words: Sequence[Word], named: frozenset[int] = frozenset(), *, fed: bool = False) -> Problem | None:
    """Say what about the arguments of a command is asked about; None if they are harmless.

    Args:
        words: The command, its name first.
        named: The places of the words that a rule names literally.
        fed: Whether another command writes into its standard input.
    """
    name = words[0].shown
    program = find_program(name)
    if (program is None or program.always_acts) and _asks_version(words):
        return None
    if program is None:
        return _Reading(name, _UNKNOWN_PROGRAM, words, named).check_unknown(fed=fed)
    return _Reading(os.path.basename(name), program, words, named).check()


def starts_commands(name: str) -> bool:
    """Tell whether arguments of a program may be a command, although a rule may allow it."""
    program = find_program(name)
    if program is None or program.check == "npx":
        return True
    return any(one.starts for one in program.subcommands.values())


def _listed(text: str) -> Mapping[str, bool]:
    """Read a list of options: whether each takes a value."""
    return {word.removesuffix("="): word.endswith("=") for word in text.split()}


_listed_options = lru_cache(maxsize=1024)(_listed)


def _asks_version(words: Sequence[Word]) -> bool:
    return len(words) == 2 and words[1].text in {"--version", "--help"}


class _Reading:
    """One look at the words of a command, as its program will read them."""

    def __init__(self, name: str, program: Program, words: Sequence[Word], named: frozenset[int]) -> None:
        self.name = name
        self.program = program
        self.words = words
        self.named = named
        self.at = 1
        self.operands: list[Word] = []
        self.ended = False
        """Whether `--` was read."""
        self.scripts: list[Word] = []
        """Program texts that options give."""

    # -- programs ---------------------------------------------------------------------------

    def check_unknown(self, *, fed: bool) -> Problem | None:
        """Check a program that is not in the table: plain operands, or what the rule names."""
        if fed:
            return Problem(f"{self.name} is not a known program, and another command feeds it")
        for at in range(1, len(self.words)):
            if at in self.named:
                continue
            for text in _texts(self.words[at]) or [""]:
                if not _PLAIN_OPERAND.fullmatch(text) or self.words[at].glob:
                    shown = self.words[at].shown
                    return Problem(f"{self.name} is not a known program: what is {shown} to it?")
        return None

    def check(self) -> Problem | None:
        """Check a program of the table, subcommand by subcommand."""
        program = self.program
        all_named = len(self.words) > 1 and self.named.issuperset(range(1, len(self.words)))
        if program.always_acts and not all_named:
            return Problem(f"{self.name} runs or writes what its arguments say", acts=True)
        if program.check == "test":
            return _check_test(self)
        at = self._module_place()
        if at is not None:
            before = _Reading(self.name, program, self.words[: at - 1], self.named)
            return before._read_words() or _check_module(self, self.words[at], at)
        problem = self._read_words()
        if problem is not None:
            return problem
        if program.check is not None:
            return _CHECKS[program.check](self)
        return self._check_operands()

    def _module_place(self) -> int | None:
        """Find the module of `python -m`, which ends the options of python itself."""
        if self.program.check != "script" or not self.name.startswith(("python", "pypy")):
            return None
        for at, word in enumerate(self.words[1:-1], 1):
            if not word.shown.startswith("-"):
                return None
            if word.text == "-m":
                return at + 1
        return None

    def _check_argument_files(self) -> Problem | None:
        """Look for `@file`, which is replaced by the arguments in that file, wherever it stands."""
        for at, word in enumerate(self.words[1:], 1):
            for text in _texts(word) or [word.prefix or "@"]:
                if text.startswith("@") and at not in self.named:
                    return Problem(f"{self.name} may read options from {word.shown}", acts=True)
        return None

    def _check_operands(self) -> Problem | None:
        if self.program.argument_files:
            problem = self._check_argument_files()
            if problem is not None:
                return problem
        most = self.program.most_operands
        many = any(word.glob or not word.single for word in self.operands)
        if most is not None and (many or len(self.operands) > most):
            return Problem(f"{self.name} writes to {self.operands[-1].shown}", acts=True)
        for word in self.operands if self.program.operand else ():
            texts = _texts(word)
            if texts is None and not word.prefix.startswith(("/", "./")):
                return Problem(f"only the shell knows what {word.shown} is to {self.name}")
            for text in texts or ():
                if not re.fullmatch(self.program.operand, text, re.DOTALL):
                    return Problem(f"{self.name} is given {text}, which may do more than it says")
        return None

    # -- words ------------------------------------------------------------------------------

    def _read_words(self) -> Problem | None:
        while self.at < len(self.words):
            if self.operands and self.program.options_first:
                rest = self.words[self.at :]
                self.operands += rest
                globs = [word for word in rest if word.glob and not _is_path_like(word.prefix)]
                return self._glob_problem(globs[0]) if globs else None
            problem = self._read_word(self.words[self.at])
            if problem is not None:
                return problem
            self.at += 1
            if self.operands and self._has_commands():
                return self._read_command()
        return None

    def _has_commands(self) -> bool:
        return bool(self.program.subcommands) or self.program.starts

    def _read_command(self) -> Problem | None:
        """Go on with the subcommand that was read, or with the command that it starts."""
        first = self.at - 1
        rest = self.words[first:]
        named = frozenset(at - first for at in self.named if at >= first)
        self.at = len(self.words)
        if self.program.starts:
            name = os.path.basename(rest[0].shown)
            told = rest[0].text is not None and rest[0].text != "-" and "://" not in rest[0].shown
            known = find_program(name) is not None and not _STARTED.fullmatch(name)
            if not told or (known and 0 not in named):
                return Problem(f"{self.name} starts {rest[0].shown}", acts=True)
            if find_runner(rest) is not None or name in WRAPPERS:
                return Problem(f"{self.name} {name} runs other commands", acts=True)
            return find_problem(rest, named)
        sub = self.program.subcommands.get(rest[0].text or "")
        if sub is None:
            if first in self.named:
                sub = _UNKNOWN_PROGRAM
                return _Reading(f"{self.name} {rest[0].shown}", sub, rest, named).check_unknown(fed=False)
            return Problem(f"{self.name} {rest[0].shown} is not a known command of {self.name}")
        return _Reading(f"{self.name} {rest[0].shown}", sub, rest, named).check()

    def _read_word(self, word: Word) -> Problem | None:
        is_named = self.at in self.named
        texts = _texts(word)
        if word.glob and not is_named and not self.ended and not _is_path_like(word.prefix):
            return self._glob_problem(word)
        if self.ended:
            self.operands.append(word)
            return None
        if texts is None:
            if self.program.any_options or (word.single and _is_path_like(word.prefix)):
                self.operands.append(word)
                return None
            return Problem(f"only the shell knows whether {word.shown} is an option of {self.name}")
        if word.text is None:
            return self._read_variable(word, texts)
        return self._read_text(word, word.text, is_named=is_named)

    def _read_variable(self, word: Word, texts: Sequence[str]) -> Problem | None:
        """Read a word whose values are known, if the command has come by where they are given.

        Without a value it is nothing, or an empty word: what follows must mean the same then.
        """
        first = self.program.options_first or self._has_commands() or self.program.old_style
        if any(text.startswith("-") for text in texts) or (first and not word.single):
            return Problem(f"only the shell knows what {word.shown} is to {self.name}")
        self.operands.append(word)
        return None

    def _glob_problem(self, word: Word) -> Problem:
        ways = f"write ./{word.shown}" + (", or -- before it" if self.program.ends_options else "")
        return Problem(f"{word.shown} may find a file with the name of an option: {ways}")

    def _read_text(self, word: Word, text: str, *, is_named: bool) -> Problem | None:
        if text == "--" and self.program.ends_options:
            self.ended = True
            return None
        if self.program.old_style and self.at == 1 and not text.startswith("-"):
            return None if is_named else self._read_letters(text, is_joined=False)
        if not text.startswith("-") or text == "-":
            self.operands.append(word)
            return None
        if self.program.any_options:
            return None
        if is_named:
            self._take_named(text)
            return None
        if text.startswith("--"):
            return self._read_long(text)
        if self.program.words and text[1:].partition("=")[0] in _listed_options(self.program.words):
            return self._read_worded(text)
        return self._read_letters(text[1:], is_joined=True)

    def _take_named(self, text: str) -> None:
        """Take an option that the rule names, with its value if it is known to have one."""
        name = text.lstrip("-")
        takes = _listed_options(self.program.long).get(name) or _listed_options(self.program.words).get(name)
        if takes or (len(name) == 1 and name in self.program.values):
            self._take_value(text)

    def _read_long(self, text: str) -> Problem | None:
        name, sign, value = text[2:].partition("=")
        options = _listed_options(self.program.long)
        if name not in options:
            return self._not_harmless(f"--{name}")
        if options[name] and not sign:
            return self._take_value(f"--{name}")
        if self.program.check == "sed" and name == "expression":
            self.scripts.append(Word(value, (value,), prefix=value))
        return self._check_value(f"--{name}", value, is_joined=True)

    def _read_worded(self, text: str) -> Problem | None:
        name, sign, _ = text[1:].partition("=")
        if _listed_options(self.program.words)[name] and not sign:
            return self._take_value(text)
        return None

    def _read_letters(self, letters: str, *, is_joined: bool) -> Problem | None:
        """Read a bundle of short options; in the old style values follow as words of their own."""
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
                return self._not_harmless(f"-{letter}")
        return None

    def _take_value(self, option: str) -> Problem | None:
        """Take the next word for the value of an option."""
        self.at += 1
        if self.at >= len(self.words) or self.at in self.named:
            return None
        word = self.words[self.at]
        if self.program.check == "sed" and option in {"-e", "--expression"}:
            self.scripts.append(word)
        texts = _texts(word)
        if word.glob or (texts is None and not word.single):
            return Problem(f"only the shell knows what it makes of {word.shown} behind {option}")
        if texts is None and self._may_name_more(option, word.prefix):
            return Problem(f"only the shell knows what {word.shown} is to {self.name} {option}")
        for text in texts or [word.prefix]:
            problem = self._check_value(option, text)
            if problem is not None:
                return problem
        return None

    def _may_name_more(self, option: str, prefix: str) -> bool:
        """Tell whether a value that begins like this may be `host:archive` or `@file`."""
        if option in self.program.value_patterns:
            return True
        if self.program.check == "tar" and option in {"-f", "--file"}:
            return "/" not in prefix
        return self.name == "curl" and option in _CURL_DATA and not prefix

    def _check_value(self, option: str, text: str, *, is_joined: bool = False) -> Problem | None:
        if not is_joined and text.startswith("-") and len(text) > 1 and not text[1:2].isdigit():
            return Problem(f"{text} behind {self.name} {option} may be an option")
        pattern = self.program.value_patterns.get(option)
        if pattern is not None and not re.fullmatch(pattern, text, re.DOTALL):
            return Problem(f"{self.name} {option} {text} can run or write more", acts=True)
        if self.program.check == "tar" and option in {"-f", "--file"} and _TAR_HOST.match(text):
            return Problem(f"tar starts a remote shell for {text}", acts=True)
        if self.name == "curl" and option in _CURL_DATA and _CURL_FILE.fullmatch(text):
            return Problem(f"curl {option} {text} sends a file")
        return None

    def _not_harmless(self, option: str) -> Problem:
        acts = self.program.acts.split()
        begun = option.startswith("--") and any(one.startswith(option) for one in acts)
        if option in acts or begun:
            return Problem(f"{self.name} {option} can run or write something else", acts=True)
        return Problem(f"{self.name} {option} is not known to be harmless")


def _is_path_like(prefix: str) -> bool:
    """Tell whether a word that begins like this cannot be an option."""
    return bool(prefix) and not prefix.startswith(("-", "+"))


def _texts(word: Word) -> Sequence[str] | None:
    """Give what a word may be, if that is known: itself, or all the values of its variables."""
    if word.glob:
        return None
    if word.text is not None:
        return (word.text,)
    spreads = not word.single and any(_SPREADS.search(guess) for guess in word.guesses)
    return None if word.hole or spreads else word.guesses


# -- programs whose operands say what they do -------------------------------------------------


def _check_script(reading: _Reading) -> Problem | None:
    """Check an interpreter: a script that is a file, and nothing that is text as code."""
    name, words = reading.name, reading.words
    if not reading.operands:
        asked = {word.text for word in words[1:]} & {"--version", "-V", "-v", "--test"}
        return None if asked else Problem(f"{name} runs what it is fed", acts=True)
    script = reading.operands[0]
    for text in _texts(script) or [""]:
        debugs = name.startswith("node") and text == "inspect"
        if not text or text == "-" or _FED_FILE.fullmatch(text) or debugs:
            return Problem(f"{name} {script.shown} may be text as code", acts=True)
    return None


def _check_module(reading: _Reading, module: Word, at: int) -> Problem | None:
    named = frozenset(place - at for place in reading.named if place >= at)
    program = MODULES.get(module.text or "")
    if program is not None:
        shown = f"{reading.name} -m {module.shown}"
        return _Reading(shown, program, reading.words[at:], named).check()
    if at in reading.named:
        return None
    return Problem(f"{reading.name} -m {module.shown} may be given text as code", acts=True)


def _check_sed(reading: _Reading) -> Problem | None:
    scripts = reading.scripts or reading.operands[:1]
    if not scripts:
        return Problem("sed is given no program that can be read")
    for word in scripts:
        if word.text is None or word.glob or not _is_harmless_sed(word.text):
            return Problem("sed is given a program that may write or run something", acts=True)
    return None


def _is_harmless_sed(text: str) -> bool:
    at = 0
    while text[at:].strip("; \t\n"):
        found = _SED_COMMAND.match(text, at)
        if found is None:
            return False
        at = found.end()
    return at > 0


def _check_awk(reading: _Reading) -> Problem | None:
    if not reading.operands:
        return Problem(f"{reading.name} is given no program that can be read")
    program, *others = reading.operands
    unknown = any(word.text is None for word in reading.operands)
    writes = any(_AWK_ACTS.search(word.shown) for word in others)
    if unknown or writes or not _is_harmless_awk(program.shown):
        return Problem(f"{reading.name} is given a program that may write or run", acts=True)
    return None


def _is_harmless_awk(text: str) -> bool:
    """Tell whether a program neither runs nor writes; in a pattern, `>` and `|` compare.

    Only `print`, in braces, has redirections: POSIX awk, "Output Statements".
    """
    pattern, _, rest = text.partition("{")
    return not _AWK_RUNS.search(pattern) and not _AWK_ACTS.search(rest)


def _check_printf(reading: _Reading) -> Problem | None:
    for word in reading.operands[:1]:
        if word.text is None or word.glob or _PRINTS_VARIABLE.search(word.text):
            return Problem("printf is given a format that may set a variable", acts=True)
    return None


def _check_npx(reading: _Reading) -> Problem | None:
    for word in reading.operands[:1]:
        known = find_program(word.shown) is not None and word.shown not in _ENVIRONMENT_TOOLS
        runs = known or find_runner([word]) is not None or word.shown in WRAPPERS
        if word.text is None or runs or not _PACKAGE.fullmatch(word.text):
            return Problem(f"{reading.name} {word.shown} is more than the name of a package")
    return None


def _check_tar(reading: _Reading) -> Problem | None:
    return None if reading.words[1:] else Problem("tar is given nothing to do")


def _check_test(reading: _Reading) -> Problem | None:
    """Check `test`: operators that look at files and texts; `-v` and the like evaluate an index.

    bash(1), CONDITIONAL EXPRESSIONS: how many arguments there are says which one is the operator.
    """
    words = [*reading.words[1:]]
    known = _TEST_UNARY | _TEST_BINARY | _TEST_OTHER
    for at, word in enumerate(words):
        texts = _texts(word)
        if texts is None:
            operator = {2: 0, 3: 1}.get(len(words))
            if not word.single or word.glob or len(words) > 3 or at == operator:
                return Problem(f"only the shell knows whether {word.shown} is an operator of test")
            if len(words) == 3 and at == 0 and words[1].text not in _TEST_BINARY:
                return Problem(f"only the shell knows whether {word.shown} is an operator of test")
            continue
        for text in texts:
            if text.startswith("-") and text not in known and not text[1:].isdigit():
                return Problem(f"test {text} is not known to be harmless")
    return _check_integers(words)


def _check_integers(words: Sequence[Word]) -> Problem | None:
    """Check the operands of `-eq` and the like, and of `-t`: some shells evaluate them."""
    for at, word in enumerate(words):
        beside: list[Word] = []
        if word.text in _TEST_INTEGER and len(words) > 2:
            beside = [*words[max(at - 1, 0) : at], *words[at + 1 : at + 2]]
        elif word.text == "-t":
            beside = [*words[at + 1 : at + 2]]
        for one in beside:
            for text in _texts(one) or [""]:
                if not _INTEGER.fullmatch(text):
                    return Problem(f"test {word.text} may evaluate {one.shown}")
    return None


_CHECKS: dict[Check, Callable[[_Reading], Problem | None]] = {
    "awk": _check_awk,
    "npx": _check_npx,
    "printf": _check_printf,
    "script": _check_script,
    "sed": _check_sed,
    "tar": _check_tar,
    "test": _check_test,
}


def option_names(program: Program) -> Iterator[str]:
    """List the options that the table calls harmless, as they are written."""
    yield from (f"-{letter}" for letter in program.flags + program.values + program.optional)
    yield from (f"--{name}" for name in _listed(program.long))
    yield from (f"-{name}" for name in _listed(program.words))
