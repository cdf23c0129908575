"""Edit plans: compute the new bytes of a file and everything to report about them, before writing anything.

Planning is pure and synchronous: the caller reads the file, plans the edit in a thread or worker, and writes the
result. An impossible request becomes an `EditRefusal` with a message for the model.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace

from indusagi.capabilities.files.codec import TextForm, decode_lossless, digest_bytes, encode, encode_piece
from indusagi.capabilities.files.diff import (
    compare_lines,
    count_first_lines,
    format_excerpt,
    format_first_lines,
    format_patch,
    replace_surrogates,
)
from indusagi.capabilities.files.match import MatchStrategy
from indusagi.capabilities.files.replace import (
    MAX_FILE_BYTES,
    MAX_LISTED,
    EditRefusal,
    Replaced,
    Replacement,
    ShownLines,
    apply_replacement,
)
from indusagi.capabilities.worker import WorkerError, run_in_thread, run_in_worker
from indusagi.core.app_dirs import is_within, parts_below
from indusagi.core.json import JsonValue
from indusagi.core.records import record
from indusagi.core.text import common_end, common_start

MAX_PATCH_BYTES = 16 * 1024
LIGHT_CHARACTERS = 256 * 1024
"""Up to this size, no single call holds the GIL for more than ten milliseconds; with eight million characters, one call
can take half a second."""
DEADLINE_S = 60.0
"""The worst file of maximum size takes ten seconds."""
_MAX_EDIT_CHARACTERS = 2 * MAX_FILE_BYTES
"""Total for all edits. Sending more to a worker would block the event loop."""
_SHOWN_BYTES = 4_096
"""Prefix of the file used to show its first lines in an error message."""


@record(kw_only=True)
class EditRequest:
    """The requested change, and the session's knowledge about the file."""

    path: str
    """As the model wrote it."""
    resolved: str
    cwd: str
    must_be_read: bool
    """Whether the model has to read a file before changing it."""
    digest: str | None
    """Of the content the model has read."""
    shown: ShownLines | None = None
    """The first lines of the file, as shown by an earlier refusal."""
    edits: Sequence[Replacement] = ()
    content: str | None = None
    """The complete new content, as an alternative to edits."""

    def is_light(self, before: bytes | None) -> bool:
        """Return whether we can plan it in a thread without blocking the event loop."""
        size = largest = len(before or b"")
        for edit in self.edits:
            times = size // max(1, len(edit.old)) if edit.every else 1
            size += times * len(edit.new)
            largest = max(largest, size, len(edit.old))
        largest = max(largest, len(self.content or ""))
        return largest <= LIGHT_CHARACTERS and not is_slow_to_parse(self.resolved, largest)


@record(kw_only=True)
class EditPlan:
    """The new content of a file, with everything to report about it."""

    after: bytes
    digest: str
    created: bool
    changed: bool
    added: int
    removed: int
    excerpt: str
    patch: bytes
    patch_complete: bool
    encoding: str
    """Of the lines in the patch."""
    wide: bool
    """Whether the patch applies to the text in UTF-8 because the file is UTF-16 or UTF-32."""
    unseen: bool
    """Whether the file has lines the model hasn't read, or that another program has since written."""
    shown: ShownLines | None = None
    """The lines the model knows afterwards, if only the first ones."""
    notes: Sequence[str] = ()
    syntax_error: str | None = None
    facts: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])


@record
class TextChange:
    """A file before and after an edit."""

    before: bytes | None
    """None for a new file."""
    after: bytes
    former: str
    text: str
    form: TextForm
    notes: tuple[str, ...] = ()
    unseen: bool = False
    shown: ShownLines | None = None
    facts: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])


async def plan_edit(request: EditRequest, before: bytes | None) -> EditPlan | EditRefusal:
    """Plan an edit of a file (None: no file yet) in a thread, or in a worker process if it's heavy.

    Cancelling doesn't wait for either.
    """
    if len(request.content or "") > MAX_FILE_BYTES:
        return EditRefusal("too_large", f"the file would have more than {MAX_FILE_BYTES:,} bytes")
    if sum(len(edit.old) + len(edit.new) for edit in request.edits) > _MAX_EDIT_CHARACTERS:
        return EditRefusal("too_large", f"the texts have more than {_MAX_EDIT_CHARACTERS:,} characters together")
    if request.is_light(before):
        return await run_in_thread(plan_edit_sync, request, before)
    returns = (EditPlan, EditRefusal, ShownLines)
    try:
        return await run_in_worker(plan_edit_sync, request, before, returns=returns, deadline_s=DEADLINE_S)
    except WorkerError as exc:
        return EditRefusal(exc.code, f"the process that plans the edit {exc}; use a command")


def plan_edit_sync(request: EditRequest, before: bytes | None) -> EditPlan | EditRefusal:
    """Plan an edit of a file with this content (None: no file yet)."""
    is_current = before is None or not request.must_be_read or request.digest == digest_bytes(before)
    change: TextChange | EditRefusal
    if request.content is not None:
        change = overwrite_text(before, request.content, request.path)
        is_same = isinstance(change, TextChange) and change.after == before
        if before is not None and not is_current and not is_same:
            change = _refuse_unread(request, before)
    elif before is None:
        change = _create_text(request.edits, request.path)
    elif not all(edit.old for edit in request.edits):
        message = "oldText is empty, which only makes a new file, and this one exists"
        change = EditRefusal("invalid_arguments", message)
    elif is_current:
        change = edit_text(before, request.edits, request.path)
    else:
        change = _edit_changed_file(request, before)
    if isinstance(change, EditRefusal):
        return change
    if len(change.after) > MAX_FILE_BYTES:
        message = f"the file would have {len(change.after):,} bytes: {MAX_FILE_BYTES:,} at most"
        return EditRefusal("too_large", message)
    old, new, encoding = change.before or b"", change.after, change.form.encoding
    if change.form.wide:
        # A byte patch of UTF-16 would be unreadable.
        old, new = (replace_surrogates(text).encode("utf-8") for text in (change.former, change.text))
        encoding = "utf-8"
    diff = compare_lines(old, new)
    created = change.before is None
    root = os.path.realpath(request.cwd)
    name = "/".join(parts_below(request.resolved, root if is_within(request.resolved, root) else "/"))
    patch, patch_complete = format_patch(diff, name, created=created, limit=MAX_PATCH_BYTES)
    changed = change.after != change.before
    former = None if created else change.former
    return EditPlan(
        after=change.after,
        digest=digest_bytes(change.after),
        created=created,
        changed=changed,
        added=diff.added,
        removed=diff.removed,
        excerpt="" if created else format_excerpt(diff, encoding),
        patch=patch,
        patch_complete=patch_complete,
        encoding=encoding,
        wide=change.form.wide,
        unseen=change.unseen,
        shown=change.shown,
        notes=change.notes,
        syntax_error=find_new_syntax_error(request.resolved, former, change.text) if changed else None,
        facts=change.facts,
    )


def overwrite_text(before: bytes | None, content: str, path: str) -> TextChange | EditRefusal:
    """Replace the whole content of a file, preserving its encoding and line endings."""
    former, form = ("", TextForm()) if not before else decode_lossless(before)
    if "\0" in former:
        former, form = "", TextForm()
    text = content.removeprefix("\ufeff") if form.bom else content
    if form.line_ending == "crlf" and "\r" not in text:
        text = text.replace("\n", "\r\n")
    refusal = _refuse_elisions(text, former, path)
    if refusal is not None:
        return refusal
    try:
        after = form.bom + encode_piece(text, form)
    except OSError as exc:
        return EditRefusal("encoding", exc.strerror or str(exc))
    return TextChange(before, after, former, text, form, tuple(_describe([], form, text)))


def edit_text(
    before: bytes, edits: Sequence[Replacement], path: str, *, exactly: bool = False
) -> TextChange | EditRefusal:
    """Apply all replacements in order, or none.

    `exactly` requires a single, exact match for each, because the file isn't the one the model has read.
    """
    former, form = decode_lossless(before)
    if "\0" in former:  # binary data contains NUL
        return EditRefusal("binary", "this is not text; edit changes text files only")
    text = former
    replaced: list[Replaced] = []
    for number, edit in enumerate(edits, start=1):
        result = apply_replacement(text, edit, form, exactly=exactly)
        if isinstance(result, EditRefusal) and len(edits) > 1:
            message = f"edit {number} of {len(edits)} cannot be made, so none was: {result.message}"
            return EditRefusal(result.code, message, {**result.facts, "edit": number})
        if isinstance(result, EditRefusal):
            return result
        text = result.text
        replaced.append(replace(result, text=""))
    refusal = _refuse_elisions(text, former, path)
    if refusal is not None:
        return refusal
    notes = tuple(_describe(replaced, form, "".join(edit.new for edit in edits)))
    facts: dict[str, JsonValue] = {
        "replacements": sum(result.count for result in replaced),
        "rungs": [result.strategy.name.lower() for result in replaced],
    }
    return TextChange(before, encode(text, form), former, text, form, notes, facts=facts)


def _create_text(edits: Sequence[Replacement], path: str) -> TextChange | EditRefusal:
    first, *others = edits
    if first.old:
        advice = "To make it, give an empty oldText, or use write."
        return EditRefusal("not_found", f"{os.strerror(errno.ENOENT)}. {advice}")
    if not all(edit.old for edit in others):
        return EditRefusal("invalid_arguments", "only the first of several edits can make the file")
    change = overwrite_text(None, first.new, path)
    if isinstance(change, EditRefusal) or not others:
        return change
    change = edit_text(change.after, others, path)
    return change if isinstance(change, EditRefusal) else replace(change, before=None, former="")


def _edit_changed_file(request: EditRequest, before: bytes) -> TextChange | EditRefusal:
    """Edit a file that changed since the model read it: only lines a refusal has shown, or unique exact matches."""
    shown = request.shown
    if shown is not None and shown.digest == digest_bytes(before):
        change = edit_text(before, request.edits, request.path)
        if isinstance(change, TextChange):
            diff = compare_lines(before, change.after)
            if all(diff.skipped + block.old_end <= shown.lines for block in diff.blocks):
                known = ShownLines(digest_bytes(change.after), shown.lines + diff.added - diff.removed, whole=False)
                return replace(change, unseen=True, shown=known)
    if request.digest is None:
        return _refuse_unread(request, before)
    change = edit_text(before, request.edits, request.path, exactly=True)
    if isinstance(change, TextChange):
        note = (
            "the file has changed since it was read; oldText still stood in it once, unchanged. "
            "Read it again before you rely on the rest"
        )
        facts = {**change.facts, "changedSinceRead": True}
        return replace(change, notes=(note, *change.notes), unseen=True, facts=facts)
    if change.code != "stale":
        return change
    return refuse_stale(before, "stale", f"it has changed since it was read, and {change.message}")


# -- refusals and notes -------------------------------------------------------------------------


def _refuse_unread(request: EditRequest, data: bytes) -> EditRefusal:
    if request.digest is None:
        return refuse_stale(data, "not_read", "it has not been read yet")
    return refuse_stale(data, "stale", "it has changed since it was read")


def refuse_stale(data: bytes, code: str, message: str) -> EditRefusal:
    """Reject an edit of a file the model doesn't know, showing its size and first lines.

    The lines shown count as read, so the model can simply retry.
    """
    text, _ = decode_lossless(data[:_SHOWN_BYTES])
    facts: dict[str, JsonValue] = {"size": len(data)}
    begins = f"{message}; read it first. It has {len(data):,} bytes and begins:\n"
    if "\0" in text:
        return EditRefusal(code, f"{begins}(not text)", facts)
    lines = count_first_lines(text, is_cut=len(data) > _SHOWN_BYTES)
    whole = len(data) <= _SHOWN_BYTES and text.count("\n", 0, -1) < lines
    if whole:
        begins = (
            f"{message}. This is all of it ({len(data):,} bytes), which counts as read now: "
            "repeat the call if it is still right.\n"
        )
    return EditRefusal(code, begins + format_first_lines(text), facts, ShownLines(digest_bytes(data), lines, whole))


def _refuse_elisions(text: str, former: str, path: str) -> EditRefusal | None:
    elisions = find_elisions(text, former, path)[:MAX_LISTED]
    if not elisions:
        return None
    listed = "\n".join(f"{number:6d}\t{line}" for number, line in elisions)
    return EditRefusal(
        "omission",
        "the text has a comment in the place of code that was left out; nothing was written. "
        f"Give the code itself, or use edit for a part of the file:\n{listed}",
        {"lines": [number for number, _ in elisions]},
    )


def _describe(replaced: Sequence[Replaced], form: TextForm, written: str) -> list[str]:
    """Describe how the file differs from the texts of the request."""
    used = {result.strategy for result in replaced}
    notes = [f"matched without regard to {strategy}" for strategy in list(MatchStrategy)[1:] if strategy in used]
    if any(result.indented for result in replaced):
        notes.append("newText was indented as the file is")
    if any(result.numbered for result in replaced):
        notes.append("line numbers of read were taken out of the texts")
    if form.guessed and not written.isascii():
        notes.append(f"letters were written in {form.encoding}, the guessed encoding of the file")
    return notes


# -- checks of the new text ------------------------------------------------------------------------
#
# An elision is a comment like `# ... rest of the code unchanged ...`: writing it to the file would delete that code. We
# report a syntax error only if the old text had none, and only for formats with a parser in the standard library. Files
# that are too large to parse in one go aren't checked.


_LEADERS = r"//++|/\*++|\{/\*|\*++|<!--|#++|--|;++|%++|\(\*|'|rem\b|\"{3}"
_PROSE_LEADERS = r"<!--|//++|/\*++"
"""In prose, the other comment markers are headings and list items."""
_PROSE = (".md", ".markdown", ".mdx", ".rst", ".txt", ".adoc")
_THING = (
    r"(?:code|file|class(?:es)?|functions?|methods?|implementations?|contents?|lines?|logic|module"
    r"|body|imports?|tests?|components?|styles?|definitions?|config(?:uration)?|properties|fields"
    r"|routes?|handlers?|document|script|sections?|template|markup|program|stuff)"
)
_SOME = r"(?:[\w./-]+\s+){0,3}?"
_KEPT = (
    r"(?:unchanged|unmodified|untouched|omitted|(?:the )?same(?: as before)?|as (?:it )?(?:is|was)"
    r"|as before|as above|not shown|here|below|above|continues|stays|remains)"
)
_END = rf"(?:\s+(?:is|are|was|were|goes|go|stays?|remains?|kept|left)){{0,2}}(?:\s+(?P<kept>{_KEPT}))?"
_PLACEHOLDER = re.compile(
    rf"(?:keep\s+)?(?:all\s+|and\s+|the\s+|your\s+|my\s+){{0,3}}"
    rf"(?:(?:rest|remainder)(?:\s+of\s+{_SOME}{_THING})?"
    rf"|(?:rest|remaining|existing|previous|other|original|unchanged|same)\s+{_SOME}{_THING}"
    rf"|{_SOME}{_THING}(?=\s+(?:unchanged|unmodified|omitted|not shown|stays|remains|is|are)\b)"
    rf"|unchanged|unmodified|omitted)"
    rf"{_END}(?:\s+for (?:brevity|clarity|space))?",
    re.IGNORECASE,
)
_DOTS = re.compile(r"\.{3,}|\u2026")
_FRAME = " \t.\u2026-\u2013\u2014:;,!*/<>{}()[]#\"'"
"""Characters surrounding the words of an elision."""
_SEARCH_CHARACTERS = 64 * 1024
"""How much to search per call of `re`, which holds the GIL."""
_LONGEST_ELISION = 200
"""Longer comments actually explain something."""


def find_elisions(text: str, former: str, path: str) -> list[tuple[int, str]]:
    """Find comment-only lines that stand for omitted code, and return their number and text.

    Elisions that the `former` text already contains are fine. The path tells code from prose.
    """
    leaders = _PROSE_LEADERS if path.lower().endswith(_PROSE) else _LEADERS
    # The possessive `++` keeps the search linear on a line of repeated marks.
    comment = re.compile(rf"^[ \t]*+(?:{leaders})[ \t]*+(?P<words>[^\n]{{3,{_LONGEST_ELISION}}})$", re.I | re.M)
    elisions: list[re.Match[str]] = []
    # Only search between the common start and end of both texts, in chunks of whole lines.
    start = common_start(text, former)
    end = len(text) - common_end(text, former, start)
    start = text.rfind("\n", 0, start) + 1
    while start <= end and start < len(text):
        stop = text.find("\n", min(start + _SEARCH_CHARACTERS, end))
        stop = stop if stop >= 0 else len(text)
        for match in comment.finditer(text, start, stop):
            # Require the usual words, plus dots or a word like `unchanged`.
            words = match["words"].rstrip()
            placeholder = _PLACEHOLDER.fullmatch(_DOTS.sub(" ", words).strip(_FRAME))
            if placeholder is not None and (_DOTS.search(words) or placeholder["kept"]):
                elisions.append(match)
        start = stop + 1
    kept = {line.strip() for line in former.split("\n")} if elisions else set[str]()
    return [
        (text.count("\n", 0, match.start()) + 1, match.group().strip())
        for match in elisions
        if match.group().strip() not in kept
    ]


# -- syntax -------------------------------------------------------------------------------------

_MAX_CHARACTERS = 400_000
_SLOW_PYTHON_CHARACTERS = 16 * 1024
"""Python's parser holds the GIL: for this many characters, about ten milliseconds."""
_MAX_TOML_STEPS = 10_000_000
"""The TOML parser walks all enclosing tables for each key."""
_JSON_WITH_COMMENTS = ("tsconfig", "jsconfig", "devcontainer", ".eslintrc", ".babelrc")
"""Prefixes of `.json` files that may contain comments."""
_FILE_NAME = "<edited file>"


def find_new_syntax_error(path: str, former: str | None, text: str) -> str | None:
    """Return a syntax error in a file whose `former` text (None for a new file) had none."""
    error = _find_error(path, text)
    if error is not None and former and former.strip() and _find_error(path, former) is not None:
        return None
    return error


def _find_error(path: str, text: str) -> str | None:
    parse, text = _find_parser(path), text.removeprefix("\ufeff")
    return None if parse is None or len(text) > _MAX_CHARACTERS else parse(text)


def is_slow_to_parse(path: str, size: int) -> bool:
    """Return whether parsing this many characters would hold the GIL for long."""
    return _SLOW_PYTHON_CHARACTERS < size <= _MAX_CHARACTERS and _find_parser(path) is _parse_python


def _find_parser(path: str) -> Callable[[str], str | None] | None:
    name = os.path.basename(path).lower()
    suffix = os.path.splitext(name)[1]
    if suffix == ".json" and (name.startswith(_JSON_WITH_COMMENTS) or "/.vscode/" in f"/{path}"):
        return None
    return _PARSERS.get(suffix)


def _parse_python(text: str) -> str | None:
    import ast  # noqa: PLC0415 — only after an edit of Python
    import warnings  # noqa: PLC0415 — only after an edit of Python

    # Invalid escape sequences are just warnings. The filter only applies to this file name.
    warnings.filterwarnings("ignore", module=f"^{_FILE_NAME}$")
    try:
        ast.parse(text, _FILE_NAME)
    except SyntaxError as exc:
        return f"line {exc.lineno}: {exc.msg}" if exc.lineno else str(exc.msg)
    except (ValueError, RecursionError, MemoryError):
        return None  # invalid characters, or nested too deeply for the parser
    return None


def _parse_json(text: str) -> str | None:
    import json  # noqa: PLC0415 — only after an edit of JSON

    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        return f"line {exc.lineno}: {exc.msg}"
    except (ValueError, RecursionError):
        return None
    return None


def _parse_toml(text: str) -> str | None:
    # Estimate how many tables the parser walks, erring on the high side.
    steps = deepest = 0
    for line in text.split("\n"):
        key = line.partition("=")[0]
        parts = 1 + (line if '"' in key or "'" in key else key).count(".")
        if line.lstrip().startswith("["):
            deepest = max(deepest, parts)
        steps += parts * (deepest + parts)
    if steps > _MAX_TOML_STEPS:
        return None
    import tomllib  # noqa: PLC0415 — only after an edit of TOML

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        return str(exc)
    except (ValueError, RecursionError):
        return None
    return None


def _parse_xml(text: str) -> str | None:
    if "<!ENTITY" in text:
        return None  # entities can expand to more text than fits in memory
    from xml.parsers import expat  # noqa: PLC0415 — only after an edit of XML

    # We've already decoded the text, whatever encoding it declares; expat never fetches external entities.
    parser = expat.ParserCreate("utf-8")
    try:
        parser.Parse(text.encode("utf-8"), True)  # noqa: FBT003 — it takes no keywords
    except UnicodeEncodeError:
        return None
    except expat.ExpatError as exc:
        return f"line {exc.lineno}: {expat.ErrorString(exc.code)}"
    return None


_PARSERS: dict[str, Callable[[str], str | None]] = {
    ".py": _parse_python,
    ".pyi": _parse_python,
    ".json": _parse_json,
    ".toml": _parse_toml,
    ".xml": _parse_xml,
    ".svg": _parse_xml,
    ".xsd": _parse_xml,
    ".plist": _parse_xml,
}
