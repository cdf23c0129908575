"""Adapters: a toolbox in another library's types, and that library's calls back to the toolbox.

Each library has one module with one function: `to_openai`, `to_anthropic`, `to_langchain`, `to_openai_agents`,
`to_pydantic_ai`, `to_mcp`. A module only needs its library, and this package needs none of them.
"""
