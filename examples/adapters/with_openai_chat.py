"""An agent on the Chat Completions API without an event loop, with the tools of a configuration file."""

from openai import OpenAI

from indusagi.adapters.openai import to_openai
from induscode import open_deck_sync


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


messages = [{"role": "user", "content": "Note that we need bread."}]
with open_deck_sync("examples/adapters/servers.json", gate=ask) as box, OpenAI() as client:
    tools = to_openai(box, api="chat")
    while more := tools.run_sync(
        response := client.chat.completions.create(model="gpt-5.1", messages=messages, tools=tools.definitions)
    ):
        messages += more
    print(response.choices[0].message.content)
