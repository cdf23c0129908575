"""Turns a package or remote of a registry entry into a row of our configuration file.

The command is one of three launchers with an exact version, and launcher options must be on an allowlist. Words of the
entry become single arguments, never parts of a shell command. Values the user has to supply become variable references
(`${NAME}`), resolved when the server starts. A value in the entry that looks like such a reference is an error: it
would send one of the user's variables to the server.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from urllib.parse import quote, urlencode

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import looks_secret
from indusagi.core.text import clean_text, cut_text
from indusagi.net.address import FetchError, HttpPolicy, parse_url
from indusagi.net.client import CrossSiteRedirect, WebClient
from induscode.core.consent import Consent, build_consent
from induscode.servers.config.trust import show_arguments, show_url, steers_code

EXACT_VERSIONS = {
    # A partial version (`1.2`) is a range on npm and exact on PyPI: https://semver.org/,
    # https://packaging.python.org/en/latest/specifications/version-specifiers/#version-scheme. An image tag isn't
    # exact, and the prompt says so: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pull.
    "npm": re.compile(r"\d+\.\d+\.\d+(?:-[0-9a-z-]+(?:\.[0-9a-z-]+)*)?(?:\+[0-9a-z.-]+)?", re.ASCII | re.IGNORECASE),
    "pypi": re.compile(
        r"(?:\d+!)?\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[0-9a-z]+(?:[._-][0-9a-z]+)*)?",
        re.ASCII | re.IGNORECASE,
    ),
    "oci": re.compile(r"(?!latest$)\w[\w.-]{0,127}", re.ASCII),
}
_MAX_VERSION_CHARS = 100
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
IDENTIFIERS = {
    # https://docs.npmjs.com/cli/v11/configuring-npm/package-json#name, https://peps.python.org/pep-0508/#names,
    # https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
    "npm": re.compile(r"(?:@[a-z0-9~][\w.~-]*/)?[a-z0-9~][\w.~-]*", re.ASCII | re.IGNORECASE),
    "pypi": re.compile(r"[A-Z0-9](?:[\w.-]*[A-Z0-9])?", re.ASCII | re.IGNORECASE),
    "oci": re.compile(r"[a-z0-9][\w.:/-]*(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?", re.ASCII),
}
LAUNCHERS = {"npm": "npx", "pypi": "uvx", "oci": "docker"}
_LAUNCHER_WORDS = {
    "npm": re.compile(r"-q|--quiet"),
    "pypi": re.compile(r"-q|--quiet|--isolated|--python=[0-9.]+"),
    "oci": re.compile(
        r"-i|-t|-it|-ti|--interactive|--tty|--rm|--init|--read-only|--network=none|--cap-drop=\w+"
        r"|--security-opt=no-new-privileges(?::true)?|--(?:memory|memory-swap|shm-size|cpus|pids-limit)=[0-9.]+[bkmg]?"
        r"|--platform=[a-z0-9]+/[a-z0-9/]+|--pull=(?:always|missing|never)|(?:-e|--env)=[A-Za-z_]\w*=.*",
        re.ASCII | re.DOTALL,
    ),
}
"""Launcher options an entry may use. Others could name another package or index, or grant more rights; `-e=NAME`
without a value would pass on one of the user's variables."""
_VOLUME = re.compile(r"(?:-v|--volume)=(?P<source>[^:]+):/[^:]*(?::(?:ro|rw|z|Z))?")
_MOUNT = re.compile(
    r"--mount=type=(?P<type>bind|volume),(?:src|source)=(?P<source>[^,]+),(?:dst|destination|target)=/[^,]*"
    r"(?:,(?:ro|readonly))?"
)
_VOLUME_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_SWITCHES = re.compile(r"-y|--yes|-q|--quiet|--isolated|-i|-t|-it|--interactive|--tty|--rm|--init")
"""Launcher switches, which entries often list without a format."""
_PLACEHOLDER = re.compile(r"(?<!\$)\{[^{}]{0,100}\}")
"""An unresolved variable in an address."""
_HEADER = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CONNECTION_HEADERS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "upgrade", "cookie", "te"}
)
_TRANSPORTS = {"streamable-http": "http", "sse": "sse"}


@record(kw_only=True)
class Installation:
    """The row for an entry, and everything the user should know before adding it."""

    fields: JsonObject
    """The row."""
    package: str
    """Kind, identifier and version: `npm:@scope/name@1.2.3`."""
    sha256: str = ""
    """The published hash of the package's file, if any."""
    needed: Sequence[str] = ()
    """Variables the user must set before the server starts."""
    warnings: Sequence[str] = ()

    @property
    def verification(self) -> str:
        """Which guarantees exist for the package's files; see `describe_verification`."""
        return describe_verification(self.package, self.sha256)

    @property
    def shown(self) -> str:
        """The command or address, for display."""
        if "url" in self.fields:
            return show_url(str(self.fields["url"]), "shell")
        words = self.fields["args"]
        args = [str(word) for word in words] if isinstance(words, list) else []
        return shlex.join((str(self.fields["command"]), *show_arguments(args, "shell")))

    def describe(self, server: RegistryServer, registry: str, name: str, about: str = "") -> Consent:
        """Build the prompt for adding a server under a name. `about` is a line about its sandbox."""
        lines = [
            server.description,
            f"{'address' if 'url' in self.fields else 'command'}: {self.shown}",
            f"package: {self.package}",
            f"verified: {self.verification}",
            *(f"{key}: {json.dumps(self.fields[key])}" for key in ("env", "headers") if self.fields.get(key)),
            *([f"set before it starts: {', '.join(self.needed)}"] if self.needed else []),
            *([f"status: {server.status}"] if server.status != "active" else []),
            *([about] if about else []),
            f"name here: {name}",
        ]
        subject = f"server {server.name} {server.version} of {registry}"
        return build_consent(subject, [name, self.fields], lines, self.warnings)


def is_movable(package: str) -> bool:
    """Return whether a package is an image named without a digest: another image can take its tag."""
    return package.startswith("oci:") and "@sha256:" not in package


def describe_verification(package: str, sha256: str) -> str:
    """Describe which checks a package's files pass when it starts.

    npm and uv verify downloads against the hash in their package registry, where published versions are immutable.
    Neither accepts a hash for a package started by name.
    """
    kind = package.partition(":")[0]
    if kind not in LAUNCHERS:
        return "nothing is downloaded"
    if kind == "oci":
        movable = is_movable(package)
        return "nothing: the tag of an image can be moved" if movable else "docker compares the image with its digest"
    hashed = f"the registry's hash {sha256} is not compared" if sha256 else "the registry publishes no hash"
    return f"exact version; {LAUNCHERS[kind]} compares the file with the hash of its package index; {hashed}"


def build_installation(server: RegistryServer, kind: str | None, given: Mapping[str, str]) -> Installation:
    """Build a server's row from its first runnable package, or from its remote.

    `kind` picks one of several (`npm`, `pypi`, `oci`, `remote`); `given` maps input names to values. Raises
    `RegistryError` if nothing is runnable, or the entry is invalid.
    """
    if server.status == "deleted":
        raise RegistryError(f"{server.name} {server.version} was removed from the registry")
    packages = [package for package in server.objects("packages") if package.get("registryType") in [*LAUNCHERS]]
    if kind not in {None, "remote"}:
        packages = [package for package in packages if package.get("registryType") == kind]
    if packages and kind != "remote":
        return _build_package(server, packages[0], given)
    if server.objects("remotes") and kind in {None, "remote"}:
        return _build_remote(server, server.objects("remotes")[0], given)
    offered = ", ".join(server.kinds) or "nothing"
    raise RegistryError(f"{server.name} offers {offered}; npm, pypi, oci and remote can be installed")


def _build_package(server: RegistryServer, package: JsonObject, given: Mapping[str, str]) -> Installation:
    kind, identifier, version = (str(package.get(key) or "") for key in ("registryType", "identifier", "version"))
    if IDENTIFIERS[kind].fullmatch(identifier) is None:
        raise RegistryError(f"{server.name} names an invalid {kind} package: {identifier[:100]!r}")
    if version and (len(version) > _MAX_VERSION_CHARS or EXACT_VERSIONS[kind].fullmatch(version) is None):
        raise RegistryError(f"{server.name} names no exact version of {identifier}: {version[:100]!r}")
    if not version and kind != "oci":
        raise RegistryError(f"{server.name} names no version of {identifier}")
    hint = package.get("runtimeHint")
    if hint not in (None, "", LAUNCHERS[kind]):
        raise RegistryError(
            f"{server.name} wants the launcher {str(hint)[:50]!r}; {LAUNCHERS[kind]} runs such packages"
        )
    inputs = _Inputs(server, given)
    env = inputs.read_variables(package.get("environmentVariables"))
    runtime = [
        word
        for word in inputs.read_arguments(package.get("runtimeArguments"), _SWITCHES)
        if word not in {"-y", "--yes"}
    ]
    foreign = [
        word
        for word in runtime
        if _LAUNCHER_WORDS[kind].fullmatch(word) is None and not (kind == "oci" and _mounts_given_path(word, given))
    ]
    foreign += [name for name in env if name not in given and steers_code(name)]
    foreign += [name for name in env if _VARIABLE.fullmatch(name) is None]
    if foreign:
        danger = "it could start another package, or give it more rights; if you want that, use indus mcp add"
        raise RegistryError(f"{server.name} gives {LAUNCHERS[kind]} {foreign[0][:80]!r}: {danger}")
    if kind == "oci":
        tagged = ":" in identifier.rpartition("/")[2] or "@" in identifier
        target = identifier if tagged or not version else f"{identifier}:{version}"
        first = ["run", "-i", "--rm", *(word for name in env for word in ("-e", name))]
    else:
        target, first = f"{identifier}@{version}", ["-y"] if kind == "npm" else []
    words = [*first, *runtime, target, *inputs.read_arguments(package.get("packageArguments"))]
    digest = package.get("fileSha256")
    sha256 = digest if isinstance(digest, str) and _HASH.fullmatch(digest) else ""
    return _finish(
        server, {"command": LAUNCHERS[kind], "args": [*words], "env": env}, f"{kind}:{target}", inputs, sha256
    )


def _build_remote(server: RegistryServer, remote: JsonObject, given: Mapping[str, str]) -> Installation:
    transport, url = remote.get("type"), remote.get("url")
    if transport not in [*_TRANSPORTS] or not isinstance(url, str) or not url.startswith("https://"):
        raise RegistryError(f"{server.name} has no remote at an https address")
    inputs = _Inputs(server, given)
    address = inputs.fill(url, remote.get("variables"))
    unknown = _PLACEHOLDER.search(address)
    if unknown is not None:
        raise RegistryError(f"{server.name} does not say what {unknown[0]} in its address {url[:200]!r} stands for")
    headers = inputs.read_variables(remote.get("headers"))
    foreign = [name for name in headers if _HEADER.fullmatch(name) is None or name.lower() in _CONNECTION_HEADERS]
    if foreign:
        raise RegistryError(f"{server.name} wants the header {foreign[0][:80]!r}, which belongs to the connection")
    fields: JsonObject = {"type": _TRANSPORTS[str(transport)], "url": address, "headers": headers}
    return _finish(server, fields, f"remote:{address}", inputs)


def _finish(
    server: RegistryServer, fields: JsonObject, package: str, inputs: _Inputs, sha256: str = ""
) -> Installation:
    origin: JsonObject = {"name": server.name, "version": server.version, "package": package}
    if sha256:
        origin["sha256"] = sha256
    kept = {key: value for key, value in fields.items() if value not in ({}, [])}
    unknown = [name for name in inputs.given if name not in inputs.used]
    if unknown:
        raise RegistryError(f"{server.name} takes no value {unknown[0]!r}")
    warnings = [f"{name} looks like a secret: the server gets its value." for name in dict.fromkeys(inputs.secrets)]
    if is_movable(package):
        warnings.append("The image is named by a tag, without a digest: another image can take its place.")
    return Installation(
        fields={**kept, "registry": origin},
        package=package,
        sha256=sha256,
        needed=tuple(dict.fromkeys(inputs.needed)),
        warnings=tuple(warnings),
    )


def _mounts_given_path(word: str, given: Mapping[str, str]) -> bool:
    """Tell whether a word mounts a volume, or a path the user supplied for this entry."""
    found = _VOLUME.fullmatch(word) or _MOUNT.fullmatch(word)
    if found is None:
        return False
    is_bind = found.re is _MOUNT and found["type"] == "bind"
    return found["source"] in given.values() or (not is_bind and _VOLUME_NAME.fullmatch(found["source"]) is not None)


class _Inputs:
    """Reads the inputs of an entry: fixed values, defaults, user-supplied values, variable references.

    https://github.com/modelcontextprotocol/registry/blob/main/docs/reference/server-json/generic-server-json.md
    """

    def __init__(self, server: RegistryServer, given: Mapping[str, str]) -> None:
        self.given = given
        self.used: set[str] = set()
        self.needed: list[str] = []
        self.secrets: list[str] = []
        """The subset of `needed` that are secrets, by name or according to the entry."""
        self._server = server

    def read_variables(self, rows: JsonValue) -> JsonObject:
        """Read variables or headers. Required ones without a value become references to a variable of that name."""
        values: JsonObject = {}
        for row in rows if isinstance(rows, list) else []:
            name = row.get("name") if is_json_object(row) else None
            if not is_json_object(row) or not isinstance(name, str) or not name:
                continue
            value = self._read_value(row, name)
            if value is None and row.get("isRequired") is True:
                value = self._refer(name, row)
            if value is not None:
                values[name] = value
        return values

    def read_arguments(self, rows: JsonValue, switches: re.Pattern[str] | None = None) -> list[str]:
        """Read the words of a command.

        Required arguments without a value become references to a variable of that name. Switches take no value: named
        arguments with format `boolean` (the default is `string`), or one of `switches`.
        """
        words: list[str] = []
        for row in rows if isinstance(rows, list) else []:
            if not is_json_object(row):
                continue
            flag = row.get("name") if row.get("type") == "named" else None
            label = flag if isinstance(flag, str) else row.get("valueHint")
            name = label.lstrip("-") if isinstance(label, str) else ""
            value = self._read_value(row, name)
            is_known = isinstance(flag, str) and switches is not None and switches.fullmatch(flag) is not None
            is_switch = is_known or (isinstance(flag, str) and row.get("format") == "boolean")
            if value is None and row.get("isRequired") is True and not is_switch:
                value = self._refer(name, row)
            if isinstance(flag, str) and (value is not None or row.get("isRequired") is True):
                words.append(self._check(flag) if value is None else f"{self._check(flag)}={value}")
            elif value is not None:
                words.append(value)
        return words

    def fill(self, text: str, variables: JsonValue) -> str:
        """Replace `{name}` with the values of variables."""
        known = variables if is_json_object(variables) else {}
        self._check(text)
        for name, row in known.items():
            if is_json_object(row) and f"{{{name}}}" in text:
                value = self._read_value(row, name)
                text = text.replace(f"{{{name}}}", self._refer(name, row) if value is None else value)
        # Two harmless values may form a reference together: `$` and `{HOME}`.
        theirs = text
        for part in (*(f"${{{name}}}" for name in self.needed), *filter(None, self.given.values())):
            theirs = theirs.replace(part, "_")
        self._check(theirs)
        return text

    def _read_value(self, row: JsonObject, name: str) -> str | None:
        if name in self.given:
            self.used.add(name)
            choices = row.get("choices")
            if isinstance(choices, list) and choices and self.given[name] not in choices:
                allowed = ", ".join(str(choice)[:50] for choice in choices[:20])
                raise RegistryError(f"{self._server.name}: {name} is one of {allowed}, not {self.given[name]!r}")
            return self.given[name]
        value = row.get("value")
        if isinstance(value, str):
            return self.fill(value, row.get("variables"))
        default = row.get("default")
        return self._check(default) if isinstance(default, str) and row.get("isSecret") is not True else None

    def _refer(self, name: str, row: JsonObject) -> str:
        variable = re.sub(r"[^A-Za-z0-9_]", "_", name).upper()
        if _VARIABLE.fullmatch(variable) is None:
            raise RegistryError(f"{self._server.name} has an input without a usable name: {name[:50]!r}")
        self.needed.append(variable)
        if row.get("isSecret") is True or looks_secret(variable):
            self.secrets.append(variable)
        return f"${{{variable}}}"

    def _check(self, text: str) -> str:
        if "${" in text or not text.isprintable():
            raise RegistryError(f"{self._server.name} has a value that refers to your variables: {text[:80]!r}")
        return text


# -- client -----------------------------------------------------------------------------------
#
# The registry is a third party: clean its texts, bound its responses, and show users its data before using it.

_OFFICIAL = "io.modelcontextprotocol.registry/official"
_MAX_BYTES = 4 * 1024 * 1024
_PAGE_SIZE = 100
_MAX_PAGES = 5
_MAX_WORDS = 4
_MAX_DESCRIPTION_CHARS = 200
_OK, _NOT_FOUND = 200, 404


class RegistryError(CoreError):
    """The registry is unreachable, doesn't have the server, or its entry is unusable."""


@record
class RegistryServer:
    """One version of a server in the registry."""

    name: str
    """Reverse DNS and a name: `io.github.owner/server`."""
    version: str
    description: str
    status: str
    """`active`, `deprecated` or `deleted`."""
    document: JsonObject
    """Its `server.json`."""

    @property
    def kinds(self) -> Sequence[str]:
        """Its package kinds, plus `remote` if it's hosted somewhere."""
        packages = [str(package.get("registryType")) for package in self.objects("packages")]
        return [*dict.fromkeys(packages), *(["remote"] if self.objects("remotes") else [])]

    def objects(self, key: str) -> list[JsonObject]:
        """Return the objects in one of the document's lists."""
        values = self.document.get(key)
        return [value for value in values if is_json_object(value)] if isinstance(values, list) else []


class RegistryClient:
    """Queries the user's registry through the guarded HTTP client."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        target = parse_url(self._url)
        # The user chose this address, so any network is fine; cross-site redirects still aren't.
        policy = HttpPolicy(allow_private=(target.server,), ports=(target.port,), hard_bytes=_MAX_BYTES)
        self._client = WebClient(policy)

    async def search(self, words: Sequence[str], limit: int) -> list[RegistryServer]:
        """Find the latest versions of servers with one word in their name and all words in name or description.

        Raises `RegistryError` if the registry doesn't answer, or the response is invalid.
        """
        lowered = sorted({word.lower() for word in words}, key=len, reverse=True)
        found: dict[str, RegistryServer] = {}
        # The registry matches one text against names, so query each word and match all words here.
        for word in lowered[:_MAX_WORDS]:
            async for server in self._list(word):
                text = f"{server.name} {server.description}".lower()
                if server.status != "deleted" and all(part in text for part in lowered):
                    found.setdefault(server.name, server)
                if len(found) >= limit:
                    return [*found.values()]
        return [*found.values()]

    async def _list(self, text: str) -> AsyncGenerator[RegistryServer]:
        """List the latest versions of servers with `text` in their name, page by page."""
        query = {"version": "latest", "limit": str(_PAGE_SIZE), "search": text}
        for _ in range(_MAX_PAGES):
            answer = await self._get("servers", query)
            rows = answer.get("servers")
            for row in rows if isinstance(rows, list) else []:
                if (server := parse_server(row)) is not None:
                    yield server
            metadata = answer.get("metadata")
            cursor = metadata.get("nextCursor") if is_json_object(metadata) else None
            if not isinstance(cursor, str) or not cursor or cursor == query.get("cursor"):
                return
            query["cursor"] = cursor

    async def read_server(self, name: str, version: str = "latest") -> RegistryServer:
        """Read one version of a server; raises `RegistryError` if it doesn't exist, or the registry doesn't answer."""
        wanted = repr(name) if version == "latest" else f"{name!r} in version {version!r}"
        path = f"servers/{quote(name, safe='')}/versions/{quote(version, safe='')}"
        answer = await self._get(path, {}, f"has no server {wanted}: indus mcp search WORDS")
        server = parse_server(answer)
        if server is None or server.name != name or version not in {"latest", server.version}:
            found = "nothing" if server is None else f"{server.name!r} in version {server.version!r}"
            raise RegistryError(f"{self._url} was asked for the server {wanted}, and answered with {found}")
        return server

    async def _get(self, path: str, query: dict[str, str], absent: str = "") -> JsonObject:
        url = f"{self._url}/v0.1/{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = await self._client.fetch(url, accept="application/json")
        except FetchError as exc:
            raise RegistryError(f"the registry cannot be reached: {exc}") from exc
        if isinstance(answer, CrossSiteRedirect):
            raise RegistryError(f"the registry {self._url} has moved to {answer.url}: set registry.url, if it is meant")
        if answer.status == _NOT_FOUND and absent:
            raise RegistryError(f"{self._url} {absent}")
        try:
            document: JsonValue = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if answer.status != _OK or answer.cut is not None or not is_json_object(document):
            raise RegistryError(f"{self._url} gave no usable answer (status {answer.status})")
        return document


def parse_server(row: JsonValue) -> RegistryServer | None:
    """Parse one row of a response, or return `None` if it isn't a server."""
    document = row.get("server") if is_json_object(row) else None
    if not is_json_object(row) or not is_json_object(document):
        return None
    name, version, text = (document.get(key) for key in ("name", "version", "description"))
    if not isinstance(name, str) or not isinstance(version, str) or not name or not version:
        return None
    meta = row.get("_meta")
    official = meta.get(_OFFICIAL) if is_json_object(meta) else None
    status = official.get("status") if is_json_object(official) else None
    described = " ".join(clean_text(text)[0].split()) if isinstance(text, str) else ""
    return RegistryServer(
        clean_text(name)[0],
        clean_text(version)[0],
        cut_text(described, _MAX_DESCRIPTION_CHARS),
        status if isinstance(status, str) else "active",
        document,
    )
