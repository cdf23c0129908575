"""A scripted model behind the streaming Chat Completions protocol.

The demo uses it in place of a real model. Each request receives the next step of the script.
"""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def chunks(step):
    """Yield one step as the deltas of a stream: text, or tool calls."""
    if isinstance(step, str):
        for word in step.split(" "):
            yield {"content": f"{word} "}
        return
    for index, (name, arguments) in enumerate(step):
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": index, "id": f"call-{index}", "type": "function", "function": function}
        yield {"tool_calls": [call]}


@contextmanager
def scripted_model(*script):
    """Serve a model on loopback, and yield its URL."""
    steps = iter(script)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]}).encode()
            self.send_response(200 if self.path.endswith("/models") else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            step = next(steps, "The script has ended.")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            reason = "stop" if isinstance(step, str) else "tool_calls"
            for delta in chunks(step):
                self.write(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
            self.write(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])
            tokens = {"prompt_tokens": len(body) // 4, "completion_tokens": len(json.dumps(step)) // 4}
            self.write(choices=[], usage={**tokens, "total_tokens": sum(tokens.values())})
            self.wfile.write(b"data: [DONE]\n\n")

        def write(self, **fields):
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "scripted-model", **fields}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

        def log_message(self, format, *args):
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
