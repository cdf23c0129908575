"""JSON Schema of remote tools: normalization, and the view that a model receives."""

from indusagi.interop.protocol_bridge.schema.normalize import normalize_schema

__all__ = ["normalize_schema"]
