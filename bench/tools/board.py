"""The shape of the scoreboard: items, how large their probes are, and what was found."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bench.row import CannotMeasure
from bench.tools.search import plant
from bench.tools.subject import OURS, Driver, Stuck

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from bench.tools.subject import Subject

MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much there is of everything; tests take little."""

    edit_lines: int = 20_000
    edit_rounds: int = 5
    output_bytes: int = 1_000 * MB
    file_bytes: int = 100 * MB
    tree_folders: int = 2_000
    """Of 20 files each."""
    ignore_trees: int = 1_000
    anchors: int = 2_000
    sessions: int = 200
    tries: int = 3
    """Of what is timed: the one that the rest of the machine disturbed least counts."""
    patience_s: float = 30.0
    """How long a single call is waited for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one probe of one subject."""

    ok: bool | None
    """None: it could not be measured, and the text says why."""
    text: str
    figures: Mapping[str, float] = field(default_factory=dict[str, float])


class Ground:
    """What the probes of one run share: a large tree, planted when it is first asked for."""

    def __init__(self, place: Path, sizes: Sizes) -> None:
        self.place = place
        self.sizes = sizes
        self._tree = place / "tree"

    def tree(self) -> Path:
        """Give the root of the tree."""
        if not self._tree.exists():
            self._tree.mkdir()
            plant(self._tree, self.sizes.tree_folders)
        return self._tree


@contextmanager
def ground(sizes: Sizes) -> Generator[Ground]:
    """Make room for a run, and leave nothing of it."""
    with tempfile.TemporaryDirectory(prefix="indus-bench-", ignore_cleanup_errors=True) as place:
        yield Ground(Path(place).resolve(), sizes)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a probe is given: whom to try, how much of it, and a folder of its own."""

    subject: Subject
    sizes: Sizes
    place: Path
    tree: Callable[[], Path]
    """Gives the tree that all probes share; they leave it as it is."""

    @property
    def tries(self) -> int:
        """How often to time something: noise is nothing beside what others take."""
        return self.sizes.tries if self.subject is OURS else 1

    @property
    def folder(self) -> Path:
        """The working directory of the sessions."""
        return self.place / "work"

    def driver(self, folder: Path | None = None, *, listen: bool = False) -> Driver:
        """Start the subject, in a folder of its own unless another is given."""
        return Driver(self.subject, folder or self.folder, self.place / "home", listen=listen)


Probe: TypeAlias = "Callable[[Scene], Finding]"


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the scoreboard."""

    name: str
    what: str
    limit: str
    """What ours must keep to, in words."""
    probe: Probe

    def find(self, subject: Subject, ground: Ground) -> Finding:
        """Probe a subject; a probe past its deadline has failed."""
        with tempfile.TemporaryDirectory(dir=ground.place, ignore_cleanup_errors=True) as place:
            scene = Scene(subject, ground.sizes, Path(place), ground.tree)
            scene.folder.mkdir()
            try:
                return self.probe(scene)
            except Stuck as exc:
                return Finding(ok=False, text=str(exc))
            except CannotMeasure as exc:
                return Finding(ok=None, text=f"not measured: {exc}")


def format_counts(cases: Mapping[str, bool]) -> Finding:
    """Say how many cases are right, and name the others."""
    failed = [name for name, right in cases.items() if not right]
    right = len(cases) - len(failed)
    text = f"{right} of {len(cases)}" + (f"; not: {', '.join(failed)}" if failed else "")
    return Finding(not failed, text, {"right": right, "total": len(cases)})


def seconds(value: float) -> str:
    """Show a duration."""
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"
