"""Addons: cards and interceptors from installed distributions and project files.

An addon only needs `from induscode.addons import Addon, Deny, Interceptor`.
"""

from induscode.addons.contract import (
    Addon,
    AddonContext,
    AddonError,
    Allow,
    Ask,
    Deny,
    InterceptedCall,
    Interceptor,
    InterceptorDecision,
    Replace,
    annotate,
    replace_texts,
)

__all__ = [
    "Addon",
    "AddonContext",
    "AddonError",
    "Allow",
    "Ask",
    "Deny",
    "InterceptedCall",
    "Interceptor",
    "InterceptorDecision",
    "Replace",
    "annotate",
    "replace_texts",
]
