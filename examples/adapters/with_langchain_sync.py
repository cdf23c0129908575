"""An agent of LangChain without an event loop, with the tools of a configuration file."""

from langchain.agents import create_agent

from indusagi.adapters.langchain import to_langchain
from induscode import open_deck_sync


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


with open_deck_sync("examples/adapters/servers.json", gate=ask) as box:
    agent = create_agent("openai:gpt-5.1", to_langchain(box))
    result = agent.invoke({"messages": "Note that we need bread."})
    print(result["messages"][-1].text)
