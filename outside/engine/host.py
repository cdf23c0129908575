"""Process of the local model: the HTTP server of llama.cpp on a loopback port, until standard input ends.

Started by `outside.engine.server` as a script. It reads one line of JSON, loads the
weights, and writes one line with its address. The key comes with that line: arguments and variables of a process can
be read by others, and without a key every user of the machine could use the port.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Serve the weights that the first line of standard input names."""
    line = os.dup(1)
    os.dup2(2, 1)  # what llama.cpp prints is no line of ours
    xllamacpp: Any = import_module("xllamacpp")  # an optional dependency, after standard output is out of its reach
    settings = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["name"]}
    params.n_ctx = settings["context_window"]
    params.n_parallel = 1  # the whole context window for one conversation
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.ui = False
    params.endpoint_slots = False
    params.use_jinja = True
    params.chat_template = settings["chat_template"]
    params.n_predict = settings["context_window"] // 4  # a small model that repeats itself is cut off
    # Calls of tools are read from the answer: the most probable one is wanted.
    params.sampling.temp = 0.0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    # Threads that wait for each other sleep: on a busy machine, spinning takes the time that the others need.
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    server = xllamacpp.Server(params)
    os.write(line, json.dumps({"address": server.listening_address}).encode("ascii") + b"\n")
    while sys.stdin.read(4096):
        pass
    os._exit(0)  # the threads of the server have nothing to save


if __name__ == "__main__":
    main()
