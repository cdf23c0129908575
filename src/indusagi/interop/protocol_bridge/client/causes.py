"""Finds the cause of a failed start in the output of the process.

Runtimes print the cause first, last or in the middle of other output. `find_cause` knows how the common ones report
errors and falls back to the last lines. `find_cache_damage` recognizes package managers with a damaged cache and
returns the command that repairs it without touching other packages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text

_SHOWN_CHARACTERS = 300
_FALLBACK_LINES = 3
_FOR_SDK_1 = re.compile(
    r"pin 'mcp<2'|No module named 'mcp\.[\w.]+'|cannot import name '\w+' from 'mcp(\.[\w.]+)?'"
    r"|module 'mcp(\.\w+)*' has no attribute|'(Server|FastMCP|MCPServer)' object has no attribute"
    r"|\b(Server|FastMCP|MCPServer)\.\w+\(\) (got an unexpected keyword|missing \d+ required|takes )"
)
"""Errors of a Python server written for version 1 of the SDK but running with version 2 or later."""

_NOISE = re.compile(
    "|".join(
        (
            # npm: empty lines, its log path, details around the code.
            r"npm (error|err!)\s*",
            r"npm (error|err!) +(a complete log|.*_logs/|.*-debug-0\.log).*",
            r"npm (error|err!) +(errno|syscall|path|dest)\b.*",
            r"npm (warn|notice|info|http)\b.*",
            # Node: its version, stack frames, the line of code and the marker below it.
            r"node\.js v\d.*|\s*at .+[:(].*\d\)?|\s*at <?\w+>?|(node|file):\S+:\d+",
            r"[\s~^|]+|\s*(throw|return|import|from|raise)\s.*|\s*require ?stack:.*|\s*- /.*",
            r"[{}\[\],;()\s]+|\s*url: '.*",
            # Python: traceback headers and frames.
            r"(exception group )?traceback \(most recent.*|(during handling|the above exception).*",
            r'\s+file ".*", line \d.*',
            # Rust, Go, Java: hints and frames.
            r"note: run with.*|stack backtrace:.*|\s+\d+:\s+(0x)?\w.*|goroutine \d.*",
            r"\s*\S+\.go:\d+.*",
            r"(error: )?exit status \d+|\s*\.\.\. \d+ more",
            # Usage, warnings and information.
            r"(for more information|try)\b.*--help.*|usage:.*|\s+\[?--?\w[\w-]*.*",
            r".*(deprecat|futurewarning|userwarning).*|(warning|info|debug)\b.*",
        )
    ),
    re.IGNORECASE,
)
_CROSS = "\u00d7"
"""Marks errors of uv."""
_HEADS: tuple[tuple[int, re.Pattern[str], bool], ...] = (
    # (weight, pattern, whether the last match wins)
    (90, re.compile(r"(?i)npm (error|err!) code \S+"), False),
    (90, re.compile(r"(?i)\s*caused by: \S.*(exception|error)\b.*"), True),
    (85, re.compile(r"thread '.*' .*panicked at .*"), False),
    (85, re.compile(r"panic: .+|fatal error: .+"), False),
    (85, re.compile(r"exception in thread .+", re.IGNORECASE), False),
    (85, re.compile(r"unhandled exception\b.+", re.IGNORECASE), False),
    (
        80,
        re.compile(
            r"(\w+\.)*[A-Z]\w*(Error|Exception|ExceptionGroup|Exit|Fault|NotFound|Timeout)"
            r"(?: \[\w+\])?(: .*)?"
        ),
        True,
    ),
    (78, re.compile(r"(uncaught|unhandled)\b.*(error|exception|rejection)\b.*", re.I), False),
    (75, re.compile(rf"\s*[{_CROSS}\u2717\u2718] .+"), False),
    (75, re.compile(r"[\w./-]+: error: .+"), True),
    (72, re.compile(r"docker: .+|.*error response from daemon.*", re.I), False),
    (70, re.compile(r"(error|fatal|fatal error|critical)\b(\[\w+\])?: .+", re.I), False),
    (60, re.compile(r"\s*code: '(E|ERR_)\w+'.*"), False),
    (55, re.compile(r".*(command not found|: not found|no such file or directory).*", re.I), False),
    (
        50,
        re.compile(
            r".*\b(error|fatal|failed|failure|exception|panic(ked)?|denied|refused|missing|required"
            r"|must|invalid|cannot|can't|could not|couldn't|not found|unable|unauthorized|forbidden"
            r"|no such|no (\w+ ){0,3}(key|token|config\w*|set|given|found)|unknown|unsupported"
            r"|not set|undefined|expired|E[A-Z]{4,}|ERR_\w+)\b.*",
            re.IGNORECASE,
        ),
        False,
    ),
)
_UNFINISHED = re.compile(r"(?i)(,|\b(for|of|to|in|on|at|by|from|with|the|an?|is|was|and|or|not|because))$")
_NO_HEAD = (0, None, False)
_GROUP_FRAME = re.compile(r"\s*\+ Exception Group Traceback \(most recent.*|\s*\+(-\+)?-{16,}.*")
"""Header of a Python exception group, or a line between its members."""
_GROUP_MARGIN = re.compile(r"\s*(\+-\+-.*|\+-{4,}\s*|[|+] ?)")
_VALIDATION_HEAD = re.compile(r".*\b\d+ validation errors? for \S.*")
_AFTER_CODE = re.compile(r"(?i)npm (error|err!) (?!code|errno|syscall|path|dest)\S*\s*(.+)")


def find_cause(lines: Sequence[str]) -> str:
    """Summarize in one line why a process failed, from its output; empty without output."""
    texts = [text.rstrip() for line in lines for text in clean_text(line)[0].splitlines()]
    if any(map(_GROUP_FRAME.fullmatch, texts)):
        # Python draws a margin around the members of a group, which say more than the group's own line.
        texts = [_GROUP_MARGIN.sub("", text, count=1) for text in texts]
    texts = [text for text in texts if text.strip()]
    signals = [(index, text) for index, text in enumerate(texts) if not _NOISE.fullmatch(text)]
    best, head = 0, None
    for index, text in signals:
        weight, _, last_wins = next((rule for rule in _HEADS if rule[1].fullmatch(text)), _NO_HEAD)
        if weight > best or (weight == best and last_wins):
            best, head = weight, index
    if head is None:
        shown = ([text for _, text in signals] or texts)[-_FALLBACK_LINES:]
    else:
        shown = [texts[head], *_find_rest(texts, head)]
    cause = cut_text(" / ".join(line.strip() for line in shown), _SHOWN_CHARACTERS)
    return f"{cause} (it needs mcp<2)" if needs_sdk_1(shown) else cause


def needs_sdk_1(lines: Sequence[str]) -> bool:
    """Return whether a server failed because it needs version 1 of the Python SDK (`mcp<2`)."""
    return any(map(_FOR_SDK_1.search, lines))


def _find_rest(lines: Sequence[str], index: int) -> list[str]:
    """Return the lines that complete a multi-line cause."""
    head = lines[index]
    after = [line for line in lines[index + 1 :] if not _NOISE.fullmatch(line)]
    if head.lower().startswith("npm "):
        return [line for line in after if _AFTER_CODE.fullmatch(line)][:1]
    # Rust (since 1.73) puts the panic message on the next line; so does uv with `╰─▶`.
    if "panicked at" in head and head.rstrip().endswith(":"):
        return after[:1]
    if head.lstrip().startswith(_CROSS) and after and after[0].lstrip().startswith(("╰", "├", "│")):
        return after[:1]
    # pydantic puts the field and its problem on the next two lines.
    if _VALIDATION_HEAD.fullmatch(head):
        return [*lines[index + 1 : index + 3]]
    # clap lists missing arguments below its line; loggers wrap long lines anywhere.
    if head.endswith(":") or _UNFINISHED.search(head):
        return [*lines[index + 1 : index + 2]]
    return []


# -- damaged caches ---------------------------------------------------------------------------


@record
class CacheDamage:
    """Damage of a package manager's cache, and the command that repairs it."""

    cause: str
    command: str = ""
    """Empty for npx, where only the package's own folder may be deleted."""
    folder: str = ""
    """The damaged npx folder, if the output names one. The caller must find out which package it belongs to."""


_NPX_FOLDER = re.compile(r"(?<![\w:.])((?:[A-Za-z]:)?[\\/](?![\\/])[^\s'\"():]*[\\/]_npx[\\/][0-9a-f]{8,})")
_NPX_BROKEN = re.compile(
    r"ENOTEMPTY|concurrency\.lock|ECOMPROMISED|lock compromised|(ERR_)?MODULE_NOT_FOUND"
    r"|cannot find (module|package)|ENOENT|EEXIST|EISDIR|ENOTDIR"
    r"|unexpected end of (json|file|input)"
    r"|invalid or unexpected token|ERR_INVALID_PACKAGE_CONFIG|: (command )?not found"
    r"|permission denied",
    re.IGNORECASE,
)
_NPM_PATH = re.compile(r"npm (error|err!) path .*", re.IGNORECASE)
"""The path that an npm error code refers to."""
_NPX_ANYWHERE = re.compile(r"ECOMPROMISED|lock compromised|concurrency\.lock", re.IGNORECASE)
_NPX_NO_PROGRAM = re.compile(r"sh: (line )?(\d+: )?[\w@./-]+: (command )?not found")
_NPM_BROKEN = re.compile(
    r"TAR_ENTRY_ERROR|TAR_BAD_ARCHIVE|EINTEGRITY|ZlibError|zlib: |Z_BUF_ERROR|Z_DATA_ERROR"
    r"|_cacache.*(ENOENT|EEXIST|ENOTEMPTY)|(ENOENT|EEXIST|ENOTEMPTY).*_cacache|sha512.*integrity"
    r"|invalid response body.*premature close|unexpected end of file",
    re.IGNORECASE,
)
_UV_BROKEN = re.compile(
    r"fail(ed|ure)\b.*(cache|archive-v\d|\.lock|lockfile|lock file|unzip|extract|unpack"
    r"|deserialize|\.rkyv|\.msgpack)"
    r"|(cache|archive-v\d|builds-v\d|wheels-v\d).*(corrupt|invalid|missing|truncated)"
    r"|invalid zip|bad crc|corrupt|unexpected end of file|badzipfile"
    r"|modulenotfounderror.*archive-v\d|broken\b.*(environment|venv)|missing .*dist-info",
    re.IGNORECASE,
)
_ARCHIVE_BROKEN = re.compile(
    r"corrupt|integrity|bad ?zip|invalid zip|unexpected end|checksum|truncated|ENOTEMPTY", re.I
)
_OTHERS = {
    "pipx": "pipx run --no-cache {}",
    "bunx": "bun pm cache rm",
    "bun": "bun pm cache rm",
    "pnpm": "pnpm store prune",
    "pnpx": "pnpm store prune",
    "yarn": "yarn cache clean",
    "deno": "deno cache --reload {}",
}


def find_cache_damage(lines: Sequence[str], manager: str | None, package: str = "") -> CacheDamage | None:
    """Recognize a package manager's damaged cache by its output."""
    texts = [clean_text(line)[0] for line in lines]
    text = "\n".join(texts)
    if manager in {"npx", "npm", None}:
        for line in texts:
            folder = _NPX_FOLDER.search(line.replace("file://", " "))
            # Stack traces name the folder for any error, so the error must be about a path in it.
            broken = _NPX_BROKEN.search(text if _NPM_PATH.fullmatch(line.strip()) else line)
            if folder is not None and broken is not None:
                cause = f"the folder of npx for it is damaged ({broken[0]} in {folder[1]})"
                return CacheDamage(cause, folder=folder[1])
        if manager is None:
            return None
        if (broken := _NPX_ANYWHERE.search(text) or _NPX_NO_PROGRAM.search(text)) is not None:
            return CacheDamage(f"the folder of npx for it is damaged ({_get_line(text, broken)})")
        if (broken := _NPM_BROKEN.search(text)) is not None:
            return CacheDamage(f"the cache of npm is damaged ({_get_line(text, broken)})", "npm cache verify")
    if manager in {"uvx", "uv"} and (broken := _UV_BROKEN.search(text)) is not None:
        cause = f"the cache of uv looks damaged ({_get_line(text, broken)})"
        return CacheDamage(cause, f"uv cache clean {shlex.quote(package)}" if package else "uv cache prune")
    if manager in _OTHERS and (broken := _ARCHIVE_BROKEN.search(text)) is not None:
        cause = f"the cache of {manager} looks damaged ({_get_line(text, broken)})"
        return CacheDamage(cause, _OTHERS[manager].format(shlex.quote(package)).strip())
    return None


def _get_line(text: str, match: re.Match[str]) -> str:
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return cut_text(text[start : None if end < 0 else end].strip(), 200)
