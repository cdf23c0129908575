"""Adapters: a toolbox in the types of another library, and that library's calls back to the toolbox.

There is one module for each library, with one function: `to_openai`, `to_anthropic`, `to_langchain`,
`to_openai_agents`, `to_pydantic_ai`, `to_mcp`. A module needs its library only, and this package none of them.
"""
