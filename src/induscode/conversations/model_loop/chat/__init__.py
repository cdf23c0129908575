"""Client for the Chat Completions API (https://platform.openai.com/docs/api-reference/chat).

OpenAI, compatible providers and local servers speak it. The `openai` package does the same and more, but importing it
would add nearly the import time of the whole model loop to every start: docs/decisions/0040-chat-client.md.
"""

from induscode.conversations.model_loop.chat.model import ChatModel as ChatModel
