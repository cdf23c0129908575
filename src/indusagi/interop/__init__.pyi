from indusagi.interop.protocol_bridge import *  # noqa: F403 — the one list of names is there
