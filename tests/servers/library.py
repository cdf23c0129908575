"""A server with resources, templates, prompts, completion, updates, log messages, roots and an app.

Options: those of `peer`, `--name NAME` (in its texts), `--skills yes`, `--state FILE`: a JSON object that changes
what it lists: `app` (the HTML), `prompt` (the description of `greet`), `instructions`, `extra` (one more resource),
`skill` (the text that the digest is of), `served` (the text of the skill that is sent).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer import STAMP, Call, Peer, RpcError, split, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from peer import Json

APP = "ui://shelf/app.html"
NOTE = "note:///today"
SKILL = "skill://shelve/SKILL.md"
SKILL_TEXT = "---\nname: shelve\ndescription: Shelve books\n---\nBy author.\n"
ROW: Json = {"uri": NOTE, "name": "today", "title": "Today", "mimeType": "text/plain", "size": 12}
POLICY: Json = {"csp": {"connectDomains": ["https://api.example.org"]}, "permissions": {"camera": {}}}


class Library(Peer):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options.get("name", "library"), options)
        self.state_file = options.get("state", "")
        self.watched: set[str] = set()
        self.level = "warning"
        self.capabilities |= {
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }
        ui: Json = {"ui": {"resourceUri": APP, "visibility": ["model"]}, "ui/resourceUri": APP}
        self.add("show", self.show, _meta=ui)
        self.add("touch", self.touch, {"uri": {"type": "string"}, "part": {"type": "string"}})
        self.add("log", self.say, {"text": {"type": "string"}})
        self.add("slow_log", self.say_slowly, {"text": {"type": "string"}}, thread=True)
        self.add("relist", self.relist)
        self.add("work", self.work, {"text": {"type": "string"}}, thread=True)
        if "skills" in options:
            self.capabilities |= {"extensions": {"io.modelcontextprotocol/skills": {}}}
            self.methods |= {
                "skills/list": lambda call: self.page(call, "skills", [self.skill()]),
                "skills/get": self.get_skill,
            }
        self.methods |= {
            "resources/list": lambda call: self.page(call, "resources", self.resources()),
            "resources/templates/list": lambda call: self.page(call, "resourceTemplates", self.templates()),
            "resources/read": self.read,
            "resources/subscribe": self.subscribe,
            "resources/unsubscribe": self.unsubscribe,
            "prompts/list": lambda call: self.page(call, "prompts", self.prompts()),
            "prompts/get": self.get,
            "completion/complete": self.complete,
            "logging/setLevel": self.set_level,
        }

    def state(self) -> Json:
        try:
            with open(self.state_file, encoding="utf-8") as file:
                return json.load(file)
        except OSError:
            return {}

    def initialize(self, call: Call) -> Json:
        return {**super().initialize(call), "instructions": self.instructions()}

    def discover(self, call: Call) -> Json:
        return {**super().discover(call), "instructions": self.instructions()}

    def instructions(self) -> str:
        return self.state().get("instructions", f"Ask {self.info['name']} about books.\nIt knows many.")

    # -- lists ------------------------------------------------------------------------------

    def resources(self) -> list[Json]:
        app: Json = {"uri": APP, "name": "app", "mimeType": "text/html;profile=mcp-app", "_meta": {"ui": POLICY}}
        extra = self.state().get("extra")
        return [ROW, app, *([{"uri": extra, "name": "extra"}] if extra else [])]

    def templates(self) -> list[Json]:
        return [{"uriTemplate": "book://{id}/text", "name": "book", "description": "The text of a book"}]

    def prompts(self) -> list[Json]:
        about = self.state().get("prompt", "Greet a reader")
        return [{"name": "greet", "description": about, "arguments": [{"name": "who", "required": True}]}]

    def relist(self, call: Call) -> Json:
        """Say that every list has changed."""
        for subject in ("resources", "prompts", "tools"):
            if self.initialized:
                self.notify(f"notifications/{subject}/list_changed")
            for identity, wanted in list(self.listeners.items()):
                if wanted.get(f"{subject}ListChanged"):
                    meta = {STAMP + "subscriptionId": identity}
                    self.notify(f"notifications/{subject}/list_changed", {"_meta": meta})
        return text("done")

    # -- content ----------------------------------------------------------------------------

    def read(self, call: Call) -> Json:
        uri = str(call.params["uri"])
        if uri.lower() in {APP, "page:///app"}:
            html = self.state().get("app", "<p>shelf</p>")
            return {"contents": [{"uri": uri, "mimeType": "text/html;profile=mcp-app", "text": html}]}
        if uri == SKILL:
            return {"contents": [{"uri": uri, "text": self.state().get("served", SKILL_TEXT)}]}
        if uri == NOTE:
            return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"read by {self.info['name']}"}]}
        if uri.startswith("book://") and uri.endswith("/text"):
            return {"contents": [{"uri": uri, "text": f"Book {uri[7:-5]} of {self.info['name']}."}]}
        raise RpcError(-32602 if call.modern else -32002, "Resource not found", {"uri": uri})

    def skill(self) -> Json:
        data = self.state().get("skill", SKILL_TEXT).encode()
        file = {"uri": SKILL, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
        return {"uri": SKILL, "frontmatter": {"name": "shelve", "description": "Shelve books"}, "resources": [file]}

    def get_skill(self, call: Call) -> Json:
        if call.params["uri"] != SKILL:
            raise RpcError(-32602, "there is no such skill")
        return {"skill": self.skill()}

    def get(self, call: Call) -> Json:
        if call.params["name"] != "greet":
            raise RpcError(-32602, "there is no such prompt")
        said = f"{self.info['name']} greets {call.arguments.get('who')}"
        link: Json = {"type": "resource", "resource": {"uri": NOTE, "text": "note"}}
        messages = [{"role": "user", "content": {"type": "text", "text": said}}, {"role": "user", "content": link}]
        return {"description": "A greeting", "messages": messages}

    def complete(self, call: Call) -> Json:
        ref = call.params["ref"]
        values = [f"{ref.get('name', ref.get('uri'))}:{call.params['argument']['value']}{end}" for end in "ab"]
        return {"completion": {"values": values, "total": 2, "hasMore": False}}

    def show(self, call: Call) -> Json:
        """Show the shelf."""
        link: Json = {"type": "resource_link", "uri": NOTE, "name": "today"}
        inner: Json = {"type": "resource", "resource": {"uri": APP, "text": "x"}}
        return {**text("shelf"), "content": [link, inner], "_meta": {"ui": {"resourceUri": APP}, "vendor/x": 1}}

    # -- updates and log messages -----------------------------------------------------------

    def listen(self, call: Call) -> None:
        wanted = call.params["notifications"]
        if "resourceSubscriptions" in wanted:
            known = [uri for uri in wanted["resourceSubscriptions"] if uri in {NOTE, APP}]
            call.params["notifications"] = {**wanted, "resourceSubscriptions": known}
        super().listen(call)

    def subscribe(self, call: Call) -> Json:
        if call.params["uri"] not in {NOTE, APP}:
            raise RpcError(-32002, "Resource not found", {"uri": call.params["uri"]})
        self.watched.add(str(call.params["uri"]))
        return {}

    def unsubscribe(self, call: Call) -> Json:
        self.watched.discard(str(call.params["uri"]))
        return {}

    def touch(self, call: Call) -> Json:
        """Report an update of a resource, or of a part of it, if it is watched."""
        uri = str(call.arguments.get("uri", NOTE))
        changed = uri + str(call.arguments.get("part", ""))
        if uri in self.watched:
            self.notify("notifications/resources/updated", {"uri": changed})
        for identity, wanted in list(self.listeners.items()):
            if uri in (wanted.get("resourceSubscriptions") or ()):
                meta = {STAMP + "subscriptionId": identity}
                self.notify("notifications/resources/updated", {"uri": changed, "_meta": meta})
        return text("touched" if uri in self.watched or self.listeners else "not watched")

    def set_level(self, call: Call) -> Json:
        self.level = str(call.params["level"])
        return {}

    def say(self, call: Call) -> Json:
        """Log a text."""
        if not call.modern or STAMP + "logLevel" in call.meta:
            said = {"level": "info", "logger": "shelf", "data": call.arguments.get("text")}
            self.notify("notifications/message", said)
        return text("logged")

    def say_slowly(self, call: Call) -> Json:
        """Log a text, some time later."""
        call.cancelled.wait(0.05)
        return self.say(call)

    def work(self, call: Call) -> Json:
        """Report progress and log, both with the text, and return it."""
        given = str(call.arguments.get("text"))
        call.progress(1, 2, given)
        self.say(call)
        call.progress(2, 2, given)
        return text(given)


def main() -> None:
    Library(split(sys.argv[1:])[1]).serve()


main()
