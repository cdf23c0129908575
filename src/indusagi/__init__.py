"""The framework: the vocabulary of tools, the kernel that runs them, and the bridges to others.

Import from the subsystem that owns a name: `indusagi.core`, `indusagi.runtime`,
`indusagi.capabilities`. This module holds the version and nothing else, so that asking for the
version loads nothing.
"""

__version__ = "0.1.0"
