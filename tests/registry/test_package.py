"""Entries of a registry as rows: exact versions, single words, and no variable of the user that was not named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.mirror import entry, package

from induscode.registry.client import RegistryError, RegistryServer, parse_server
from induscode.registry.package import build_installation, describe_verification

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


@pytest.mark.parametrize("url", ["http://h/mcp", "file:///etc/passwd", "https://h/${HOME}", 3])
def test_a_remote_needs_an_https_address(url: object) -> None:
    with pytest.raises(RegistryError):
        build_installation(server(remotes=[{"type": "streamable-http", "url": url}]), None, {})


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
