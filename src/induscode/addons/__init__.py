"""Addons: cards and interceptors from installed distributions and project files.

An addon only needs `from induscode.addons import Addon, Deny, Interceptor`.
"""

from induscode.addons.contract import Addon as Addon
from induscode.addons.contract import AddonContext as AddonContext
from induscode.addons.contract import AddonError as AddonError
from induscode.addons.contract import Allow as Allow
from induscode.addons.contract import Deny as Deny
from induscode.addons.contract import InterceptedCall as InterceptedCall
from induscode.addons.contract import Interceptor as Interceptor
from induscode.addons.contract import InterceptorDecision as InterceptorDecision
from induscode.addons.contract import Replace as Replace
from induscode.addons.contract import annotate as annotate
from induscode.addons.contract import replace_texts as replace_texts
