"""The root of every error this project raises, and the drawing of the whole tree.

CoreError                  anything of ours that a caller may want to catch
├── NotJson                a value that JSON cannot carry, with the place where it stands
└── InvalidTool            a tool whose definition cannot work, found when it is defined

A class is added to the drawing in the commit that adds the class; a test compares the two.
What is skipped but does not stop the work is no error: it is a `Note` (see `core.notes`).
"""


class CoreError(Exception):
    """Catch this to catch every error that the project itself raises."""
