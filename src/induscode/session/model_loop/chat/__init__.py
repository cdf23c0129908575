"""A client of the Chat Completions API, which OpenAI, its followers and local servers speak.

https://platform.openai.com/docs/api-reference/chat. The `openai` package does the same and more,
but takes nearly as long to import as the whole model loop, which a program that answers one
question pays for at every start: docs/decisions/0040-chat-client.md.
"""

from induscode.session.model_loop.chat.model import ChatModel as ChatModel
