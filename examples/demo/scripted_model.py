"""A scripted model behind the streaming Chat Completions protocol.

The demo uses it in place of a real model. Each request receives the next step of the script and is
recorded, so that the demo can show what the model received.
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
    """Serve a model on loopback; yield its URL and the list of the requests it received."""
    requests = []
    steps = iter(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            step = next(steps, "The script has ended.")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            reason = "stop" if isinstance(step, str) else "tool_calls"
            for delta in chunks(step):
                self.write({"index": 0, "delta": delta, "finish_reason": None})
            self.write({"index": 0, "delta": {}, "finish_reason": reason})
            self.wfile.write(b"data: [DONE]\n\n")

        def write(self, choice):
            body = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "script"}
            self.wfile.write(b"data: " + json.dumps({**body, "choices": [choice]}).encode() + b"\n\n")

        def log_message(self, format, *args):
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
