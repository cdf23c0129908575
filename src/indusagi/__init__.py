"""The framework: the vocabulary of tools, the kernel that runs them, and the bridges to others.

Import from the subsystem that owns a name: `indusagi.core`, `indusagi.runtime`,
`indusagi.capabilities`. This module holds the version and the name of the distribution, so that
asking for them loads nothing.
"""

DISTRIBUTION = "indus-deck"
"""Which distribution this package is from; another one on PyPI has a package of the same name."""
__version__ = "0.3.0"
