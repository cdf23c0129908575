"""Labels of servers' tools: what a call may read, and whether it sends anything out.

A user gives labels in the row of a server. Until then they're proposed from what's known without a call: annotations,
the words of the tool's name, the names of its arguments, and the sandbox. A proposal is a guess from text that the
server wrote: it may ask a question, and it never stands in for a label that the user gave.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import looks_secret
from indusagi.interop.protocol_bridge.contract import ItemKind, ServerConfig, StdioServerConfig

Label: TypeAlias = Literal["private", "untrusted", "outward"]
"""`private`: reads secrets or data of users. `untrusted`: returns text that anyone may have written. `outward`: sends
data to where others can read it."""
LABELS: Final[tuple[Label, ...]] = ("private", "untrusted", "outward")
WHOLE_SERVER: Final = "*"
"""Stands for every item of a server that has no labels of its own."""
RowLabels: TypeAlias = Mapping[str, tuple[Label, ...]]
"""The labels a user gave: by tool, and under `WHOLE_SERVER`."""


class InvalidLabelsError(Exception):
    """Labels of a row that can't be read. The message completes a sentence about the row."""


@record
class ToolLabels:
    """The labels of one tool or other item."""

    labels: Mapping[Label, str]
    """Each with where it comes from."""
    is_confirmed: bool = False
    """Whether a user gave them."""


def parse_labels(value: JsonValue) -> RowLabels:
    """Parse the `labels` of a row: a list for the whole server, or an object with lists by tool.

    Raises `InvalidLabelsError`.
    """
    rows = value if is_json_object(value) else {} if value is None else {WHOLE_SERVER: value}
    labels: dict[str, tuple[Label, ...]] = {}
    for name, given in rows.items():
        if not isinstance(given, list) or not all(label in LABELS for label in given):
            raise InvalidLabelsError(f"takes a list of {', '.join(LABELS)} for the server, or such lists by tool")
        labels[name] = tuple(label for label in LABELS if label in given)
    return labels


def format_labels(labels: RowLabels) -> JsonValue:
    """Format labels as they're written in a row."""
    rows: JsonObject = {name: [*given] for name, given in sorted(labels.items())}
    return rows[WHOLE_SERVER] if [*rows] == [WHOLE_SERVER] else rows


def join_labels(first: RowLabels, second: RowLabels) -> RowLabels:
    """Return labels that are at least as strict as both: neither takes a label away that the other gives."""
    joined: dict[str, tuple[Label, ...]] = {}
    for name in (*first, *second):
        given = {label for rows in (first, second) for label in rows.get(name, rows.get(WHOLE_SERVER, ()))}
        joined[name] = tuple(label for label in LABELS if label in given)
    return joined


def find_labels(
    name: str, raw: JsonObject, config: ServerConfig | None, given: RowLabels, kind: ItemKind = "tool"
) -> ToolLabels:
    """Find the labels of an item: those the user gave it or its server, or proposals."""
    confirmed = given.get(name, given.get(WHOLE_SERVER))
    if confirmed is not None:
        return ToolLabels(dict.fromkeys(confirmed, "yours"), is_confirmed=True)
    return ToolLabels(propose_labels(name, raw, config, kind))


# -- proposals --------------------------------------------------------------------------------


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PRIVATE = _split(
    """account accounts alert alerts appointment appointments attachment attachments balance bookmark bookmarks calendar
    calendars chat chats clipboard contact contacts content contents conversation conversations credential credentials
    crm customer customers database databases db diary directory dm dms doc docs document documents drive email emails
    employee employees env environment event events expense expenses file files folder folders history inbox invoice
    invoices keychain lead leads mail mailbox mails medical meeting meetings memory memories message messages note notes
    order orders password passwords patient patients payment payments payroll photo photos query record records row rows
    salary screenshot secret secrets sheet sheets spreadsheet sql statement statements thread threads ticket tickets
    token tokens transaction transactions vault variable variables wallet"""
)
"""Words for what users keep to themselves."""
_UNTRUSTED = _split(
    """article articles blog browse browser chat chats comment comments commit commits conversation conversations
    crawl discussion discussions dm dms download email emails feed feeds fetch forum gist gists inbox invitation issue
    issues mail mailbox mails message messages navigate news npm package packages page pages paper papers post posts pr
    pull pulls readme repo repositories repository request review reviews rss scrape search site stories story thread
    threads ticket tickets transcript tweet tweets url video videos web webpage website wiki wikipedia"""
)
"""Words for what strangers write."""
_SENDING = _split(
    """broadcast comment deploy dispatch email forward invite mail message notify notification post publish push reply
    respond send share submit tweet upload webhook"""
)
"""Words of tools that send."""
_PUBLIC = _split(
    """commit dataset discussion discussions gist gists invitation issue issues poll pr pull pulls release releases repo
    repository site tweet wiki"""
)
"""What strangers can read."""
_WRITING = _split(
    """add append approve archive assign book build cancel clear close convert copy create delete draw edit enable fill
    format generate insert kill link lock make mark merge modify move open order patch put remove rename replace reset
    resolve restore save schedule set star start stop subscribe switch transition trigger update upsert write"""
)
_READING = _split(
    """analyze browse describe check download explore extract fetch find get getter grep inspect list load look lookup
    monitor query read recall retrieve scan search show status summarize tree view watch"""
)
_RUNNING = _split("bash command eval evaluate exec execute powershell process run script shell sql terminal")
"""Words of tools that run what the caller writes."""
_ADDRESSES = _split("callback endpoint target_url uri uris url urls webhook webhook_url")
"""Arguments that choose where a request goes."""
_RECIPIENTS = _split(
    "attendees bcc cc channel channel_id chat_id chat_jid email phone phone_number recipient recipients to"
)
_PATHS = _split("directory file file_path filepath filename folder input_path path paths")
_MAILS = _split("discord gmail imap intercom outlook slack teams telegram whatsapp zendesk")
_STORES = _split("airtable confluence drive filesystem hubspot keychain memory notion onedrive salesforce stripe")
_SERVICES: Final[Mapping[str, frozenset[str]]] = {"private": _MAILS | _STORES, "untrusted": _MAILS}
"""Words of servers whose tools read what the key says, whatever the tools are called."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@record
class _ItemFacts:
    """What proposals are made from."""

    words: frozenset[str]
    arguments: frozenset[str]
    hints: JsonObject
    config: ServerConfig | None
    is_tool: bool

    @property
    def runs(self) -> str | None:
        """The word that says it runs what the caller writes."""
        return _find_first(self.words, _RUNNING) if self.is_tool and not self.only_reads else None

    @property
    def only_reads(self) -> bool:
        """Whether its annotations say that it changes nothing."""
        return self.hints.get("readOnlyHint") is True

    @property
    def reads(self) -> bool:
        """Whether it returns what was there before."""
        if not self.is_tool or self.only_reads or self.words & _READING:
            return True
        return not self.words & _WRITING and self.sends is None

    @property
    def sends(self) -> str | None:
        """The word that says it sends something."""
        is_sending = self.is_tool and not self.only_reads and not self.words & _READING
        return _find_first(self.words, _SENDING) if is_sending else None


def propose_labels(
    name: str, raw: JsonObject, config: ServerConfig | None, kind: ItemKind = "tool"
) -> Mapping[Label, str]:
    """Propose labels of an item, each with the reason."""
    annotations, schema = raw.get("annotations"), raw.get("inputSchema")
    properties = schema.get("properties") if is_json_object(schema) else None
    facts = _ItemFacts(
        _find_words(name),
        frozenset(map(_join_words, properties)) if is_json_object(properties) else frozenset(),
        annotations if is_json_object(annotations) else {},
        config,
        kind == "tool",
    )
    reasons: dict[Label, str | None] = {
        "private": _find_private(facts),
        "untrusted": _find_untrusted(facts),
        "outward": _find_outward(facts),
    }
    return {label: reason for label, reason in reasons.items() if reason is not None}


def _find_private(facts: _ItemFacts) -> str | None:
    if (word := facts.runs) is not None:
        return f"its name has {word!r}: it runs what it's told"
    if not facts.reads:
        return None
    if (word := _find_first(facts.words, _PRIVATE)) is not None:
        return f"its name has {word!r}"
    if (argument := _find_first(facts.arguments, _PATHS)) is not None:
        return f"its argument {argument!r} names a file"
    if not facts.is_tool:
        return "resources and prompts may hold data of users"
    return _find_service(facts, "private")


def _find_untrusted(facts: _ItemFacts) -> str | None:
    if not facts.reads:
        return None
    if facts.hints.get("openWorldHint") is True:
        return "its annotations say openWorldHint"
    # A search of files or notes finds what's the user's.
    known = _UNTRUSTED - {"search"} if facts.words & _PRIVATE or facts.arguments & _PATHS else _UNTRUSTED
    if (word := _find_first(facts.words, known)) is not None:
        return f"its name has {word!r}"
    if (argument := _find_first(facts.arguments, _ADDRESSES)) is not None:
        return f"its argument {argument!r} chooses an address"
    return _find_service(facts, "untrusted")


def _find_outward(facts: _ItemFacts) -> str | None:
    if not facts.is_tool or _is_offline(facts.config):
        return None
    if (word := facts.sends) is not None:
        return f"its name has {word!r}"
    if (argument := _find_first(facts.arguments, _ADDRESSES)) is not None:
        return f"its argument {argument!r} chooses an address"
    if (word := facts.runs) is not None:
        return f"its name has {word!r}: it runs what it's told"
    if facts.reads:
        return None
    if (argument := _find_first(facts.arguments, _RECIPIENTS)) is not None:
        return f"its argument {argument!r} chooses who receives it"
    if (word := _find_first(facts.words, _PUBLIC)) is not None:
        return f"it changes what others can read: {word}"
    word = _find_first(facts.words, _WRITING) if _is_service(facts) else None
    return None if word is None else f"its name has {word!r}, and it works on a service"


def _find_service(facts: _ItemFacts, label: Label) -> str | None:
    server = frozenset[str]() if facts.config is None else _find_words(facts.config.id)
    word = _find_first(server, _SERVICES.get(label, frozenset()))
    return None if word is None else f"the server's name has {word!r}"


def _is_service(facts: _ItemFacts) -> bool:
    """Return whether a server works on a service, and not only on this machine."""
    is_open = facts.hints.get("openWorldHint") is True
    return is_open or not isinstance(facts.config, StdioServerConfig) or any(map(looks_secret, facts.config.env))


def _is_offline(config: ServerConfig | None) -> bool:
    """Return whether a sandbox keeps a server from sending anything anywhere."""
    if not isinstance(config, StdioServerConfig) or config.sandbox is None:
        return False
    profile = config.sandbox
    return profile.container is None and not profile.reaches_all and not profile.hosts


def _find_words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(name))


def _join_words(name: str) -> str:
    """Return the name of an argument in snake case."""
    return "_".join(word.lower() for word in _WORD.findall(name))


def _find_first(words: Collection[str], known: Collection[str]) -> str | None:
    return min((word for word in words if word in known), default=None)
