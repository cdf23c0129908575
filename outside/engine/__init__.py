"""A small language model on this machine, served by llama.cpp, for `make demo-llm` and `make demo-search`."""
