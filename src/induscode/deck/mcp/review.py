"""Review: pure checks of definitions for text that may mislead a model.

Each check has an id and a severity, and its finding quotes the place. The checks know phrases and shapes: a definition
without findings isn't safe, they just found nothing in it.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache, partial
from typing import Final, Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import find_credential_places, is_secret_name
from indusagi.core.text import INVISIBLE, common_start, escape_unseen, find_invisible_kinds, format_count, iter_strings
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.mcp.capability import name_item

Severity: TypeAlias = Literal["serious", "notable"]
SEVERITIES: Final[tuple[Severity, ...]] = ("serious", "notable")


@record
class Finding:
    """A suspicious place in a definition."""

    check: str
    """Id of the check, such as `secrecy`."""
    severity: Severity
    ref: RemoteToolRef
    place: str
    """The field, such as `inputSchema.properties.path.description`."""
    message: str
    """What was found, with a quote; safe to print."""

    def __str__(self) -> str:
        return f"{self.severity}: {name_item(self.ref)}, {self.place}: {self.message} [{self.check}]"

    @property
    def brief(self) -> str:
        """The finding without the item, which is named before it."""
        return f"{self.severity}: {self.place}: {self.message} [{self.check}]"

    def as_json(self) -> JsonObject:
        """Return the facts for `--json`."""
        facts = {"kind": self.ref.kind, "name": self.ref.name, "place": self.place, "message": self.message}
        return {"check": self.check, "severity": self.severity, **facts}


def review_items(
    server: str, items: Mapping[RemoteToolRef, JsonObject], known_names: Mapping[str, str]
) -> list[Finding]:
    """Review the definitions of one server, serious findings first, at most one per check and item.

    Args:
        server: Its id.
        items: Its definitions as it sent them.
        known_names: Tools of other servers by name, with their servers.
    """
    index = ToolNames()
    for name, other in known_names.items():
        index.add([name], other)
    index.add((ref.name for ref in items), server)
    names = OtherNames(index, server)
    return sort_findings([finding for ref, raw in items.items() for finding in review_item(ref, raw, names)])


def review_item(ref: RemoteToolRef, raw: JsonObject, names: OtherNames) -> Iterable[Finding]:
    """Review one definition next to the names of other servers."""
    found: dict[str, Finding] = {}
    for check, severity, place, message in _review(ref, raw, names):
        if check not in found or (severity == "serious" and found[check].severity == "notable"):
            found[check] = Finding(check, severity, ref, escape_unseen(place), message)
    return found.values()


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings, serious ones first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def count_findings(findings: Sequence[Finding]) -> str:
    """Say how many findings there are, and how many of them are serious."""
    serious = sum(finding.severity == "serious" for finding in findings)
    return f"{format_count(len(findings), 'finding')} of the review" + (f", {serious} serious" if serious else "")


_Find: TypeAlias = "Callable[[str], re.Match[str] | None]"
_Found: TypeAlias = tuple[str, Severity, str, str]
"""Check, severity, place, message."""


def _review(ref: RemoteToolRef, raw: JsonObject, names: OtherNames) -> Iterator[_Found]:
    shown: JsonObject = {key: value for key, value in raw.items() if key != "icons"}
    text = "\n".join(iter_strings(shown))
    lower = text.lower()
    words = set(lower.translate(_NO_MARKS).split())
    for check, severity, needed, pattern, about in _PHRASES:
        if not words.isdisjoint(_split(needed)) and _compile(pattern).search(lower):
            yield from _search(shown, check, severity, partial(_find_phrase, pattern), about)
    dense = " ".join(_DENSE.findall(text))
    for check, severity, find, about in _SHAPES:
        if find(dense if check == "blob" else text):
            yield from _search(shown, check, severity, find, about)
    if len(text) > _LONG:
        yield "long-text", "notable", "definition", f"it has {len(text):,} characters"
    if names.may_be_in(words):
        yield from names.check_mentions(shown)
    if ref.kind == "tool":
        yield from _check_parameters(raw)
        yield from _check_annotations(ref.name, raw)
        yield from names.check(ref.name)


# -- places -----------------------------------------------------------------------------------

_MAX_DEPTH = 64
_QUOTED = 60


def _walk(value: JsonValue, place: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield every string with its place; a key is at the place of its object."""
    if isinstance(value, str):
        yield place, value
    elif depth > _MAX_DEPTH:
        yield from ((place, text) for text in iter_strings(value))
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, f"{place}[]", depth + 1)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield place or key, key
            yield from _walk(inner, f"{place}.{key}" if place else key, depth + 1)


def _search(raw: JsonObject, check: str, severity: Severity, find: _Find, about: str) -> Iterator[_Found]:
    """Yield the first place where `find` matches."""
    for place, text in _walk(raw):
        if match := find(text):
            # A decoded text is another one than the one it was found in.
            quoted = text if len(match.string) == len(text) else match.string
            yield check, severity, place, f"{about}: {_quote(quoted, *match.span())}"
            return


def _quote(text: str, start: int, end: int) -> str:
    """Quote a part of a text in one line, with a little around it."""
    before, after = max(0, start - _QUOTED // 3), min(end, start + _QUOTED) + _QUOTED // 3
    part = escape_unseen(text[before:after].strip())
    return f'"{"…" if before else ""}{part}{"…" if after < len(text) else ""}"'


# -- texts ------------------------------------------------------------------------------------

_LONG = 8_000
_ENCODED = 24
"""Characters of a word from which it may be encoded."""
_DENSE = re.compile(rf"\S{{{_ENCODED},}}")
_BLANKS = (" " * 8, "\t\t\t", "\n\n\n", "\n \n")
_PADDING = re.compile(r"(?:[ \t]{80}|(?:[ \t]*\n){15})\s*\S.{0,60}")
_BASE64 = re.compile(rf"[A-Za-z0-9+/]{{{_ENCODED},}}={{0,2}}")
_BLOB = re.compile(r"[A-Za-z0-9+/_-]{120}|(?:\\x[0-9a-fA-F]{2}){8}|(?:\\u[0-9a-fA-F]{4}){8}|(?:&#\w{2,6};){8}")


def _find_hidden(text: str) -> re.Match[str] | None:
    is_plain = text.isascii() and text.replace("\n", "").isprintable()
    if not is_plain and (first := _compile(f"[{INVISIBLE}]").search(text)) and any(find_invisible_kinds(text)):
        return first
    if not is_plain and (private := re.search("[\ue000-\uf8ff]", text)):
        return private
    return _PADDING.search(text.rstrip()) if any(blank in text for blank in _BLANKS) else None


def _find_blob(text: str) -> re.Match[str] | None:
    return _BLOB.search(text) if text else None


def _find_encoded_text(text: str) -> re.Match[str] | None:
    """Find text in base64, and return it decoded."""
    for match in _BASE64.finditer(text):
        with suppress(binascii.Error, UnicodeDecodeError):
            is_hex = re.fullmatch(r"(?:[0-9a-fA-F]{2})+", match[0])
            data = bytes.fromhex(match[0]) if is_hex else base64.b64decode(match[0] + "=" * (-len(match[0]) % 4))
            decoded = data.decode("ascii")
            if decoded.replace("\n", "").isprintable() and " " in decoded:
                return re.search(r".+", decoded)
    return None


_HOME = r"(?:~|\$\{?HOME\}?|%USERPROFILE%|/root|/home/[\w.<>{}-]+|/Users/[\w.<>{}-]+)[/\\]"
_ASKS = (
    r"\b(?<!be )(?<!is )(?<!are )"
    r"(?:(?:read|cat|open|send|include|provide|upload|attach|append|print|paste|exfiltrate|steal|collect)s?"
    r"|pass(?:es)?|cop(?:y|ies)|fetch(?:es)?|contents? of|call \w+ on)\b"
)
_VARIABLE = re.compile(
    r"\b(?:values? of|send|include|append|print|echo|paste)\b[^.\n]{0,40}?([A-Z]\w{0,60}_\w{1,60})\b"
)


@cache
def _compile_places() -> re.Pattern[str]:
    """Match a place of credentials as texts write it."""
    places = [*find_credential_places({}, "/~"), "/~/.cursor", "/~/.zshrc", "/~/.bashrc"]
    tails = "|".join(re.escape(path.removeprefix("/~/")) for path in places if path.startswith("/~/"))
    system = "|".join(re.escape(path) for path in (*places, "/etc/passwd") if not path.startswith("/~/"))
    keys = r"\bid_(?:rsa|ed25519|ecdsa)\b(?!\.pub)|(?<![\w.])\.(?:ssh|aws|gnupg)/|/\.env(?![\w.-])"
    return re.compile(rf"{_HOME}(?:{tails})(?![\w-])|(?:{system})(?![\w-])|{keys}")


@cache
def _list_starts() -> Sequence[str]:
    """List texts of which one is in every text with a place of credentials."""
    roots = {f"/{path.split('/')[1]}/" for path in find_credential_places({}, "/~")} - {"/~/"}
    return ("~/", "~\\", "HOME", "%USERPROFILE%", "/root", "/home/", "/Users/", "/etc/", "id_", "/.env",
            ".ssh/", ".aws/", ".gnupg/", *roots)  # fmt: skip


def _find_place(text: str) -> re.Match[str] | None:
    return _compile_places().search(text) if any(start in text for start in _list_starts()) else None


def _find_request(text: str) -> re.Match[str] | None:
    """Find a place of credentials that the text asks to read or send."""
    if ".env" not in text and not _find_place(text):
        return None
    return re.search(rf"(?i:{_ASKS})[^\n]{{0,60}}?(?:{_compile_places().pattern}|(?<![\w.])\.env file)", text)


def _find_variable(text: str) -> re.Match[str] | None:
    return next(
        (
            match
            for match in _VARIABLE.finditer(text if "_" in text else "")
            if match[1].isupper() and is_secret_name(match[1])
        ),
        None,
    )


_NOT = r"(?:do not|don['\u2019]?t|never|must not|mustn['\u2019]?t|should not|avoid|without)(?: ever)?"
_PERSON = r"(?:the |any |an? )?(?:users?|humans?|person|people|anyone|anybody|operator)"
_SENDING = "(?:send|read|copy|upload|forward|include|add|call|pass|append|post|transmit|collect|log)"
_OTHERS = r"(?:previous|prior|earlier|above|other|existing|system|safety|security|original)"
_DATA = "data|content|secret|token|env|history|keys?|password|prompt|conversation|credential|payload|stolen|leak|file"
_EXAMPLES = r"(?!(?:[\w-]{1,63}\.){0,5}(?:example|company|domain)\.)"
_PHRASES: tuple[tuple[str, Severity, str, str, str], ...] = (
    ("markup", "serious",
     "important system secret hidden instruction instructions directive admin im_start im_end inst sys",
     r"<(?:important|system|secret|hidden|instructions?|admin)\b[^<>]{0,40}>|<\|im_\w+\|>|\[(?:inst|important)\]|<<sys>>"
     r"|### ?(?:instructions?|system)\b ?:|\bhidden (?:instruction|directive)s?\b",
     "looks like a message of the system"),
    ("secrecy", "serious",
     "tell telling inform informing notify notifying alert alerting warn warning mention mentioning reveal"
               " revealing disclose disclosing explain explaining let letting told informed aware notice noticing"
               " know knowing knowledge consent see keep silently secretly quietly",
     rf"{_NOT} (?:(?:tell|inform|notify|alert|warn)(?:ing)? {_PERSON}|let(?:ting)? {_PERSON} (?:know|see|notice)"
     rf"|(?:mention|reveal|disclos|explain)(?:e|ing)?\b[^.\n]{{0,60}} to {_PERSON})\b"
     rf"|{_PERSON} (?:must|should|may|need|does) ?(?:not|n['\u2019]?t|never) (?:to )?"
     rf"(?:know|see|notice|be (?:told|informed|aware))|without {_PERSON}(?:['\u2019]s)? "
     r"(?:knowledge|knowing|noticing|consent)"
     rf"|{_NOT} mention (?:this|it)\b(?! tool)|keep (?:this|it|that) (?:a )?(?:secret|hidden|confidential)"
     rf"|(?:silently|secretly|quietly) {_SENDING}\b",
     "asks the model to hide something"),
    ("injection", "serious", "system mode actual original",
     r"\bnew system (?:message|prompt|instructions?)\b|\byou are now in \w{3,20} mode|\bsystem ?: ?override"
     r"|\bsystem override\b|(?:ignore|disregard) the user['\u2019]?s (?:actual |original )?(?:request|instruction)",
     "poses as a message of the system"),
    ("rug-pull", "serious", "approved approval trusted installed",
     r"\b(?:once|after|when) (?:this|the|it|its|you)\b[^.\n]{0,30}\b(?:approved|trusted|installed|approval)\b"
     r"[^.\n]{0,20}\b(?:will|begins?|starts?|switch(?:es)?|change[sd]?)\b",
     "says that it changes once approved"),
    ("injection", "serious", "ignore disregard forget override overrides supersede supersedes bypass",
     r"(?:ignore|disregard|forget|overrides?|bypass|supersedes?) (?:all |any |the |your |every |these |of )*"
     rf"{_OTHERS}(?: (?:previous|prior|system|safety|security|user))? "
     r"(?:instructions?|prompts?|rules?|polic(?:y|ies)|guidelines?|messages?|directives?|restrictions?|checks?|tools?)"
     r"|(?:ignore|disregard|forget) (?:all (?:of )?)?(?:the )?above\b"
     r"|(?:ignore|disregard|bypass|override)s? [^.\n]{0,30}"
     r"\b(?:safety|security) (?:rules?|polic(?:y|ies)|restrictions?|guidelines?)",
     "overrides other instructions"),
    ("ordering", "serious", "before prior after when whenever every each",
     r"(?:before|prior to|after|when|whenever|every time|each time)\b[^.\n]{0,25}?"
     r"\b(?:us|call|invok|runn?|execut)(?:e|es|s|ing)? (?:any|all|every|each)"
     r"(?: of)?(?: the)?(?: other| another)? (?:available )?(?:mcp )?tools?\b"
     r"|(?:before|after) (?:any|every|each) (?:other tools?\b|(?:tool|function) (?:call|use|invocation)"
     r"|(?:call|use|invocation) of (?:an(?:y )?)?other tools?\b)",
     "says when to use it with other tools"),
    ("ordering", "notable", "always must",
     r"(?:always|must)\b[^.\n]{0,30}\b(?:call|use|invoke|run)(?:e?d)? (?:this|it)\b[^.\n]{0,40}\b(?:first|before)",
     "says when it must be called"),
    ("other-tools", "serious", "other others another",
     r"(?:do not|don'?t|never|stop|instead of) (?:us(?:e|ing)|call(?:ing)?)? ?(?:any |the |all )*(?:an)?other "
     r"(?:tools?|servers?|mcp)|(?:prefer|use) this (?:tool|function)[^.\n]{0,20} (?:over|rather than) "
     r"(?:any |all |every |the )*others?\b|(?:results?|output|arguments?|parameters?|behaviou?r) (?:of|from|to) "
     r"(?:any|all|every|the) other (?:tools?|servers?)",
     "gives instructions about other tools"),
    ("other-tools", "serious", "behavior behaviour invoked called supersedes replaces overrides replace after before",
     r"modif(?:y|ies) the behaviou?r of (?:the )?\S{3,60} tool|(?:when|whenever|before|after) (?:the )?\S{3,60}"
     r"(?: tool)? is (?:called|invoked|used)(?: by any|,)[^.\n]{0,80}"
     r"\b(?:bcc|append|reroute|redirect|forward|send|first)"
     r"|this tool (?:supersedes|replaces|overrides) (?:the )?\w+[_-]\w+"
     r"|(?:after|before) (?:using|calling|running) \S{3,60} tool\b"
     r"[^.\n]{0,60}\b(?:run|call|use|execute) this (?:tool|function)|replace its (?:output|result)",
     "changes what another tool does"),
    ("credentials", "serious", "environment env environ",
     r"(?:send|pass|include|give|append|provide|attach)\b[^.\n]{0,40}(?:environment variables|process\.env|environ\b)",
     "asks for variables"),
    ("smuggling", "serious", "http https",
     r"!\[[^\]]{0,200}\]\(https?://[^\s)]{0,200}[?&=/][^\s)]{0,60}(?:\{|<|\$|\[|%7b)"
     rf"|https?://[^\s\"'<>]{{0,200}}[?&][\w.-]{{0,60}}=?(?:\{{\{{?|<|\$\{{?|\[|%7b)[\w ]{{0,40}}(?:{_DATA})",
     "an address with a parameter for data"),
    ("smuggling", "serious", "external remote third-party attacker our collector",
     r"\b(?:upload|post|send|forward|cop(?:y|ie)|append|leak|exfiltrate|deliver)(?:s|ed|ing)?\b[^\n]{0,80}?\b(?:to|with)\b"
     r" (?:an?|the|our|my|some|its) (?:attacker\S* )?(?:external|remote|third-party|undisclosed|attacker\S*)(?: \w+)?"
     r" (?:server|endpoint|host|collector|address|service|url|domain|webhook)",
     "sends something to a stranger"),
    ("smuggling", "serious", "exfiltrate exfiltrates redirect reroute webhook img",
     r"\bexfiltrates?\b|(?:redirect|reroute) all (?:requests?|traffic|calls|messages|mails?|emails?)\b|https?://webhook\.site"
     r"|<img\b[^<>]{0,40}src=[^<>\s]{0,200}[?&][\w.-]{1,60}=",
     "sends something elsewhere"),
    ("smuggling", "notable",
     "send read copy upload forward include add call pass append post transmit collect log exfiltrate report bcc",
     rf"(?:{_SENDING}|exfiltrate|report|bcc)\b[^.\n]{{0,60}}?\b(?:to|at)\b[^.\n]{{0,20}}?"
     rf"(?:https?://{_EXAMPLES}[^\s\"'<>]|[\w.+-]{{1,64}}@{_EXAMPLES}[\w-]{{1,63}}\.\w{{2}})",
     "says where to send something"),
    ("asks-context", "serious",
     "conversation chat prompt message messages thought chain-of-thought instructions told",
     r"(?:your|the model'?s|the assistant'?s|the (?:current|full|entire|complete|exact)) "
     r"(?:(?:own|full|entire|complete|exact|current|initial) )*"
     r"(?:system (?:prompt|message)|instructions (?:verbatim|in full)|chain[- ]of[- ]thought)"
     r"|what the user (?:has )?told you"
     r"|(?:entire|full|whole|complete|all (?:of )?(?:the )?(?:previous|prior|past)|verbatim)"
     r"(?: (?:of|the|our|this|user|previous))* (?:conversation|chat|messages?) ?(?:history|log|transcript|so far)?\b",
     "asks for the conversation or the system prompt"),
)  # fmt: skip
"""Check, severity, words of which the text has one, a pattern for the text in small letters, and what it is."""
_SHAPES: tuple[tuple[str, Severity, _Find, str], ...] = (
    ("hidden-text", "serious", _find_hidden, "invisible characters, or text far behind blanks"),
    ("credentials", "serious", _find_request, "asks for credentials"),
    ("credentials", "serious", _find_variable, "asks for a secret variable"),
    ("credentials", "notable", _find_place, "names a place of credentials"),
    ("blob", "serious", _find_encoded_text, "has encoded text"),
    ("blob", "notable", _find_blob, "has encoded data"),
)


@cache
def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _find_phrase(pattern: str, text: str) -> re.Match[str] | None:
    return _compile(pattern).search(text.lower())


# -- names ------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z][\w-]{2,}")
IDENTIFIER = re.compile(r"(?=[\w-]*(?:\w[_-]\w|[a-z][A-Z]))[A-Za-z][\w-]{2,}")
"""A name that's no common word."""
_NO_MARKS = {code: " " for code in range(128) if not re.match(r"[\w-]", chr(code))}
_DIRECTS = re.compile(
    r"\b(?:when|whenever|before|after|always|must|instead|every time|each time|never)\b", re.IGNORECASE
)
_CONTEXT_NAME = re.compile(
    r"(?:full_?|entire_?)?(?:conversation|chat|message)_?(?:history|log|transcript|context)|conversation"
    r"|system_?(?:prompt|message|instructions?)|chain_?of_?thought|tools?_?list|available_?tools",
    re.IGNORECASE,
)
_DESTROYS = frozenset(
    ("delete", "remove", "drop", "destroy", "erase", "wipe", "purge", "truncate", "kill", "uninstall")
)
_CHANGES = frozenset(
    ("write", "create", "update", "send", "post", "upload", "insert", "edit", "rename", "publish", "pay")
)
_LETTERS = (
    "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0456\u0455\u0458\u0501\u03bf\u03b1\u03b5\u03c1\u03bd\u0261\u03b9\u043a\u043c\u0442",
    "aceopxyisjdoaepvgikmt",
)
"""Cyrillic and Greek letters, and the Latin ones they look like."""
_LOOKALIKES = str.maketrans(_LETTERS[0] + "01I", _LETTERS[1] + "oll")
_SHORTEST = 6
"""Shorter names are one edit apart by chance."""


def _check_parameters(raw: JsonObject) -> Iterator[_Found]:
    schema = raw.get("inputSchema")
    properties = schema.get("properties") if is_json_object(schema) else None
    for name in filter(_CONTEXT_NAME.fullmatch, properties if is_json_object(properties) else ()):
        message = f"a parameter for the conversation or the model's instructions: {_quote(name, 0, len(name))}"
        yield "asks-context", "notable", "inputSchema.properties", message


def _check_annotations(name: str, raw: JsonObject) -> Iterator[_Found]:
    annotations = raw.get("annotations")
    if not is_json_object(annotations):
        return
    first, _, _ = str(raw.get("description") or "").partition(" ")
    words = (
        re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", f"{name}_{first.removesuffix('s')}").lower().replace("-", "_").split("_")
    )
    for hint, value in (("readOnlyHint", True), ("destructiveHint", False)):
        if annotations.get(hint) is value:
            destroys, changes = _DESTROYS.intersection(words), _CHANGES.intersection(words)
            if destroys or (value and changes):
                message = f"{hint} is {str(value).lower()}, it says {min(destroys or changes)!r}"
                yield "contradiction", "serious" if value and destroys else "notable", f"annotations.{hint}", message


class ToolNames:
    """Names of tools with their servers, indexed for look-alikes, one server's at a time."""

    def __init__(self) -> None:
        self.servers: dict[str, dict[str, None]] = {}
        """The servers of each name."""
        self.places: dict[object, tuple[str, ...]] = {}
        """Names by their look-alikes, by hashes of their cuts, and in lower case."""

    def add(self, names: Iterable[str], server: str) -> None:
        """Index names of a server."""
        for name in names:
            for place in _list_places(name) if name not in self.servers else ():
                self.places[place] = (*self.places.get(place, ()), name)
            self.servers.setdefault(name, {})[server] = None

    def remove(self, names: Iterable[str], server: str) -> None:
        """Remove names of a server."""
        for name in names:
            servers = self.servers.get(name, {})
            servers.pop(server, None)
            if not servers and self.servers.pop(name, None) is not None:
                for place in _list_places(name):
                    self.places[place] = tuple(one for one in self.places[place] if one != name)


def _list_places(name: str) -> Iterable[object]:
    # Hashes, because as texts the cuts would take most of the memory.
    words = [("word", name.lower())] if IDENTIFIER.fullmatch(name) else []
    return [("looks", _fold(name)), *{hash(cut) for cut in _cut(name)}, *words]


class OtherNames:
    """The names of all servers but one."""

    def __init__(self, names: ToolNames, server: str) -> None:
        self._names, self._server = names, server

    def check(self, name: str) -> Iterator[_Found]:
        """Compare a name with the others."""
        letters = () if name.isascii() else filter(str.isalpha, name)
        if len({"LATIN" if char.isascii() else unicodedata.name(char, "?").split()[0] for char in letters}) > 1:
            shown = name.encode("ascii", "backslashreplace").decode()
            yield "look-alike", "serious", "name", f"mixes alphabets: {shown}"
        if self._find_server(name) is not None:
            return
        near = (
            other for cut in _cut(name) for other in self._names.places.get(hash(cut), ()) if _is_one_edit(name, other)
        )
        if other := self._find_first(self._names.places.get(("looks", _fold(name)), ())):
            yield "look-alike", "serious", "name", f"looks like {self._describe(other)}"
        elif other := self._find_first(near):
            yield "look-alike", "notable", "name", f"is one edit away from {self._describe(other)}"

    def may_be_in(self, words: AbstractSet[str]) -> bool:
        """Return whether a text with these words, in lower case, may mention one of the others."""
        places = self._names.places
        return any(self._is_other(name) for word in words for name in places.get(("word", word), ()))

    def check_mentions(self, raw: JsonObject) -> Iterator[_Found]:
        """Find the others in the texts of a definition."""
        for place, text in _walk(raw):
            for match in _WORD.finditer(text):
                if self._is_other(match[0]):
                    before, after = text[max(0, match.start() - 200) : match.start()], text[match.end() :][:200]
                    sentence = f"{before.rpartition('.')[2]} {after.partition('.')[0]}"
                    message = f"names {self._describe(match[0])}: {_quote(text, *match.span())}"
                    yield "names-other-tool", "serious" if _DIRECTS.search(sentence) else "notable", place, message

    def _is_other(self, name: str) -> bool:
        """Return whether a name that's no common word is another server's, and not its own."""
        servers = self._names.servers.get(name, ())
        return bool(servers) and self._server not in servers and IDENTIFIER.fullmatch(name) is not None

    def _find_server(self, name: str) -> str | None:
        servers = self._names.servers.get(name, ())
        return next((server for server in servers if server != self._server), None)

    def _find_first(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if self._find_server(name) is not None), None)

    def _describe(self, name: str) -> str:
        return f"{escape_unseen(name)!r} of server {escape_unseen(self._find_server(name) or '')!r}"


def _fold(name: str) -> str:
    """Return what a name looks like."""
    return unicodedata.normalize("NFKC", name).translate(_LOOKALIKES).lower().replace("rn", "m").replace("vv", "w")


def _cut(name: str) -> Sequence[str]:
    """Return a name, and without each of its characters: names one edit apart share one of these."""
    return [name, *(name[:at] + name[at + 1 :] for at in range(len(name)))] if len(name) >= _SHORTEST else ()


def _is_one_edit(one: str, other: str) -> bool:
    """Return whether one character is inserted, removed, replaced or swapped. A plural is another word."""
    at = common_start(one, other)
    a, b = one[at:], other[at:]
    is_plural = {a, b} == {"s", ""}
    return not is_plural and (a[1:] == b[1:] or a == b[1:] or a[1:] == b or a[1:2] + a[:1] + a[2:] == b)
