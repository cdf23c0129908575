"""Sandbox profiles of servers: parsing, describing, and which hosts they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.sandbox.profile import (
    InvalidProfileError,
    ResourceLimits,
    ServerProfile,
    format_profile,
    parse_profile,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
HOSTS = st.builds(
    "{}{}.example:{}".format,
    st.sampled_from(["", "*."]),
    st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
    st.integers(1, 65_535),
)
SIZES = st.integers(1, 1 << 20).map(lambda kibibytes: kibibytes << 10)
LIMITS = st.builds(ResourceLimits, memory=SIZES, processes=st.integers(16, 1 << 20), disk=SIZES)
PROFILES = st.builds(
    ServerProfile,
    name=st.sampled_from(["standard", "strict"]),
    read=st.lists(WORDS, max_size=3).map(tuple),
    write=st.lists(WORDS, max_size=3).map(tuple),
    hosts=st.none() | st.lists(HOSTS, max_size=3).map(tuple),
    env=st.lists(st.from_regex(r"[A-Z_][A-Z0-9_]{0,9}", fullmatch=True), max_size=3).map(tuple),
    limits=st.just(ResourceLimits()) | LIMITS,
)
DIGEST = f"example.com:5000/notes@sha256:{'0' * 64}"
CONTAINER: JsonObject = {
    "container": "podman",
    "image": DIGEST,
    "network": "any",
    "env": ["ZONE"],
    "write": ["~/notes"],
}


@given(PROFILES)
def test_a_profile_survives_its_row(profile: ServerProfile) -> None:
    assert parse_profile(format_profile(profile)) == profile


def test_a_container_survives_its_row_and_is_described() -> None:
    profile = parse_profile(CONTAINER)
    assert profile is not None
    assert format_profile(profile) == CONTAINER
    shown = f"podman: runs in {DIGEST}; also writes ~/notes; inherits ZONE; reaches any host"
    assert (profile.describe(), profile.title) == (shown, "podman")
    tagged = parse_profile({"container": "docker", "image": "notes:1", "allow_tag": True})
    assert tagged is not None
    assert tagged.describe() == "docker: runs in notes:1, whose tag can move to another image; no network"


def test_off_and_nothing_are_no_profile() -> None:
    assert parse_profile("off") is None
    assert parse_profile(None) is None
    assert format_profile(None) == "off"
    assert format_profile(ServerProfile(name="strict")) == "strict"
    assert parse_profile({}) == parse_profile("standard") == ServerProfile()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("Standard", "no sandbox profile 'Standard'; there are off, standard, strict"),
        (True, 'must be "off", "standard", "strict" or an object'),
        ([], 'must be "off", "standard", "strict" or an object'),
        ({"profile": "off"}, "no sandbox profile 'off'"),
        ({"profile": ["strict"]}, "no sandbox profile"),
        ({"network": False}, "unknown key 'network'"),
        (dict.fromkeys("zyxwvutsrqponmlkjihgfedcba", 1), "unknown key 'a'"),
        ({**CONTAINER, "container": "lxc"}, "must be docker or podman, not 'lxc'"),
        ({**CONTAINER, "image": "--privileged"}, "names no image: '--privileged'"),
        ({**CONTAINER, "image": "notes@sha256:12"}, "names no image"),
        ({**CONTAINER, "image": "notes:1"}, "has no digest, so another can take its place"),
        ({**CONTAINER, "image": "notes", "allow_tag": 1}, "has no digest"),
        ({**CONTAINER, "network": "host"}, "must be none or any, not 'host'"),
        ({**CONTAINER, "hosts": ["*"]}, "unknown key 'hosts'"),
        ({**CONTAINER, "privileged": True}, "unknown key 'privileged'"),
        ({**CONTAINER, "args": ["--privileged"]}, "unknown key 'args'"),
        ({"read": "/etc"}, "the read of its sandbox must be a list of strings"),
        ({"write": ["a\0b"]}, "the write of its sandbox must be a list of strings"),
        ({"hosts": [1]}, "the hosts of its sandbox must be a list of strings"),
        ({"hosts": ["https://a.example"]}, "names no host: 'https://a.example'"),
        ({"hosts": ["a.example:0"]}, "names no host"),
        ({"hosts": ["a.example:99999"]}, "names no host"),
        ({"hosts": ["*"], "env": ["A=b"]}, "names no variable: 'A=b'"),
        ({"hosts": ["a*.example"]}, "names no host"),
        ({"limits": "2G"}, 'the limits must be an object such as {"memory": "2G"}'),
        ({"limits": {"cpu": 1}}, "no limit of 'cpu'; there are memory, processes, disk"),
        ({"limits": {"memory": "lots"}}, 'the limit of memory must be a size such as "512M" or "2G"'),
        ({"limits": {"disk": 2048}}, "the limit of disk must be a size"),
        ({"limits": {"disk": "0G"}}, "the limit of disk must be a size"),
        ({"limits": {"processes": 1}}, "the limit of processes must be a number from 16"),
        ({"limits": {"processes": True}}, "the limit of processes must be a number from 16"),
        ({"hosts": [""]}, "the hosts of its sandbox must be a list of strings"),
    ],
)
def test_anything_else_is_an_error_since_a_guess_could_allow_more(value: object, message: str) -> None:
    with pytest.raises(InvalidProfileError) as failed:
        parse_profile(value)  # type: ignore[arg-type]
    assert message in str(failed.value)


def test_hosts_are_names_with_ports() -> None:
    profile = parse_profile({"hosts": ["API.example", "*.cdn.example:8443", "[::1]:80", "10.0.0.7:5432"]})
    assert profile is not None
    assert profile.hosts == ("api.example:443", "*.cdn.example:8443", "[::1]:80", "10.0.0.7:5432")
    allowed = [("api.example", 443), ("API.EXAMPLE.", 443), ("a.cdn.example", 8443), ("::1", 80), ("10.0.0.7", 5432)]
    refused = [
        *(("api.example", 80), ("x.api.example", 443), ("cdn.example", 8443), ("evilcdn.example", 8443)),
        *(("::1", 443), ("10.0.0.8", 5432), ("", 443)),
    ]
    assert all(profile.allows_host(*target) for target in allowed)
    assert not any(profile.allows_host(*target) for target in refused)
    assert not profile.reaches_all


def test_a_profile_says_in_one_line_what_it_allows() -> None:
    assert ServerProfile().describe() == (
        "standard: reads the system and the workspace, not your home; writes to the workspace and a home of its own; "
        "reaches any host"
    )
    strict = parse_profile(
        {"profile": "strict", "read": ["~/x"], "write": ["out"], "hosts": ["a.example"], "env": ["A"]}
    )
    assert strict is not None
    assert strict.describe() == (
        "strict: reads system programs, its own package and the workspace; writes to a home of its own; "
        "also reads ~/x; also writes out; inherits A; reaches a.example:443"
    )
    assert ServerProfile(name="strict").describe().endswith("; no network")
    limited = parse_profile({"limits": {"memory": "2048M", "processes": 64, "disk": "8G"}})
    assert limited is not None
    assert limited.describe().endswith("; reaches any host; uses at most 2G memory, 64 processes")
    assert ServerProfile(hosts=("*",), name="strict").reaches_all
