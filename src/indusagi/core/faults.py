"""The root of every error this project raises, and the drawing of the whole tree.

CoreError                  anything of ours that a caller may want to catch
├── NotJson                a value that JSON cannot carry, with the place where it stands
├── InvalidTool            a tool that cannot work as it is defined
├── ProtocolFault          anything that goes wrong between us and a server; branch on its kind
├── DeckFault              something the deck cannot do
│   ├── UnknownCapability  no card has this id
│   ├── BuildFailed        a card could not be built
│   ├── BridgeFault        an MCP configuration, a name or a lock that cannot be used
│   └── BackendFault       a handle of the host that cannot be used
├── BadPrompt              nothing to ask, or too much of it
├── BadRule                a rule of permission that cannot be read
├── NoModel                no model to ask, or none of that name
├── BadAddress             an address at which no model can be
├── NoConversation         no conversation to go on with
└── Circles                a model that makes the same call again and again

A class is added to the drawing in the commit that adds the class; a test compares the two.
What is skipped but does not stop the work is no error: it is a `Note` (see `core.notes`).
"""


class CoreError(Exception):
    """Catch this to catch every error that the project itself raises."""
