"""Shell parser: finds every command and redirection in a text, and reports everything it doesn't understand.

Allow rules need an empty `flaws`. Deny rules match `commands` and `suspects`, which (probably) run; `possible`, which
run if a program treats an argument as a command; and `opaque`, the reasons why any command at all may run.
Grammar: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from indusagi.core.records import record
from induscode.permissions.shell.arguments import Problem, find_problem, find_program, starts_commands
from induscode.permissions.shell.launchers import (
    COPIERS,
    MOVERS,
    VARIABLE_SETTERS,
    base_name,
    find_launch,
    find_runner,
    find_shell_code,
    is_lookup,
    names,
    runs_input,
    unwrap_command,
)
from induscode.permissions.shell.syntax import (
    ALL_VARIABLES,
    UNKNOWN,
    WORDS,
    Word,
    expand_braces,
    find_redirects,
    get_redirect_words,
    get_source,
    is_covered,
    is_fed,
    is_plain_expansion,
    is_strange,
    iter_nodes,
    iter_readings,
    literal_word,
    parse_bracket_command,
    parse_tree,
    read_word,
    spans_lines,
)

if TYPE_CHECKING:
    from tree_sitter import Node


@record
class Command:
    """A command with its arguments."""

    words: tuple[Word, ...]
    fed: bool = False
    """Whether another command writes to its standard input."""

    @property
    def shown(self) -> str:
        """The command for messages."""
        return " ".join(word.shown for word in self.words)


@record
class Redirect:
    """The target of `<`, `>` or a variant."""

    target: Word
    writes: bool


@record(kw_only=True)
class Script:
    """The effects of a text if a shell runs it."""

    text: str
    commands: tuple[Command, ...]
    suspects: tuple[Command, ...]
    """More commands that probably run."""
    possible: tuple[Command, ...] = ()
    """Commands that run if a program treats an argument as one."""
    opaque: tuple[str, ...] = ()
    """Reasons why any command at all may run."""
    copied: tuple[Word, ...] = ()
    """Programs that may get a new name."""
    redirects: tuple[Redirect, ...]
    flaws: tuple[str, ...]
    """Parts the parser doesn't understand. Any flaw keeps rules from allowing the text."""
    whole: bool
    """Whether the parser examined all of the text."""


LONGEST_TEXT = 32 * 1024
_MAX_HEREDOCS = 100
"""Parse time grows with each here-document."""
MOST_COMMANDS = 2_000
_MAX_DEPTH = 5
"""Nesting limit of texts within texts."""
_MAX_TOTAL_CHARS = 256 * 1024
"""Limit for the text and all texts nested in it."""
_MAX_COMPARED_WORDS = 32
"""Words of a possible command to match against rules."""
_UNDERSTOOD = names(
    "program list pipeline command command_name redirected_statement file_redirect file_descriptor"
    " negated_command subshell compound_statement if_statement elif_clause else_clause"
    " while_statement for_statement do_group word number string string_content raw_string"
    " concatenation simple_expansion expansion variable_name special_variable_name"
    " command_substitution process_substitution variable_assignment variable_assignments"
    " comment"
)
"""Node types that a rule may allow. Only the user can allow others."""
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
"""Runs even inside quotes if bash evaluates the text as an array index."""
_TEXTS = ("raw_string", "ansi_c_string", "string", "concatenation", "word")
_AWK_RUNS = re.compile(r"system|getline|\||@")
_SED_RUNS = re.compile(r"(?:^|[;{}\n/,0-9$!\s])e(?:\s|$)|/[gpiImMw0-9]*e[gpiImMw0-9]*\s*(?:[;}\n]|$)")


def parse_command(text: str) -> Script:
    """Parse a command. The result reports parts that the parser doesn't understand; nothing is skipped."""
    reader = _CommandReader()
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
class _CommandReader:
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
    """Texts that may become the input of a shell."""
    depth: int = 0
    fed: bool = False
    """Whether a shell runs its standard input."""
    maybe_fed: bool = False
    """Whether a program may run its standard input."""
    spent: list[int] = field(default_factory=lambda: [0])
    """Characters read so far, shared with the readers of nested texts."""

    def read(self, text: str) -> None:
        """Read a complete text."""
        if len(text) > LONGEST_TEXT:
            self.whole = False
            self.flaws.append(f"it has more than {LONGEST_TEXT:,} characters")
            text = text[:LONGEST_TEXT]
        self._check_characters(text)
        self._read_tree(text)
        for other in iter_readings(text):
            self._suspect_text(other)
        self._finish()

    def _check_characters(self, text: str) -> None:
        strange = {char for char in text if is_strange(char)}
        if strange:
            listed = ", ".join(f"U+{ord(char):04X}" for char in sorted(strange))
            self._add_opaque_flaw(f"it has invisible or ambiguous characters: {listed}")
        if expand_braces(text) is None:
            self._add_opaque_flaw("its braces expand to too many words")
        if re.search(r"[^\s\\]\\\n", text):
            self.flaws.append("a line break splits a word")

    def _add_opaque_flaw(self, flaw: str) -> None:
        """Add a flaw behind which a denied command may hide."""
        self.flaws.append(flaw)
        self.opaque.append(flaw)

    def _read_tree(self, text: str) -> None:
        if text.count("<<") > _MAX_HEREDOCS:
            self.whole = False
            self.flaws.append(f"it has more than {_MAX_HEREDOCS} here-documents")
            self._suspect_words(text)
            return
        data = text.encode("utf-8", "replace")
        root = parse_tree(data)
        if root.has_error:
            self._add_opaque_flaw("its syntax can't be parsed")
            self._suspect_words(text)
        nodes = self._replace_brackets(list(iter_nodes(root)))
        self._collect_variables(nodes)
        if not is_covered(root, data):
            self._add_opaque_flaw("the parser skipped part of it")
        readers: dict[str, Callable[[Node], None]] = {
            "command": self._read_command,
            "file_redirect": self._read_redirect,
            "heredoc_redirect": self._read_input_text,
            "herestring_redirect": self._read_input_text,
            "command_substitution": self._read_substitution,
            "declaration_command": self._read_builtin,
            "unset_command": self._read_builtin,
            **dict.fromkeys(_TEXTS, self._read_quoted_text),
        }
        for node in nodes:
            self._check_node(node, data)
            if node.type in readers:
                readers[node.type](node)

    def _replace_brackets(self, nodes: Sequence[Node]) -> list[Node]:
        """Read `[ … ]` as the command `test …`: https://man7.org/linux/man-pages/man1/test.1.html."""
        result: list[Node] = []
        end = 0
        for node in nodes:
            if node.start_byte < end:
                continue
            inner = parse_bracket_command(node)
            if inner is None:
                if node.type == "test_command" and get_source(node).startswith("[ "):
                    self._suspect_text(f"test {get_source(node)[1:]}")
                result.append(node)
                continue
            end = node.end_byte
            result += iter_nodes(inner)
        return result

    def _collect_variables(self, nodes: Sequence[Node]) -> None:
        """Collect the values that the text assigns to variables, with `None` for unknown values."""
        for node in nodes:
            if node.type == "variable_assignment":
                name, value = node.named_children[0], node.named_children[-1]
                values = [None] if value is name else self._get_values(value)
                if any(child.type == "+=" for child in node.children):
                    values.append(None)
                self.variables.setdefault(get_source(name).partition("[")[0], []).extend(values)
            elif node.type == "for_statement":
                name, *items = node.named_children
                in_order = [value for item in items for value in self._get_values(item)]
                self.variables.setdefault(get_source(name), []).extend(in_order or [None])
            elif self._may_set_variables(node):
                self.variables[ALL_VARIABLES] = [None]

    def _get_values(self, node: Node) -> list[str | None]:
        if node.type == "do_group":
            return []
        word = read_word(node, self.variables)
        unknown = word.hole or word.glob or not word.single
        return [*filter(None, word.guesses), *([None] if unknown else [])]

    def _may_set_variables(self, node: Node) -> bool:
        if node.type == "command_name":
            return base_name(read_word(node, self.variables).shown) in VARIABLE_SETTERS
        if node.type == "expansion":
            return not is_plain_expansion(node) and "=" in get_source(node)
        return node.type in {"unset_command", "arithmetic_expansion", "c_style_for_statement"} or (
            node.type == "declaration_command" and any(child.type == "word" for child in node.named_children)
        )

    def _check_node(self, node: Node, data: bytes) -> None:
        if node.is_missing or (node.is_named and node.type not in _UNDERSTOOD):
            kind = "here-document" if node.type.startswith("heredoc") else node.type
            self.flaws.append(f"it has parts that only the user can allow ({kind.replace('_', ' ')})")
        if node.type in _ONE_LINE and spans_lines(node):
            self.flaws.append("a command continues on the next line")
        if node.type == "word" and _BROKEN_WORD.search(node.text or b""):
            self.flaws.append("a word continues on the next line")
            self._suspect_words(get_source(node))
        if node.type == "comment" and data[: node.start_byte].rstrip(b" \t")[-1:] not in {b"", b"\n"}:
            self.flaws.append("a comment follows a command")
        if node.type == "variable_assignment" and (node.parent is None or node.parent.type != "command"):
            self._check_assignment(node, _OWN_VARIABLES)
        if node.type == "for_statement" and not _OWN_VARIABLES.fullmatch(get_source(node.named_children[0])):
            self._check_environment(get_source(node.named_children[0]))
        if node.type == "expansion" and not is_plain_expansion(node):
            self.flaws.append(f"an expansion may do more than return a value: {get_source(node)}")

    # -- nodes of the tree ----------------------------------------------------------------------

    def _read_words(self, node: Node) -> list[Word]:
        return [
            read_word(child, self.variables)
            for child in node.named_children
            if child.type == "command_name" or child.type in WORDS
        ]

    def _read_command(self, node: Node) -> None:
        words = self._read_words(node)
        if any(not child.is_named for child in node.children):
            self.flaws.append("a command has a stray symbol among its words")
        if any(left.end_byte == right.start_byte for left, right in pairwise(node.children)):
            self.flaws.append("two words have no space between them")
            self._suspect_words(get_source(node))
        name = node.child_by_field_name("name")
        for child in find_redirects(node):
            # The grammar makes the words after a redirection's target part of the redirection.
            words += [read_word(word, self.variables) for word in get_redirect_words(child)[1:]]
        if name is None or not words:
            return
        if not _PLAIN_NAME.fullmatch(name.text or b"") or get_source(name) in _RESERVED:
            self.flaws.append(f"a command's name isn't plain: {get_source(name)}")
            self._suspect_arguments(words[1:])
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._check_assignment(child, _HARMLESS_VARIABLES)
        self._add_command(words, fed=is_fed(node))

    def _read_builtin(self, node: Node) -> None:
        words = [literal_word(get_source(child).strip()) for child in node.children]
        self._append_command(self.commands, words)

    def _check_environment(self, name: str) -> None:
        if not _HARMLESS_VARIABLES.fullmatch(name):
            self.flaws.append(f"the variable {name} may change what a command does")
        if name in {"BASH_ENV", "ENV"}:
            self.opaque.append(f"the shell runs the file that {name} names")

    def _check_assignment(self, node: Node, harmless: re.Pattern[str]) -> None:
        """Check an assignment, because programs run commands from some variables."""
        name, value = node.named_children[0], node.named_children[-1]
        if harmless.fullmatch(get_source(name)):
            return
        self._check_environment(get_source(name))
        word = UNKNOWN if value is name else read_word(value, self.variables)
        self.copied.append(word)
        for guess in word.guesses:
            self._consider_text(guess)

    def _read_quoted_text(self, node: Node) -> None:
        """Look for commands in quotes: `test -v 'a[$(command)]'` runs one."""
        text = read_word(node, self.variables).guesses[0]
        if _QUOTED_COMMAND.search(text):
            self._consider_text(text)
            self._consider_text(f': "{text.replace(chr(34), " ")}"')

    def _read_substitution(self, node: Node) -> None:
        text = get_source(node)
        if text.startswith("`") and "\\" in text:
            self.flaws.append("backticks contain a backslash")
            self.texts.append(re.sub(r"\\([`\\$])", r"\1", text[1:-1]))
            self.fed = True

    def _read_redirect(self, node: Node) -> None:
        words = get_redirect_words(node)
        operator = next((c.type for c in node.children if not c.is_named), "")
        if not words:
            return
        if words[1:]:
            # Words after a redirection belong to the command.
            self.flaws.append("arguments follow a redirection")
            extra = [read_word(word, self.variables) for word in words[1:]]
            body = node.parent.child_by_field_name("body") if node.parent is not None else None
            inside = [child for child in iter_nodes(body) if child.type == "command"] if body else []
            before = self._read_words(inside[-1]) if inside else []
            self._append_command(self.suspects, [*before, *extra])
            self._append_command(self.suspects, extra)
        target = read_word(words[0], self.variables)
        if target.glob:
            target = UNKNOWN
        if operator in {">&", "<&"} and (target.text or "").rstrip("-").isdigit():
            return
        self.redirects.append(Redirect(target, operator not in {"<", "<&"}))

    def _read_input_text(self, node: Node) -> None:
        for child in node.children:
            if child.type == "heredoc_body":
                body = get_source(child)
                self.texts.append(body)
                # The grammar misses some substitutions in here-documents that it finds in double quotes.
                self._suspect_text(': "' + body.replace('"', "") + '"')
            elif child.type in WORDS:
                self.texts.extend(read_word(child, self.variables).guesses)

    # -- commands -------------------------------------------------------------------------------

    def _append_command(self, where: list[Command], words: Sequence[Word], *, fed: bool = False) -> None:
        if len(self.commands) + len(self.suspects) + len(self.possible) >= MOST_COMMANDS:
            if self.whole:
                self.flaws.append(f"it has more than {MOST_COMMANDS:,} commands")
            self.whole = False
            return
        where.append(Command(tuple(words), fed))

    def _add_command(self, words: Sequence[Word], *, fed: bool = False) -> None:
        """Add a command without its wrappers, and `[ … ]` as `test …`."""
        while find_launch(words[0].text or "") == "wrapper" and not is_lookup(words):
            self._append_command(self.suspects, words)
            inner = unwrap_command(words)
            if inner is None:
                self.flaws.append(f"it isn't certain which command {words[0].shown} starts")
                self._append_command(self.commands, words)
                self._suspect_arguments(words[1:])
                return
            while words[0].text == "env" and inner and "=" in inner[0].shown:
                name, _, value = inner[0].shown.partition("=")
                self._check_environment(name)
                self._consider_text(value)
                inner = inner[1:]
            if not inner:
                if not words[1:]:
                    return
                break
            words = inner
        if words[0].text == "[" and words[-1].text == "]":
            words = [literal_word("test"), *words[1:-1]]
        self._append_command(self.commands, words, fed=fed)
        if words[0].text is None:
            self.flaws.append(f"only the shell knows which command it runs: {words[0].shown}")
            self.fed = True
        self._classify_command(words, fed=fed)

    def _classify_command(self, words: Sequence[Word], *, fed: bool) -> None:
        reason = find_runner(words)
        name = base_name(words[0].shown)
        launch = find_launch(name)
        if reason is None and launch == "wrapper" and not is_lookup(words) and words[1:]:
            reason = f"{words[0].shown} runs other commands"
        if reason is not None:
            self.flaws.append(reason)
        problem = find_problem(words, fed=fed)
        if launch is not None or (name == "find" and problem is not None):
            self._suspect_arguments(words[1:])
        elif problem is not None or reason is not None or starts_commands(name):
            # Arguments and values joined to an option may be commands.
            for index, word in enumerate(words[1:], 1):
                self._append_command(self.possible, words[index : index + _MAX_COMPARED_WORDS])
                for guess in word.guesses:
                    self._consider_text(guess)
                    self._consider_text(guess[2:] if guess.startswith("-") else "")
        if name in COPIERS or reason is not None:
            self.copied += words[1:]
        self._note_opaque(name, words, problem)
        self.fed = self.fed or runs_input(words)
        self.maybe_fed = self.maybe_fed or (problem is not None and fed and launch != "runner")
        for index, word in enumerate(words):
            # Variables and braces may expand to several words.
            for guess in [guess for guess in word.guesses if word.text is None and " " in guess]:
                spread = [literal_word(part) for part in guess.split()]
                self._append_command(self.suspects, [*words[:index], *spread, *words[index + 1 :]])
        # One command's output may be the next one's input.
        self.texts.extend(guess for word in words[1:] for guess in word.guesses)

    def _note_opaque(self, name: str, words: Sequence[Word], problem: Problem | None) -> None:
        """Record a command that runs code from outside the text."""
        if find_launch(name) == "shell":
            code = find_shell_code(words)
            if code is None and len(words) > 1 and words[1].text == "--version":
                return
            if code is None or code.text is None:
                self.opaque.append(f"{name} runs commands that aren't in the text")
            return
        if name in {".", "source", "run-parts"} or (
            name in {"eval", "trap"} and any(word.text is None for word in words[1:])
        ):
            self.opaque.append(f"{name} runs commands that aren't in the text")
            return
        program = find_program(name)
        if program is None or problem is None or not problem.acts:
            return
        runs = {"awk": _AWK_RUNS, "sed": _SED_RUNS}.get(program.check or "")
        if program.check == "script" or (
            runs is not None and any(word.text is None or runs.search(word.shown) for word in words[1:])
        ):
            self.opaque.append(problem.reason)

    def _suspect_arguments(self, words: Sequence[Word]) -> None:
        """Suspect each argument of starting a command."""
        words = [UNKNOWN if "{}" in word.shown else word for word in words]
        for index, word in enumerate(words):
            self._append_command(self.suspects, words[index : index + _MAX_COMPARED_WORDS])
            name = base_name(word.shown)
            if find_launch(name) == "shell" or name in {".", "source", "eval"}:
                self._note_opaque(name, words[index:], None)
            for guess in word.guesses:
                if _ANY_TEXT.search(guess):
                    self._suspect_text(guess)
                if "=" in guess:
                    self._suspect_text(guess.partition("=")[2])
        self._suspect_text(" ".join(word.guesses[0] for word in words))

    def _suspect_words(self, text: str) -> None:
        """Suspect each word of a text of starting a command."""
        self._append_words(self.suspects, _SEPARATORS, text)

    def _append_words(self, where: list[Command], separators: re.Pattern[str], text: str) -> None:
        bare = separators.split(re.sub(r"""["'\\]""", "", text))
        words = [literal_word(word) for word in bare if word]
        for index in range(len(words)):
            self._append_command(where, words[index : index + _MAX_COMPARED_WORDS])

    def _suspect_text(self, text: str) -> None:
        """Read a text that probably runs."""
        inner = self._read_nested(text)
        if inner is not None:
            for command in (*inner.commands, *inner.suspects):
                self._append_command(self.suspects, command.words)
            self.opaque += inner.opaque

    def _consider_text(self, text: str) -> None:
        """Read a text that a program may treat as a command."""
        inner = self._read_nested(text) if text else None
        if inner is not None:
            for command in (*inner.commands, *inner.suspects):
                self._append_command(self.possible, command.words)
            if _ALL_SEPARATORS.search(text):
                self._append_words(self.possible, _ALL_SEPARATORS, text)

    def _read_nested(self, text: str) -> _CommandReader | None:
        """Read a nested text and adopt its possible commands."""
        self.spent[0] += len(text)
        if self.depth >= _MAX_DEPTH or self.spent[0] > _MAX_TOTAL_CHARS:
            self.flaws.append("it has nested text that is too deep or too long to follow")
            self.whole = False
            return None
        inner = _CommandReader(variables=self.variables, depth=self.depth + 1, spent=self.spent)
        inner.read(text)
        for command in inner.possible:
            self._append_command(self.possible, command.words)
        self.copied += inner.copied
        self.whole = self.whole and inner.whole
        return inner

    def _finish(self) -> None:
        """Run the checks that need the whole text."""
        for text in dict.fromkeys(self.texts):
            if self.fed:
                self._suspect_text(text)
            elif self.maybe_fed:
                self._consider_text(text)
        moved = any(base_name(command.words[0].shown) in MOVERS for command in self.commands)
        if moved and any(not redirect.target.shown.startswith(("/", "~")) for redirect in self.redirects):
            self.flaws.append("it writes or reads a file after changing the directory")
        programs = [command.words[0].shown for command in self.commands]
        if moved and any("/" in program and not program.startswith("/") for program in programs):
            self.flaws.append("it runs a file by a relative path after changing the directory")
        if any(redirect.target.text is None for redirect in self.redirects):
            self.flaws.append("only the shell knows which file it redirects to or from")
        written = {posixpath.normpath(redirect.target.shown) for redirect in self.redirects if redirect.writes}
        if written & set(map(posixpath.normpath, programs)):
            self.opaque.append("it runs a file that it wrote")
