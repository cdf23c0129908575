"""Entries of a registry as rows: exact versions, single words, and no variable of the user that was not named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.mirror import entry, package

from induscode.core.consent import ConsentChangedError
from induscode.servers.registry import (
    RegistryError,
    RegistryServer,
    build_installation,
    describe_verification,
    parse_server,
)

HASH = "a" * 64


def server(*packages: dict[str, Any], **fields: Any) -> RegistryServer:
    parsed = parse_server(entry("io.github.o/s", packages=[*packages], **fields))
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("kind", "identifier", "version", "command", "args"),
    [
        ("npm", "@scope/name", "1.2.3", "npx", ["-y", "@scope/name@1.2.3"]),
        ("pypi", "mcp-server-git", "2026.1.0", "uvx", ["mcp-server-git@2026.1.0"]),
        ("oci", "ghcr.io/o/s", "1.0", "docker", ["run", "-i", "--rm", "ghcr.io/o/s:1.0"]),
        ("oci", "ghcr.io/o/s:2.0", "", "docker", ["run", "-i", "--rm", "ghcr.io/o/s:2.0"]),
    ],
)
def test_a_package_becomes_a_command_with_its_exact_version(
    kind: str, identifier: str, version: str, command: str, args: list[str]
) -> None:
    made = build_installation(server(package(kind, identifier, version, fileSha256=HASH)), None, {})
    assert (made.fields["command"], made.fields["args"]) == (command, args)
    assert made.fields["registry"] == {
        "name": "io.github.o/s",
        "version": "1.0.0",
        "package": made.package,
        "sha256": HASH,
    }
    assert made.shown == " ".join((command, *args))


@pytest.mark.parametrize(
    ("name", "sha256", "said"),
    [
        (
            "npm:@o/git@1.0",
            HASH,
            f"npx compares the file with the hash of its package index; the registry's hash {HASH}",
        ),
        (
            "pypi:git@1.0",
            "",
            "uvx compares the file with the hash of its package index; the registry publishes no hash",
        ),
        ("oci:ghcr.io/o/s:1.0", HASH, "nothing: the tag of an image can be moved"),
        (f"oci:ghcr.io/o/s@sha256:{HASH}", "", "docker compares the image with its digest"),
        ("remote:https://example.org/mcp", "", "nothing is downloaded"),
        ("written by hand", "", "nothing is downloaded"),
    ],
)
def test_it_is_said_what_is_verified(name: str, sha256: str, said: str) -> None:
    assert said in describe_verification(name, sha256)


def test_arguments_and_variables_are_fixed_given_defaulted_or_referred_to() -> None:
    made = build_installation(
        server(
            package(
                "npm",
                "name",
                runtimeHint="npx",
                runtimeArguments=[{"type": "named", "name": "-y", "isRequired": True}],
                packageArguments=[
                    {"type": "positional", "value": "serve {mode}", "variables": {"mode": {"default": "fast"}}},
                    {"type": "named", "name": "--port", "default": "80"},
                    {"type": "named", "name": "--host"},
                    {"type": "named", "name": "--verbose", "isRequired": True, "format": "boolean"},
                    {"type": "named", "name": "--local-timezone", "isRequired": True},
                    {"type": "named", "name": "--zone", "isRequired": True, "format": "string"},
                    {"type": "positional", "valueHint": "folder", "isRequired": True},
                    {"type": "positional", "valueHint": "api key", "isRequired": True},
                ],
                environmentVariables=[
                    {"name": "TOKEN", "isRequired": True, "isSecret": True, "default": "leaked"},
                    {"name": "LEVEL", "default": "info"},
                    {"name": "UNUSED"},
                    {"name": "FIXED", "value": "yes"},
                ],
            )
        ),
        None,
        {"folder": "/data with space", "zone": "UTC"},
    )
    assert made.fields["args"] == [
        "-y", "name@1.2.3", "serve fast", "--port=80", "--verbose", "--local-timezone=${LOCAL_TIMEZONE}", "--zone=UTC",
        "/data with space", "${API_KEY}",
    ]  # fmt: skip
    assert made.fields["env"] == {"TOKEN": "${TOKEN}", "LEVEL": "info", "FIXED": "yes"}
    assert made.needed == ("TOKEN", "LOCAL_TIMEZONE", "API_KEY")


def test_a_switch_of_a_launcher_needs_no_format_and_the_same_name_of_a_package_does() -> None:
    arguments = [{"type": "named", "name": "-t", "isRequired": True}]
    made = build_installation(
        server(package("oci", "o/s", "1", runtimeArguments=arguments, packageArguments=arguments)), None, {}
    )
    assert made.fields["args"] == ["run", "-i", "--rm", "-t", "o/s:1", "-t=${T}"]


def test_a_container_gets_its_variables_by_name() -> None:
    made = build_installation(
        server(package("oci", "o/s", "1", environmentVariables=[{"name": "TOKEN", "isRequired": True}])), None, {}
    )
    assert made.fields["args"] == ["run", "-i", "--rm", "-e", "TOKEN", "o/s:1"]


def test_a_remote_becomes_an_address_with_headers() -> None:
    remote = {
        "type": "streamable-http",
        "url": "https://{tenant}.example.org/mcp",
        "variables": {"tenant": {"isRequired": True}},
        "headers": [{"name": "X-Api-Key", "isRequired": True, "isSecret": True}],
    }
    made = build_installation(server(remotes=[remote]), None, {"tenant": "acme"})
    assert (made.fields["type"], made.fields["url"]) == ("http", "https://acme.example.org/mcp")
    assert made.fields["headers"] == {"X-Api-Key": "${X_API_KEY}"}
    assert made.needed == ("X_API_KEY",)


def test_one_of_several_kinds_is_chosen() -> None:
    both = server(package("mcpb", "https://h/x.mcpb"), package("npm", "name"), package("pypi", "name"))
    assert build_installation(both, None, {}).package == "npm:name@1.2.3"
    assert build_installation(both, "pypi", {}).package == "pypi:name@1.2.3"
    with pytest.raises(RegistryError, match="offers mcpb, npm, pypi"):
        build_installation(both, "remote", {})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (package("npm", "--prefix=/tmp"), "invalid npm package"),
        (package("npm", "name; rm -rf"), "invalid npm package"),
        (package("pypi", "-e ."), "invalid pypi package"),
        (package("oci", "--privileged"), "invalid oci package"),
        (package("npm", "name", "latest"), "no exact version"),
        (package("npm", "name", "^1.0"), "no exact version"),
        (package("npm", "name", "1.0 --registry x"), "no exact version"),
        (package("npm", "name", ""), "names no version"),
        (package("npm", "name", runtimeHint="bash"), "wants the launcher 'bash'"),
        (
            package("npm", "name", packageArguments=[{"type": "positional", "value": "${AWS_SECRET_ACCESS_KEY}"}]),
            "refers to your variables",
        ),
        (
            package("npm", "name", environmentVariables=[{"name": "X", "default": "${HOME}"}]),
            "refers to your variables",
        ),
        (
            package("npm", "name", environmentVariables=[{"name": "X", "default": "${cmd:id}"}]),
            "refers to your variables",
        ),
        (
            package("npm", "name", packageArguments=[{"type": "named", "name": "--a=${HOME}", "isRequired": True}]),
            "refers to your variables",
        ),
        (
            package("npm", "name", packageArguments=[{"type": "positional", "valueHint": "1!", "isRequired": True}]),
            "without a usable name",
        ),
        (
            package("npm", "name", environmentVariables=[{"name": "npm_config_registry", "value": "http://h"}]),
            "could start another package",
        ),
        (
            package("oci", "name", environmentVariables=[{"name": "LD_PRELOAD", "default": "/tmp/x.so"}]),
            "could start another package",
        ),
        (
            package("pypi", "name", runtimeArguments=[{"type": "named", "name": "--index-url", "value": "http://h"}]),
            "could start another package",
        ),
        (
            package("npm", "name", runtimeArguments=[{"type": "positional", "value": "other"}]),
            "could start another package",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_entry_that_could_do_harm_is_refused(broken: dict[str, Any], said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        build_installation(server(broken), None, {})


@pytest.mark.parametrize("text", ["{a}{HOME}", "{a}{b}", "{c}", "{a}{needed}"])
def test_values_of_an_entry_form_no_reference_together(text: str) -> None:
    variables = {
        "a": {"default": "$"},
        "b": {"value": "{HOME}"},
        "c": {"value": "{d}{HOME}", "variables": {"d": {"default": "$"}}},
        "needed": {"default": "{HOME}"},
    }
    argument = {"type": "positional", "value": text, "variables": variables}
    remote = {"type": "sse", "url": f"https://h.example/?q={text}", "variables": variables}
    for one in (server(package("npm", "name", packageArguments=[argument])), server(remotes=[remote])):
        with pytest.raises(RegistryError, match="refers to your variables"):
            build_installation(one, None, {})


def test_a_reference_of_the_entry_or_of_the_user_stays() -> None:
    variables = {"key": {"isRequired": True}, "mine": {"isRequired": True}}
    remote = {"type": "sse", "url": "https://h.example/{key}/{mine}", "variables": variables}
    made = build_installation(server(remotes=[remote]), None, {"mine": "${MINE}"})
    assert made.fields["url"] == "https://h.example/${KEY}/${MINE}"
    assert made.needed == ("KEY",)


@pytest.mark.parametrize("url", ["http://h/mcp", "file:///etc/passwd", "https://h/${HOME}", 3])
def test_a_remote_needs_an_https_address(url: object) -> None:
    with pytest.raises(RegistryError):
        build_installation(server(remotes=[{"type": "streamable-http", "url": url}]), None, {})


@pytest.mark.parametrize("odd", [["npm"], {}, None])
def test_finding_f1_an_entry_with_a_list_or_an_object_in_the_place_of_a_word_is_refused(odd: object) -> None:
    entries = (
        server({**package("npm", "name"), "registryType": odd}),
        server(package("npm", "name", runtimeHint=odd or [])),
        server(remotes=[{"type": odd, "url": "https://h.example/"}]),
    )
    for one in entries:
        with pytest.raises(RegistryError):
            build_installation(one, None, {})


@pytest.mark.parametrize("name", ["Host", "content-length", "X Y", "X:\r\nY", ""])
def test_a_remote_gives_no_header_of_the_connection(name: str) -> None:
    remote = {"type": "sse", "url": "https://h.example/x", "headers": [{"name": name, "value": "evil"}]}
    one = server(remotes=[remote])
    if not name:  # it's no header
        assert "headers" not in build_installation(one, None, {}).fields
        return
    with pytest.raises(RegistryError, match="belongs to the connection"):
        build_installation(one, None, {})


def test_a_given_value_is_one_of_the_choices() -> None:
    one = server(package("npm", "x", environmentVariables=[{"name": "MODE", "choices": ["a", "b"]}]))
    assert build_installation(one, None, {"MODE": "b"}).fields["env"] == {"MODE": "b"}
    with pytest.raises(RegistryError, match="MODE is one of a, b, not 'c'"):
        build_installation(one, None, {"MODE": "c"})


def test_an_address_with_a_variable_that_is_not_described_is_refused() -> None:
    one = server(remotes=[{"type": "sse", "url": "https://{tenant}.example.org/{place}", "variables": {"tenant": {}}}])
    with pytest.raises(RegistryError, match=r"does not say what \{place\} in its address"):
        build_installation(one, None, {})


def test_a_removed_server_and_an_unknown_value_are_refused() -> None:
    with pytest.raises(RegistryError, match="was removed"):
        build_installation(server(package("npm", "name"), status="deleted"), None, {})
    with pytest.raises(RegistryError, match="takes no value 'nothing'"):
        build_installation(server(package("npm", "name")), None, {"nothing": "x"})


@pytest.mark.parametrize(
    "row", [None, [], {}, {"server": {}}, {"server": {"name": "x"}}, {"server": {"name": 1, "version": 2}}]
)
def test_what_is_no_server_is_left_out(row: Any) -> None:
    assert parse_server(row) is None


# -- words for the launcher -------------------------------------------------------------------


def named(flag: str, value: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "named", "name": flag, **({"isRequired": True} if value is None else {"value": value}), **more}


def positional(value: str) -> dict[str, Any]:
    return {"type": "positional", "value": value}


@pytest.mark.parametrize(
    "words",
    [
        [positional("evil/image")],
        [positional("evil/image@sha256:" + HASH)],
        [positional("run")],
        [named("--privileged", format="boolean")],
        [named("--privileged", "true")],
        [positional("--privileged")],
        [named("-v", "/:/host")],
        [named("--volume", "/:/host:rw")],
        [named("-v", "/var/run/docker.sock:/var/run/docker.sock")],
        [named("-v", "~/.ssh:/keys")],
        [named("-v", "../..:/up")],
        [named("--mount", "type=bind,src=/,dst=/host")],
        [named("--mount", "type=bind,source=/home,target=/h,readonly")],
        [named("--mount", "type=volume,src=/,dst=/host")],
        [named("--mount", "type=bind,src=mine,dst=/h")],
        [named("--user", "0")],
        [named("-u", "root")],
        [named("--entrypoint", "/bin/sh")],
        [named("--network", "host")],
        [named("--net", "host")],
        [named("--pid", "host")],
        [named("--ipc", "host")],
        [named("--cap-add", "ALL")],
        [named("--device", "/dev/mem")],
        [named("--security-opt", "seccomp=unconfined")],
        [named("--security-opt", "apparmor=unconfined")],
        [named("--volumes-from", "other")],
        [named("--env-file", "/home/me/.env")],
        [named("-e", "AWS_SECRET_ACCESS_KEY")],
        [named("--env", "GITHUB_TOKEN")],
        [named("-e", format="boolean"), positional("GITHUB_TOKEN")],
        [named("--name", format="boolean")],
        [named("--memory", format="boolean")],
        [named("-p", "0.0.0.0:80:80")],
        [named("-it", "x")],
        [named("-iv", "/:/host")],
        [positional("-v=/:/host")],
        [named("--runtime", "evil")],
        [named("--add-host", "api.example:10.0.0.1")],
        [named("--userns", "host")],
        [named("--rm", "x")],
        [named("--")],
    ],
    ids=str,
)
def test_finding_p9_an_entry_gives_docker_only_words_of_a_list(words: list[dict[str, Any]]) -> None:
    good = f"ghcr.io/o/s@sha256:{HASH}"
    with pytest.raises(RegistryError, match=r"could start another package, or give it more rights|usable name"):
        build_installation(server(package("oci", good, "", runtimeArguments=words)), None, {})


def test_an_entry_may_limit_its_container_and_mount_what_the_user_gave() -> None:
    words = [
        named("-i"),
        named("--rm", format="boolean"),
        named("--read-only", format="boolean"),
        named("--network", "none"),
        named("--cap-drop", "ALL"),
        named("--memory", "512m"),
        named("-e", "LEVEL=info"),
        named("--mount", "type=bind,src={folder},dst=/data,readonly", variables={"folder": {"isRequired": True}}),
        named("-v", "cache:/cache"),
    ]
    entry = server(package("oci", f"o/s@sha256:{HASH}", "", runtimeArguments=words))
    args = build_installation(entry, None, {"folder": "/home/me/work"}).fields["args"]
    assert isinstance(args, list)
    assert args[3:] == [
        "-i", "--rm", "--read-only", "--network=none", "--cap-drop=ALL", "--memory=512m", "-e=LEVEL=info",
        "--mount=type=bind,src=/home/me/work,dst=/data,readonly", "-v=cache:/cache", f"o/s@sha256:{HASH}",
    ]  # fmt: skip
    with pytest.raises(RegistryError, match="give it more rights"):  # a variable of the user is no answer
        build_installation(entry, None, {})


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        *(("npm", version) for version in ("1.x", "1", "1.2", "next", "latest", "^1.2.3", "~1.2.3", "*", "x", "1.2.*")),
        *(("npm", version) for version in (">=1.2.3", "1.2.3 || 2.0.0", "1.2.3-", "v1.2.3", "=1.2.3", "1.2.3\n", "01")),
        *(("npm", version) for version in ("npm:evil@1.0.0", "file:..", "git+https://h/x", "\uff11.2.3", "beta.1")),
        *(("pypi", version) for version in ("1.x", "latest", "next", ">=1", "~=1.2", "==1.0", "1.*", "*", "1.0,<2")),
        *(("pypi", version) for version in ("1.0 ; x", "dev", "1.0alpha", "1.0.0\n", "@ https://h/x.whl", "v1")),
        *(("oci", version) for version in ("latest", "1.0 --privileged", "a:b", "a/b", "1.0\n", "-x")),
    ],
)
def test_finding_p9_a_version_that_can_move_is_refused(kind: str, version: str) -> None:
    with pytest.raises(RegistryError, match="names no exact version"):
        build_installation(server(package(kind, "name", version)), None, {})


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        *(("npm", version) for version in ("1.2.3", "0.0.1", "1.2.3-beta.1", "1.2.3-rc.1+build.5", "2026.11.18")),
        *(
            ("pypi", version)
            for version in ("1", "1.2", "2026.1.0", "1.0rc1", "1!2.0", "1.0.post1", "1.0.dev3", "1+a.b")
        ),
        *(("oci", version) for version in ("1.0", "v2", "2026-01-01")),
    ],
)
def test_an_exact_version_is_accepted(kind: str, version: str) -> None:
    made = build_installation(server(package(kind, "name", version)), None, {})
    assert made.package.endswith(version)
    assert any("without a digest" in warning for warning in made.warnings) == (kind == "oci")


@pytest.mark.parametrize(
    ("row", "is_secret"),
    [
        ({"name": "GITHUB_TOKEN"}, True),
        ({"name": "AWS_SECRET_ACCESS_KEY"}, True),
        ({"name": "DATABASE_URL"}, True),
        ({"name": "HARMLESS", "isSecret": True}, True),
        ({"name": "LOG_LEVEL"}, False),
    ],
)
def test_finding_p9_a_required_input_that_looks_like_a_secret_is_warned_about(
    row: dict[str, Any], is_secret: bool
) -> None:
    required = {**row, "isRequired": True}
    argument = {**required, "type": "named", "name": f"--{row['name'].lower().replace('_', '-')}"}
    remote: dict[str, Any] = {
        "type": "sse",
        "url": "https://h.example/{x}",
        "variables": {"x": {}},
        "headers": [required],
    }
    for made in (
        build_installation(server(package("npm", "n", environmentVariables=[required])), None, {}),
        build_installation(server(package("npm", "n", packageArguments=[argument])), None, {}),
        build_installation(server(remotes=[remote]), None, {"x": "1"}),
    ):
        expected = f"{row['name']} looks like a secret: the server gets its value."
        assert (expected in made.warnings) is is_secret
        question = made.describe(server(), "https://registry.example", "mine")
        assert (f"WARNING: {expected}" in question.details) is is_secret


@pytest.mark.parametrize(
    "name",
    [
        "NODE_OPTIONS",
        "UV_INDEX_URL",
        "DOCKER_HOST",
        "PATH",
        "HOME",
        "HTTPS_PROXY",
        "PYTHONSTARTUP",
        "BASH_ENV",
        "GIT_SSH",
    ],
)
def test_a_variable_that_steers_a_launcher_is_refused(name: str) -> None:
    for kind in ("npm", "pypi", "oci"):
        with pytest.raises(RegistryError, match="could start another package"):
            build_installation(
                server(package(kind, "name", environmentVariables=[{"name": name, "value": "x"}])), None, {}
            )


def test_a_yes_to_another_entry_is_refused() -> None:
    shown, other = (
        build_installation(server(package("npm", "name", version)), None, {}).describe(server(), "https://r", "mine")
        for version in ("1.2.3", "1.2.4")
    )
    with pytest.raises(ConsentChangedError, match="it has changed since you looked"):
        other.check_digest(shown.digest)
