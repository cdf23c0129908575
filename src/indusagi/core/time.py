"""The time of the machine, in the spelling that callers of the framework import."""

from indusagi.core.clock import iso_utc as iso_utc
from indusagi.core.clock import now_ms as now_ms
