"""Faults of connectors."""

from __future__ import annotations

from indusagi.core.faults import CoreError


class ConnectorFault(CoreError):
    """A connector that cannot be added, read or used; the message names the remedy."""


class DocumentFault(ConnectorFault):
    """An OpenAPI document that cannot be used, or a part of one."""
