"""The program behind `make demo`: a model, three servers (one is broken), every tool in one deck.

The model is scripted, so no key and no network are needed. Everything runs on this machine, in a
temporary directory. The `indus` program is the real one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripted_model import scripted_model

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
INDUS = Path(sys.executable).with_name("indus")
SERVERS = {
    "notes": {"command": sys.executable, "args": [str(EXAMPLES / "notes_server.py")]},
    "gallery": {"command": sys.executable, "args": [str(HERE / "gallery_server.py")]},
    "broken": {"command": sys.executable, "args": ["-c", "import sys; sys.exit('cannot open the database')"]},
}
SCRIPT = (
    [("read", {"path": "todo.txt"}), ("gallery__show", {})],
    [("notes__add", {"text": "water the plants"})],
    "The list has two items, the gallery has twenty rooms, and the note is saved.",
)


def indus(folder, first, second, *more):
    """Run the program as a user would, with its own home directory."""
    home = str(folder / "home")
    environment = {"HOME": home, "PATH": os.environ["PATH"], "NO_COLOR": "1"}
    print(f"\n$ indus {first} {second!r}{' …' if more else ''}")
    done = subprocess.run(
        [INDUS, first, second, *more], cwd=folder / "work", env=environment, text=True, capture_output=True
    )
    for line in (done.stderr + done.stdout).rstrip().splitlines():
        print(line.replace(str(folder), "…"))
    return done.returncode


def print_received(requests):
    """Print what the model received in the results of its tools."""
    parts = [part for message in requests[-1]["messages"] for part in parts_of(message["content"])]
    texts = "\n".join(part["text"] for part in parts if part["type"] == "text")
    rooms = sum(f"room {number}: picture {number}" in texts for number in range(1, 21))
    pictures = sum(part["type"] == "image_url" for part in parts)
    print(f"\n# the model received: {rooms} lines, {pictures} image, ", end="")
    print(f"{texts.count('Do not touch.')} resource, {texts.count('water')} line of the file")


def count_servers():
    """Count the servers of this demo that are still running."""
    try:
        processes = subprocess.run(["ps", "-A", "-o", "args="], text=True, capture_output=True).stdout
    except OSError:
        return "unknown (ps is not installed)"
    return sum("_server.py" in line and str(EXAMPLES) in line for line in processes.splitlines())


def parts_of(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def main(folder):
    (folder / "work").mkdir()
    (folder / "home").mkdir()
    (folder / "work" / "todo.txt").write_text("water the plants\nfeed the cat\n", encoding="utf-8")
    (folder / "work" / "servers.json").write_text(json.dumps({"servers": SERVERS}), encoding="utf-8")
    question = "What is on my list, and what is in the gallery? Note the first item."
    with scripted_model(*SCRIPT) as (url, requests):
        code = indus(
            folder, "-p", question, "--mcp", "servers.json", "--allow", "gallery__*",
            "--allow", "notes__*", "--base-url", url, "--model", "script",
        )  # fmt: skip
        print_received(requests)
    timeline = indus(folder, "ledger", "timeline")
    print(f"\n# servers left running: {count_servers()}")
    return code or timeline


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(Path(place).resolve()))
