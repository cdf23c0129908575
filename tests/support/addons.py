"""Addons for tests: files of a project with or without consent, and installed distributions."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import TYPE_CHECKING

from induscode.addons.loader import AddonConsentStore, digest_content

if TYPE_CHECKING:
    from pathlib import Path

IMPORTS = """\
import json, os, time
from indusagi.capabilities import ToolSpec, define_tool
from indusagi.runtime import ToolResult
from induscode.addons import *
"""


def build_source(hooks: str = "", options: str = "interceptors=[Hooks()]") -> str:
    """Write an addon whose interceptor has these methods."""
    body = indent(dedent(hooks).strip() or "pass", "    ")
    return f"{IMPORTS}\nclass Hooks(Interceptor):\n{body}\n\ndef addon(context):\n    return Addon({options})\n"


def add_project_addon(cwd: Path, name: str, source: str, *, trusted: bool = True) -> Path:
    """Write an addon into a project, and consent to it."""
    path = cwd / ".indusvx" / "addons" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    if trusted:
        AddonConsentStore().approve(str(path), digest_content(path.read_bytes()))
    return path


def install_addon(folder: Path, distribution: str, name: str, source: str, version: str = "1.0") -> str:
    """Install a distribution with one addon into a folder, and return the folder for PYTHONPATH."""
    module = f"{distribution.replace('-', '_')}_{name.replace('-', '_')}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    table = info / "entry_points.txt"
    known = table.read_text() if table.exists() else "[induscode.addons]\n"
    table.write_text(f"{known}{name} = {module}:addon\n")
    return str(folder)


TAG = """
def before(self, call):
    return Replace({{**call.arguments, "text": call.arguments["text"] + " {0}"}}) if "text" in call.arguments else None
def after(self, call, result):
    return annotate(result, "after {0}")
"""
"""Marks arguments named `text`, and results."""
