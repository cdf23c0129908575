"""What a shell command comes to. Shapes only.

A shell command taken apart: every command in it, every redirection, and what was not understood.

Rules that allow read `flaws` first: with one of them nothing is allowed unasked. Rules that deny
are compared with `commands` and `suspects`, which run as far as one can tell; with `possible`,
which would run if a program took its argument for a command; and with `opaque`, the reasons why
anything at all may run.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from induscode.session.permissions.shell.arguments import Problem, find_problem, find_program, starts_commands
from induscode.session.permissions.shell.launchers import (
    COPIERS,
    MOVERS,
    RUNNERS,
    SHELLS,
    VARIABLE_SETTERS,
    WRAPPERS,
    base_name,
    find_runner,
    names,
    only_looks_up,
    reads_commands,
    shell_code,
    unwrapped,
)
from induscode.session.permissions.shell.syntax import (
    ALL_VARIABLES,
    UNKNOWN,
    WORDS,
    Word,
    all_nodes,
    bracket_command,
    expand_braces,
    is_covered,
    is_fed,
    is_strange,
    known,
    parsed,
    plain_expansion,
    redirect_words,
    redirects_of,
    respelt,
    source,
    spans_lines,
    word_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class Command:
    """One command with its arguments."""

    words: tuple[Word, ...]
    fed: bool = False
    """Whether another command writes into its standard input."""

    @property
    def shown(self) -> str:
        """What to call it."""
        return " ".join(word.shown for word in self.words)


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that a command is connected to."""

    target: Word
    writes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a text comes to when the shell runs it."""

    text: str
    commands: tuple[Command, ...]
    suspects: tuple[Command, ...]
    """What runs besides, as far as one can tell."""
    possible: tuple[Command, ...] = ()
    """What an argument would be if the program took it for a command."""
    opaque: tuple[str, ...] = ()
    """Why it may run any command at all, a phrase each."""
    copied: tuple[Word, ...] = ()
    """Programs that it may give another name."""
    redirects: tuple[Redirect, ...]
    flaws: tuple[str, ...]
    """What was not understood, a phrase each; with any of them no rule allows the text."""
    whole: bool
    """Whether all of it was looked at."""


LONGEST_TEXT = 32 * 1024
_MOST_DOCUMENTS = 100
"""Here-documents that are read: the grammar takes ever longer for each."""
MOST_COMMANDS = 2_000
_DEEPEST = 5
"""How far text within text is followed."""
_MOST_READ = 256 * 1024
"""Characters that are read in all, those of texts within the text included."""
_LOOKED_AT = 32
"""Words at the start of what may be a command that a rule is compared with."""
_UNDERSTOOD = names(
    "program list pipeline command command_name redirected_statement file_redirect file_descriptor"
    " negated_command subshell compound_statement if_statement elif_clause else_clause"
    " while_statement for_statement do_group word number string string_content raw_string"
    " concatenation simple_expansion expansion variable_name special_variable_name"
    " command_substitution process_substitution variable_assignment variable_assignments"
    " comment"
)
"""What a rule may allow; everything else in the grammar of the shell is left to a person."""
_PLAIN_NAME = re.compile(rb"[A-Za-z0-9_./+@%-]+|\[|:")
_RESERVED = frozenset({"{", "}", "then", "do", "done", "fi", "esac", "in", "else", "elif", "[["})
_HARMLESS_VARIABLES = re.compile(
    r"LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|CI|TERM|COLUMNS|LINES|NODE_ENV"
    r"|RUST_BACKTRACE|RUST_LOG|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE"
)
_OWN_VARIABLES = re.compile(r"(?!npm_)(?![a-z0-9_]*proxy)[a-z_][a-z0-9_]*")
_ONE_LINE = names("command redirected_statement file_redirect negated_command variable_assignment variable_assignments")
_BROKEN_WORD = re.compile(rb"(?<!\\)\s")
_SEPARATORS = re.compile(r"[\s;&|<>(){}`$,]+")
_ANY_TEXT = re.compile(r"[\s;&|<>`$(){}]")
_ALL_SEPARATORS = re.compile(r"""[\s;&|<>(){}`$,=!:+"'\[\]]+""")
_QUOTED_COMMAND = re.compile(r"\$\(|`")
"""In a text that is quoted: run if bash evaluates the text as an index of an array."""
_TEXTS = ("raw_string", "ansi_c_string", "string", "concatenation", "word")
_AWK_RUNS = re.compile(r"system|getline|\||@")
_SED_RUNS = re.compile(r"(?:^|[;{}\n/,0-9$!\s])e(?:\s|$)|/[gpiImMw0-9]*e[gpiImMw0-9]*\s*(?:[;}\n]|$)")


def parse_command(text: str) -> Script:
    """Take a command apart; what cannot be understood is told, never skipped."""
    reader = _Reader()
    reader.read(text)
    return Script(
        text=text,
        commands=tuple(reader.commands),
        suspects=tuple(reader.suspects),
        redirects=tuple(reader.redirects),
        flaws=tuple(dict.fromkeys(reader.flaws)),
        whole=reader.whole,
        possible=tuple(dict.fromkeys(reader.possible)),
        opaque=tuple(dict.fromkeys(reader.opaque)),
        copied=tuple(dict.fromkeys(reader.copied)),
    )


@dataclass(slots=True)
class _Reader:
    commands: list[Command] = field(default_factory=list[Command])
    suspects: list[Command] = field(default_factory=list[Command])
    possible: list[Command] = field(default_factory=list[Command])
    opaque: list[str] = field(default_factory=list[str])
    copied: list[Word] = field(default_factory=list[Word])
    redirects: list[Redirect] = field(default_factory=list[Redirect])
    flaws: list[str] = field(default_factory=list[str])
    whole: bool = True
    variables: dict[str, list[str | None]] = field(default_factory=dict[str, list[str | None]])
    texts: list[str] = field(default_factory=list[str])
    """Texts that may be fed to a shell."""
    depth: int = 0
    fed: bool = False
    """Whether there is a shell that runs what it is fed."""
    maybe_fed: bool = False
    """Whether there is a program that may run what it is fed."""
    spent: list[int] = field(default_factory=lambda: [0])
    """Characters read, by all who read a part of the same command."""

    def read(self, text: str) -> None:
        """Read a whole command."""
        if len(text) > LONGEST_TEXT:
            self.whole = False
            self.flaws.append(f"it has more than {LONGEST_TEXT:,} characters")
            text = text[:LONGEST_TEXT]
        self._look_at_characters(text)
        self._read_tree(text)
        for other in respelt(text):
            self._suspect_text(other)
        self._after()

    def _look_at_characters(self, text: str) -> None:
        strange = {char for char in text if is_strange(char)}
        if strange:
            listed = ", ".join(f"U+{ord(char):04X}" for char in sorted(strange))
            self._not_understood(f"it holds characters that cannot be told apart or seen: {listed}")
        if expand_braces(text) is None:
            self._not_understood("its braces stand for too many words")
        if re.search(r"[^\s\\]\\\n", text):
            self.flaws.append("a line goes on in the middle of a word")

    def _not_understood(self, why: str) -> None:
        """Note what no rule allows, and behind which a denied command may hide."""
        self.flaws.append(why)
        self.opaque.append(why)

    def _read_tree(self, text: str) -> None:
        if text.count("<<") > _MOST_DOCUMENTS:
            self.whole = False
            self.flaws.append(f"it has more than {_MOST_DOCUMENTS} here-documents")
            self._suspect_words(text)
            return
        data = text.encode("utf-8", "replace")
        root = parsed(data)
        if root.has_error:
            self._not_understood("its syntax is not understood")
            self._suspect_words(text)
        nodes = self._replace_brackets(list(all_nodes(root)))
        self._learn(nodes)
        if not is_covered(root, data):
            self._not_understood("a part of it was passed over")
        looks: dict[str, Callable[[Node], None]] = {
            "command": self._command,
            "file_redirect": self._redirect,
            "heredoc_redirect": self._fed_text,
            "herestring_redirect": self._fed_text,
            "variable_assignment": self._assignment,
            "for_statement": self._loop,
            "expansion": self._expansion,
            "command_substitution": self._substitution,
            "declaration_command": self._other_command,
            "unset_command": self._other_command,
            **dict.fromkeys(_TEXTS, self._quoted_text),
        }
        for node in nodes:
            self._look_at(node, data)
            if node.type in looks:
                looks[node.type](node)

    def _replace_brackets(self, nodes: Sequence[Node]) -> list[Node]:
        """Read `[ … ]` as the command `test …`, which it is to the shell: bash(1), `test`."""
        result: list[Node] = []
        end = 0
        for node in nodes:
            if node.start_byte < end:
                continue
            inner = bracket_command(node)
            if inner is None:
                if node.type == "test_command" and source(node).startswith("[ "):
                    self._suspect_text(f"test {source(node)[1:]}")
                result.append(node)
                continue
            end = node.end_byte
            result += all_nodes(inner)
        return result

    def _learn(self, nodes: Sequence[Node]) -> None:
        """Note the values that the text itself gives to names; None for one that is not known."""
        for node in nodes:
            if node.type == "variable_assignment":
                name, value = node.named_children[0], node.named_children[-1]
                values = [None] if value is name else self._values(value)
                if any(child.type == "+=" for child in node.children):
                    values.append(None)
                self.variables.setdefault(source(name).partition("[")[0], []).extend(values)
            elif node.type == "for_statement":
                name, *given = node.named_children
                in_order = [one for value in given for one in self._values(value)]
                self.variables.setdefault(source(name), []).extend(in_order or [None])
            elif self._may_set_variables(node):
                self.variables[ALL_VARIABLES] = [None]

    def _values(self, node: Node) -> list[str | None]:
        if node.type == "do_group":
            return []
        word = word_of(node, self.variables)
        unknown = word.hole or word.glob or not word.single
        return [*filter(None, word.guesses), *([None] if unknown else [])]

    def _may_set_variables(self, node: Node) -> bool:
        if node.type == "command_name":
            return base_name(word_of(node, self.variables).shown) in VARIABLE_SETTERS
        if node.type == "expansion":
            return not plain_expansion(node) and "=" in source(node)
        return node.type in {"unset_command", "arithmetic_expansion", "c_style_for_statement"} or (
            node.type == "declaration_command" and any(child.type == "word" for child in node.named_children)
        )

    def _look_at(self, node: Node, data: bytes) -> None:
        if node.is_missing or (node.is_named and node.type not in _UNDERSTOOD):
            kind = "here-document" if node.type.startswith("heredoc") else node.type
            what = kind.replace("_", " ")
            self.flaws.append(f"it has parts that are left to a person ({what})")
        if node.type in _ONE_LINE and spans_lines(node):
            self.flaws.append("a command goes over the end of a line")
        if node.type == "word" and _BROKEN_WORD.search(node.text or b""):
            self.flaws.append("a word goes over the end of a line")
            self._suspect_words(source(node))
        if node.type == "comment" and data[: node.start_byte].rstrip(b" \t")[-1:] not in {b"", b"\n"}:
            self.flaws.append("a comment stands behind something")

    # -- what stands in the tree ------------------------------------------------------------

    def _words(self, node: Node) -> list[Word]:
        return [
            word_of(child, self.variables)
            for child in node.named_children
            if child.type == "command_name" or child.type in WORDS
        ]

    def _command(self, node: Node) -> None:
        words = self._words(node)
        if any(not child.is_named for child in node.children):
            self.flaws.append("a sign stands alone among the words of a command")
        if any(one.end_byte == other.start_byte for one, other in pairwise(node.children)):
            self.flaws.append("two words stand without a space between them")
            self._suspect_words(source(node))
        name = node.child_by_field_name("name")
        for child in redirects_of(node):
            # The grammar takes what follows the target of a redirection for a part of it.
            words += [word_of(word, self.variables) for word in redirect_words(child)[1:]]
        if name is None or not words:
            return
        if not _PLAIN_NAME.fullmatch(name.text or b"") or source(name) in _RESERVED:
            self.flaws.append(f"the name of a command is not plain: {source(name)}")
            self._suspect(words[1:])
        before_command = [c for c in node.named_children if c.type == "variable_assignment"]
        for child in before_command:
            self._set_variable(child, _HARMLESS_VARIABLES)
        self._add(words, fed=is_fed(node))

    def _other_command(self, node: Node) -> None:
        words = [known(source(child).strip()) for child in node.children]
        self._append(self.commands, words)

    def _environment(self, names: Iterator[str]) -> None:
        for name in names:
            if not _HARMLESS_VARIABLES.fullmatch(name):
                self.flaws.append(f"the variable {name} may change what a command does")

    def _set_variable(self, node: Node, harmless: re.Pattern[str]) -> None:
        """Look at an assignment: some variables hold commands that programs run."""
        name, value = node.named_children[0], node.named_children[-1]
        if harmless.fullmatch(source(name)):
            return
        self._environment(iter([source(name)]))
        if source(name) in {"BASH_ENV", "ENV"}:
            self.opaque.append(f"the shell runs the file that {source(name)} names")
        word = UNKNOWN if value is name else word_of(value, self.variables)
        self.copied.append(word)
        for guess in word.guesses:
            self._take_for_command(guess)

    def _assignment(self, node: Node) -> None:
        parent = node.parent
        if parent is None or parent.type != "command":
            self._set_variable(node, _OWN_VARIABLES)

    def _loop(self, node: Node) -> None:
        name = source(node.named_children[0])
        if not _OWN_VARIABLES.fullmatch(name):
            self._environment(iter([name]))

    def _quoted_text(self, node: Node) -> None:
        """Look into a text that is quoted: `test -v 'a[$(command)]'` runs what is in it."""
        text = word_of(node, self.variables).guesses[0]
        if _QUOTED_COMMAND.search(text):
            self._take_for_command(text)
            self._take_for_command(f': "{text.replace(chr(34), " ")}"')

    def _expansion(self, node: Node) -> None:
        if not plain_expansion(node):
            self.flaws.append(f"an expansion that may do more than give a value: {source(node)}")

    def _substitution(self, node: Node) -> None:
        text = source(node)
        if text.startswith("`") and "\\" in text:
            self.flaws.append("backticks that hold a backslash")
            self.texts.append(re.sub(r"\\([`\\$])", r"\1", text[1:-1]))
            self.fed = True

    def _redirect(self, node: Node) -> None:
        words = redirect_words(node)
        operator = next((c.type for c in node.children if not c.is_named), "")
        if not words:
            return
        if words[1:]:
            self._passed_on(node, words[1:])
        target = word_of(words[0], self.variables)
        if target.glob:
            target = UNKNOWN
        number = (target.text or "").rstrip("-")
        if operator in {">&", "<&"} and number.isdigit():
            return
        self.redirects.append(Redirect(target, operator not in {"<", "<&"}))

    def _passed_on(self, node: Node, words: Sequence[Node]) -> None:
        """Give words that the grammar took for a part of a redirection back to the command."""
        self.flaws.append("arguments stand behind a redirection")
        extra = [word_of(word, self.variables) for word in words]
        body = node.parent.child_by_field_name("body") if node.parent is not None else None
        inside = [one for one in all_nodes(body) if one.type == "command"] if body else []
        before = self._words(inside[-1]) if inside else []
        self._append(self.suspects, [*before, *extra])
        self._append(self.suspects, extra)

    def _fed_text(self, node: Node) -> None:
        for child in node.children:
            if child.type == "heredoc_body":
                body = source(child)
                self.texts.append(body)
                # The grammar does not see all that is run in a here-document; in quotes it does.
                self._suspect_text(': "' + body.replace('"', "") + '"')
            elif child.type in WORDS:
                self.texts.extend(word_of(child, self.variables).guesses)

    # -- what commands come to --------------------------------------------------------------

    def _append(self, where: list[Command], words: Sequence[Word], *, fed: bool = False) -> None:
        if len(self.commands) + len(self.suspects) + len(self.possible) >= MOST_COMMANDS:
            if self.whole:
                self.flaws.append(f"it has more than {MOST_COMMANDS:,} commands")
            self.whole = False
            return
        where.append(Command(tuple(words), fed))

    def _add(self, words: Sequence[Word], *, fed: bool = False) -> None:
        """Take in a command, looking through plain wrappers; `[ … ]` is `test …`."""
        while words[0].text in WRAPPERS and not only_looks_up(words):
            self._append(self.suspects, words)
            inner = unwrapped(words)
            if inner is None:
                self.flaws.append(f"what {words[0].shown} starts cannot be told for sure")
                self._append(self.commands, words)
                self._suspect(words[1:])
                return
            inner = self._without_assignments(words[0], inner)
            if not inner:
                if not words[1:]:
                    return
                break
            words = inner
        if words[0].text == "[" and words[-1].text == "]":
            words = [known("test"), *words[1:-1]]
        self._append(self.commands, words, fed=fed)
        if words[0].text is None:
            self.flaws.append(f"only the shell knows which command it runs: {words[0].shown}")
            self.fed = True
        self._judge(words, fed=fed)

    def _without_assignments(self, wrapper: Word, words: Sequence[Word]) -> Sequence[Word]:
        if wrapper.text != "env":
            return words
        at = 0
        while at < len(words) and "=" in words[at].shown:
            name, _, value = words[at].shown.partition("=")
            self._environment(iter([name]))
            if name in {"BASH_ENV", "ENV"}:
                self.opaque.append(f"the shell runs the file that {name} names")
            self._take_for_command(value)
            at += 1
        return words[at:]

    def _judge(self, words: Sequence[Word], *, fed: bool) -> None:
        why = find_runner(words)
        name = base_name(words[0].shown)
        if why is None and name in WRAPPERS and not only_looks_up(words) and words[1:]:
            why = f"{words[0].shown} runs other commands"
        if why is not None:
            self.flaws.append(why)
        problem = find_problem(words, fed=fed)
        if name in RUNNERS or name in SHELLS or name in WRAPPERS or (name == "find" and problem is not None):
            self._suspect(words[1:])
        elif problem is not None or why is not None or starts_commands(name):
            self._take_arguments(words[1:])
        if name in COPIERS or why is not None:
            self.copied += words[1:]
        self._note_opaque(name, words, problem)
        self.fed = self.fed or reads_commands(words)
        self.maybe_fed = self.maybe_fed or (problem is not None and fed and name not in RUNNERS)
        if any(word.text is None for word in words):
            self._suspect_guesses(words)
        # What one command says may be what the next one runs.
        self.texts.extend(guess for word in words[1:] for guess in word.guesses)

    def _note_opaque(self, name: str, words: Sequence[Word], problem: Problem | None) -> None:
        """Note a command that runs code which is not there to be read."""
        if name in SHELLS:
            code = shell_code(words)
            if code is None and len(words) > 1 and words[1].text == "--version":
                return
            if code is None or code.text is None:
                self.opaque.append(f"{name} runs commands that do not stand here")
            return
        if name in {".", "source", "run-parts"} or (
            name in {"eval", "trap"} and any(word.text is None for word in words[1:])
        ):
            self.opaque.append(f"{name} runs commands that do not stand here")
            return
        program = find_program(name)
        if program is None or problem is None or not problem.acts:
            return
        texts = [word.shown for word in words[1:]]
        runs = {"awk": _AWK_RUNS, "sed": _SED_RUNS}.get(program.check or "")
        if (
            (runs is not None and any(word.text is None for word in words[1:]))
            or (runs is not None and any(runs.search(text) for text in texts))
            or program.check == "script"
        ):
            self.opaque.append(problem.reason)

    def _suspect(self, words: Sequence[Word]) -> None:
        """Take every way to read arguments as a command for possible."""
        words = [UNKNOWN if "{}" in word.shown else word for word in words]
        for at, word in enumerate(words):
            self._append(self.suspects, words[at : at + _LOOKED_AT])
            name = base_name(word.shown)
            if name in SHELLS or name in {".", "source", "eval"}:
                self._note_opaque(name, words[at:], None)
            for guess in word.guesses:
                if _ANY_TEXT.search(guess):
                    self._suspect_text(guess)
                if "=" in guess:
                    self._suspect_text(guess.partition("=")[2])
        self._suspect_text(" ".join(word.guesses[0] for word in words))

    def _suspect_words(self, text: str) -> None:
        """Take every word of a text that is not understood for the start of a command."""
        self._append_words(self.suspects, _SEPARATORS, text)

    def _append_words(self, where: list[Command], apart: re.Pattern[str], text: str) -> None:
        bare = apart.split(re.sub(r"""["'\\]""", "", text))
        words = [known(word) for word in bare if word]
        for at in range(len(words)):
            self._append(where, words[at : at + _LOOKED_AT])

    def _suspect_guesses(self, words: Sequence[Word]) -> None:
        """Read what variables and braces come to as the words they become."""
        for at, word in enumerate(words):
            for guess in word.guesses:
                if word.text is None and " " in guess:
                    spread = [known(part) for part in guess.split()]
                    self._append(self.suspects, [*words[:at], *spread, *words[at + 1 :]])

    def _suspect_text(self, text: str) -> None:
        """Read a text that is run as a command, as far as one can tell."""
        inner = self._read_inside(text)
        if inner is not None:
            for command in (*inner.commands, *inner.suspects):
                self._append(self.suspects, command.words)
            self.opaque += inner.opaque

    def _take_for_command(self, text: str) -> None:
        """Read a text that a program may take for a command: never more than a possibility."""
        inner = self._read_inside(text) if text else None
        if inner is not None:
            for command in (*inner.commands, *inner.suspects):
                self._append(self.possible, command.words)
            if _ALL_SEPARATORS.search(text):
                self._append_words(self.possible, _ALL_SEPARATORS, text)

    def _take_arguments(self, words: Sequence[Word]) -> None:
        """Take arguments for commands, also those that are joined to an option."""
        for at, word in enumerate(words):
            self._append(self.possible, words[at : at + _LOOKED_AT])
            for guess in word.guesses:
                self._take_for_command(guess)
                if guess.startswith("-"):
                    self._take_for_command(guess[2:])

    def _read_inside(self, text: str) -> _Reader | None:
        """Read a text within the text; what may run in it in turn is taken over."""
        self.spent[0] += len(text)
        if self.depth >= _DEEPEST or self.spent[0] > _MOST_READ:
            self.flaws.append("there is text within text, too deep or too much to be followed")
            self.whole = False
            return None
        inner = _Reader(variables=self.variables, depth=self.depth + 1, spent=self.spent)
        inner.read(text)
        for command in inner.possible:
            self._append(self.possible, command.words)
        self.copied += inner.copied
        self.whole = self.whole and inner.whole
        return inner

    def _after(self) -> None:
        """Look at what can only be told at the end."""
        for text in dict.fromkeys(self.texts):
            if self.fed:
                self._suspect_text(text)
            elif self.maybe_fed:
                self._take_for_command(text)
        moved = any(base_name(command.words[0].shown) in MOVERS for command in self.commands)
        relative = [r for r in self.redirects if not r.target.shown.startswith(("/", "~"))]
        if moved and relative:
            self.flaws.append("it writes or reads a file after it has changed the directory")
        if moved and any(_is_relative(command.words[0].shown) for command in self.commands):
            self.flaws.append("it runs a file by a relative path after it has changed the directory")
        if any(redirect.target.text is None for redirect in self.redirects):
            self.flaws.append("only the shell knows which file it is connected to")
        written = {_plain_path(r.target.shown) for r in self.redirects if r.writes}
        if written & {_plain_path(command.words[0].shown) for command in self.commands}:
            self.opaque.append("it runs a file that it has written")


def _is_relative(name: str) -> bool:
    return "/" in name and not name.startswith("/")


def _plain_path(text: str) -> str:
    return posixpath.normpath(text)
