"""Package managers, each with the subcommands that may download a program first."""

from __future__ import annotations

import pytest

from indusagi.interop.protocol_bridge.client.start import PackageManager, find_package_manager

RUNS = {
    **dict.fromkeys(("npx", "pnpx", "bunx", "uvx", "dnx", "jbang", "nix-shell"), ("",)),
    "npm": ("exec", "x", "init", "create", "run", "run-script", "start"),
    **dict.fromkeys(("pnpm", "yarn"), ("dlx", "exec", "run", "create")),
    "bun": ("x", "run"),
    "uv": ("run", "tool", "x"),
    "deno": ("run", "x", "task", "serve"),
    **dict.fromkeys(("docker", "podman", "nerdctl", "finch"), ("run", "compose", "container")),
    "cargo": ("run", "install", "binstall"),
    "dotnet": ("run", "tool", "dnx"),
    "nix": ("run", "shell", "develop"),
    "pixi": ("run", "exec", "x"),
    **dict.fromkeys(("pipx", "go", "conda", "mamba", "micromamba", "poetry", "pdm", "hatch", "rye"), ("run",)),
}


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in RUNS.items() for word in words])
def test_each_subcommand_may_download(name: str, word: str) -> None:
    is_outside = name in {"docker", "podman", "nerdctl", "finch"}
    found = find_package_manager(name, [word, "thing"] if word else ["thing"])
    assert found == PackageManager(name, outside=is_outside)


@pytest.mark.parametrize("name", sorted({name for name, words in RUNS.items() if words != ("",)} - {"yarn", "deno"}))
def test_other_subcommands_download_nothing(name: str) -> None:
    assert find_package_manager(name, ["--version"]) is None
