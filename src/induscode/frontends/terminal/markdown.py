"""Renders finished Markdown blocks for a terminal, using rich.

Links show their address, raw HTML stays text, line breaks stay, and a table that doesn't fit is printed as records. If
rendering would lose a word (an entity, a link title, deep nesting), the block is printed as written. Code lines stay
whole for copying; the terminal wraps them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement, TableElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from induscode.cli.terminal import escape_controls
from induscode.frontends.terminal.blocks import MarkdownBlock, wrap_to_cells

_TAB = 4
_RULE_WIDTH = 40
_MAX_NESTING = 100
_QUOTE_CELLS = 4
_ITEM_CELLS = 4
"""Cells a quote or an item takes from the lines inside it; a numbered item also takes its digits."""
_NARROWEST_TEXT = 8
_COLUMN_GAP = 2
_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold underline",
        **{f"markdown.h{level}": "bold" for level in range(2, 7)},
        "markdown.block_quote": "italic",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.link": "underline",
        "markdown.table.border": "dim",
    }
)
"""Colours that are legible on dark and light backgrounds."""
_NUMBER = re.compile(r"^[\s>]*(?:[-*+][ \t]+)*\d{1,9}[.)]", re.MULTILINE)
_SGR = re.compile(r"\x1b\[[0-9;]*m")
_EMPTY_STYLE = re.compile(r"\x1b\[[0-9;]+m\x1b\[0m")
_TRAILING_SPACE = re.compile(r"[ ]+((?:\x1b\[[0-9;]*m|[ ])*)$", re.MULTILINE)


class BlockRenderer:
    """Renders blocks for one terminal."""

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING})
        # A link definition would vanish, and the block referring to it may already be printed.
        self._parser.enable(["strikethrough", "table"]).disable(["entity", "reference"])

    def render(self, block: MarkdownBlock, width: int) -> str:
        """Render a block as complete lines of at most `width` cells; lines of a code fence may be longer."""
        text = escape_controls(block.text)
        console, output = self._open_console(width)
        if block.kind == "fence":
            self._print_fence(console, block, text)
        else:
            tokens = self._parser.parse(text)
            if _measure_nesting(tokens) + _NARROWEST_TEXT <= width:
                console.print(_TerminalMarkdown(tokens, color=self._color))
            if not _has_words_of(text, _SGR.sub("", output.getvalue())):
                lines = text.expandtabs(_TAB).split("\n")
                return "".join(f"{row}\n" for line in lines for row in wrap_to_cells(line, width))
        rendered = _TRAILING_SPACE.sub(lambda match: match[1].replace(" ", ""), output.getvalue())
        rendered = _EMPTY_STYLE.sub("", rendered)
        return rendered if block.kind == "fence" else rendered.strip("\n") + "\n"

    def _open_console(self, width: int) -> tuple[Console, StringIO]:
        output = StringIO()
        console = Console(
            file=output,
            width=width,
            height=25,  # with both sizes set, rich queries neither the terminal nor the environment
            force_terminal=self._color,
            color_system="auto" if self._color else None,
            no_color=not self._color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            theme=_THEME,
        )
        return console, output

    def _print_fence(self, console: Console, block: MarkdownBlock, code: str) -> None:
        """Print code lines between two rules; a middle part has none."""
        rule = min(console.width, _RULE_WIDTH)
        if block.is_first:
            info = escape_controls(block.info).expandtabs(_TAB)
            label = f"── {info} " if info else ""
            console.print(Text(label + "─" * (rule - len(label)), "dim"), soft_wrap=True)
        if code or not block.is_last:
            language = block.info.split(maxsplit=1)[0] if block.info else ""
            console.print(_highlight(code, language), soft_wrap=True)
        if block.is_last:
            console.print(Text("─" * rule, "dim"), soft_wrap=True)


def _measure_nesting(tokens: Sequence[Token]) -> int:
    """Return the cells that lists and quotes take from the innermost text."""
    costs: list[int] = []
    deepest = 0
    for token in tokens:
        if token.nesting > 0:
            is_item, is_quote = token.type == "list_item_open", token.type == "blockquote_open"
            costs.append(_ITEM_CELLS + len(token.info) if is_item else _QUOTE_CELLS if is_quote else 0)
            deepest = max(deepest, sum(costs))
        elif token.nesting < 0:
            costs.pop()
    return deepest


def _has_words_of(source: str, shown: str) -> bool:
    """Return whether the output has all letters and digits of the source.

    The renderer numbers items itself, and wrapped table cells change the order of words.
    """
    source = _NUMBER.sub("", source)
    left = iter(shown)
    if all(letter in left for letter in source if letter.isalnum()):
        return True
    return not Counter(filter(str.isalnum, source)) - Counter(filter(str.isalnum, shown))


def _highlight(code: str, language: str) -> Text:
    """Highlight code with the terminal's 16 colours, which the user chose."""
    code = code.expandtabs(_TAB)
    text = Syntax(code, language or "text", theme="ansi_dark").highlight(code)
    if text.plain == f"{code}\n":  # lexers end the last line
        text.right_crop(1)
    return text if text.plain == code else Text(code)


# -- elements -----------------------------------------------------------------------------------


class _PlainHeading(Heading):
    """A left-aligned heading. rich would centre the first level, or all of them with a border."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _PlainCode(CodeBlock):
    """Indented code, or code inside a list or quote, without background or padding."""

    info: str

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _PlainCode:
        """Create the element of a code block."""
        element = cls(token.info.partition(" ")[0], "")
        element.info = token.info.strip()
        return element

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.info:
            yield Text(self.info, "dim", overflow="fold")
        text = _highlight(str(self.text).rstrip(), self.lexer_name)
        text.no_wrap, text.overflow = False, "fold"
        yield text


class _PlainRule(MarkdownElement):
    """A horizontal rule."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("─" * min(options.max_width, _RULE_WIDTH), "dim")


class _NumberedItem(ListItem):
    """A list item whose number ends in a dot."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        indent = len(str(last_number)) + 3
        lines = console.render_lines(self.elements, options.update(width=options.max_width - indent), style=self.style)
        style = console.get_style("markdown.item.number", default="none")
        for index, line in enumerate(lines):
            yield Segment(f"{number}. ".rjust(indent) if index == 0 else " " * indent, style)
            yield from line
            yield Segment.line()


class _FittingTable(TableElement):
    """A table with columns at least as wide as their longest words, or one record per row if that's too wide."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        columns = [[head, *(row[index] for row in rows if index < len(row))] for index, head in enumerate(heads)]
        words = [[word for cell in column for word in cell.plain.split()] for column in columns]
        least = [max(map(cell_len, column), default=1) for column in words]
        most = [max(cell.cell_len for cell in column) for column in columns]
        spare = options.max_width - _COLUMN_GAP * (len(columns) - 1) - sum(least)
        if spare < 0:
            yield from _list_records(heads, rows)
            return
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        growth = sum(most) - sum(least)
        for head, low, high in zip(heads, least, most, strict=True):
            share = high - low if growth <= spare else (high - low) * spare // growth
            table.add_column(head, width=low + share, overflow="fold", justify=head.justify or "left")
        for row in rows:
            table.add_row(*row)
        yield table


def _list_records(heads: Sequence[Text], rows: Sequence[Sequence[Text]]) -> Iterator[Text]:
    for index, row in enumerate(rows):
        if index:
            yield Text()
        for head, cell in zip(heads, row, strict=False):
            if head.plain or cell.plain:
                yield Text.assemble((head.plain, "bold"), ": ", cell, overflow="fold")
    if not rows:
        yield Text(" ".join(head.plain for head in heads), "bold", overflow="fold")


class _TerminalMarkdown(Markdown):
    """Markdown styled with colours only."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
        "hr": _PlainRule,
        "list_item_open": _NumberedItem,
        "table_open": _FittingTable,
    }
    inlines = Markdown.inlines | {"link"}

    def __init__(self, tokens: Sequence[Token], *, color: bool) -> None:
        super().__init__("", justify="default", hyperlinks=False)
        before: Token | None = None
        for token in tokens:
            if token.type == "inline":
                children = [*_show_targets(token.children or ())]
                if not color:
                    # Keep the backticks where colour can't set code apart from text.
                    children = [
                        _text_token(f"`{child.content}`") if child.type == "code_inline" else child
                        for child in children
                    ]
                    if before is not None and before.type == "heading_open":
                        children.insert(0, _text_token("#" * int(before.tag[1:]) + " "))
                token.children = children
            before = token
        self.parsed = [*tokens]


def _text_token(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _show_targets(tokens: Sequence[Token]) -> Iterator[Token]:
    """Append the address of a link or image to its text, and keep line breaks."""
    target = text = ""
    for token in tokens:
        if token.type == "link_open":
            target, text = _format_target(token, "href"), ""
            yield Token("span_open", "link", 1)
        elif token.type == "link_close":
            yield Token("span_close", "link", -1)
            if target.removeprefix("mailto:") != text:
                yield _text_token(f" ({target})")
        elif token.type == "image":
            yield _text_token(f"{token.content} ({_format_target(token, 'src')})")
        elif token.type == "softbreak":
            yield Token("hardbreak", "br", 0)
        else:
            text += token.content
            yield token


def _format_target(token: Token, attribute: str) -> str:
    title = token.attrs.get("title")
    return f'{token.attrs.get(attribute, "")} "{title}"' if title else str(token.attrs.get(attribute, ""))
