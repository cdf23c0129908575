"""Client libraries: their objects as plain JSON, and what to install where one is missing."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast, runtime_checkable


@runtime_checkable
class _PydanticModel(Protocol):
    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]: ...


def to_plain_object(value: Any) -> dict[str, Any]:
    """Return an object of a client library (a pydantic model) or a mapping as a dictionary, as it was received.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if isinstance(value, _PydanticModel):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"neither a JSON object nor a response of a client library: {type(value).__name__}")


@contextmanager
def explain_missing(distribution: str) -> Generator[None]:
    """Name the package to install where the library of an adapter is missing.

    Raises:
        ImportError: It is missing.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise ImportError(f"this adapter needs {distribution}: pip install {distribution}", name=exc.name) from exc
