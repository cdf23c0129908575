"""Packages of the same names from elsewhere: said in one line, at the start and by doctor."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.scripts import ROOT, unmeasured

from induscode import __main__ as cli
from induscode.commands.mcp.doctor import check_installation

_START = "import sys; sys.argv = ['indus', *sys.argv[1:]]; from induscode.__main__ import main; "


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make a folder of packages in which ours are installed as files."""
    for package in ("indusagi", "induscode"):
        shutil.copytree(ROOT / "src" / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def _indus(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{_START}sys.exit(main())", *words],
        cwd=site,  # which python -c puts first
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=unmeasured(),
    )


@pytest.mark.process
@pytest.mark.parametrize("package", ["indusagi", "induscode"])
def test_finding_b15_a_package_that_was_replaced_is_said_in_one_line(package: str, site: Path) -> None:
    (site / package / "__init__.py").write_text('__version__ = "9"\n', encoding="utf-8")
    (site / "induscode" / "cli" / "terminal.py").unlink()
    for words in (["--version"], ["tools"], []):
        done = _indus(site, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"indus: the package {package!r} is not the one of indus-deck")
        assert "pip uninstall indusagi induscode indus-deck" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.process
@pytest.mark.parametrize("name", ["indusagi-0.3.0.dist-info", "induscode-1.0.egg-info"])
def test_finding_b15_a_distribution_beside_ours_is_said_at_the_start(name: str, site: Path) -> None:
    (site / name).mkdir()
    done = _indus(site, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("indus ")
    assert f"{name.partition('-')[0]} of PyPI is installed beside indus-deck" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_is_said_of_this_installation() -> None:
    assert cli.find_replaced_package() is None
    assert cli.find_other_distributions() == []


def _record(site: Path, name: str, version: str, *files: str) -> None:
    """Write the metadata of a distribution with these files."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines: list[str] = []
    for file in files:
        digest = hashlib.sha256((site / file).read_bytes()).digest()
        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        lines.append(f"{file},sha256={text},1\n")
    (info / "RECORD").write_text("".join(lines), encoding="utf-8")


def test_finding_b15_doctor_compares_the_files_with_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / "indusagi").mkdir(exist_ok=True)
        (tmp_path / "indusagi" / f"{name}.py").write_text(name, encoding="utf-8")
    files = [f"indusagi/{name}.py" for name in ("a", "b", "c", "d", "e")]
    _record(tmp_path, "indus-deck", "9", *files)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert check_installation() == []
    _record(tmp_path, "induscode", "2.0")
    for name in ("a", "b", "c"):
        (tmp_path / "indusagi" / f"{name}.py").write_text("other", encoding="utf-8")
    (tmp_path / "indusagi" / "e.py").unlink()
    rival, changed = (str(note) for note in check_installation())
    assert rival.startswith("distribution induscode 2.0: has files of the same names as ours")
    assert "4 of its files are not as they were installed: indusagi/a.py" in changed
    assert "indusagi/d.py" not in changed
