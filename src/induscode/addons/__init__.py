"""Addons: cards and interceptors from installed distributions and from files of the project.

`from induscode.addons import Addon, Deny, Interceptor` is all that an addon needs.
"""

from induscode.addons.contract import (
    Addon,
    AddonContext,
    AddonError,
    Allow,
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
    "Deny",
    "InterceptedCall",
    "Interceptor",
    "InterceptorDecision",
    "Replace",
    "annotate",
    "replace_texts",
]
