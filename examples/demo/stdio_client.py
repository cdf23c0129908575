"""A small MCP client without any library: it starts a server and calls its tools over stdio."""

import json
import subprocess
import time


class StdioClient:
    """A connection to a server that this client starts. Leave the block to end it."""

    def __init__(self, command, cwd, env):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            encoding="utf-8",
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._requests = 0

    def __enter__(self):
        client = {"name": "demo", "version": "1"}
        try:
            self.request("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=client)
            self._send({"method": "notifications/initialized"})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def request(self, method, **params):
        """Send a request, and wait for its result."""
        self._requests += 1
        self._send({"id": self._requests, "method": method, "params": params})
        for line in self._output:
            message = json.loads(line)
            if message.get("id") == self._requests and "method" not in message:
                if "error" in message:
                    raise ValueError(f"{method}: {message['error']}")
                return message["result"]
        raise EOFError("\n".join(("the server has ended:", *self.close())))

    def list_tools(self):
        return [tool["name"] for tool in self.request("tools/list")["tools"]]

    def time_call(self, tool, arguments):
        """Call a tool; return the milliseconds from the request to the result."""
        begin = time.perf_counter()
        result = self.request("tools/call", name=tool, arguments=arguments)
        duration = time.perf_counter() - begin
        if result.get("isError"):
            raise ValueError(f"{tool}: {result['content']}")
        return duration * 1000

    def close(self) -> list[str]:
        """End the server as a client does, by closing its input; return the lines of its standard error."""
        if self._process.returncode is not None:
            return []
        try:
            _, errors = self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, errors = self._process.communicate()
        return errors.splitlines()

    def _send(self, message):
        self._input.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._input.flush()
