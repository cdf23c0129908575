"""What `make demo` shows: a model, three servers (one is broken), and every tool in one deck.

The model is a script and everything runs on this machine, in a folder that is gone afterwards. The
program is the real one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripted_model import scripted_model

HERE = Path(__file__).resolve().parent
INDUS = Path(sys.executable).with_name("indus")
SERVERS = {
    "notes": {"command": sys.executable, "args": [str(HERE / "notes_server.py")]},
    "gallery": {"command": sys.executable, "args": [str(HERE / "gallery_server.py")]},
    "broken": {"command": sys.executable, "args": ["-c", "import sys; sys.exit('the database is not there')"]},
}
SCRIPT = (
    [("read", {"path": "todo.txt"}), ("gallery__show", {})],
    [("notes__add", {"text": "water the plants"})],
    "The list has two things, the gallery has twenty rooms, and the note is kept.",
)


def indus(folder, first, second, *more):
    """Run the program as a person would, with a home of its own."""
    home = str(folder / "home")
    environment = {"HOME": home, "PATH": os.environ["PATH"], "NO_COLOR": "1"}
    print(f"\n$ indus {first} {second!r}{' …' if more else ''}")
    done = subprocess.run(
        [INDUS, first, second, *more], cwd=folder / "work", env=environment, text=True, capture_output=True
    )
    for line in (done.stderr + done.stdout).rstrip().splitlines():
        print(line.replace(str(folder), "…"))
    return done.returncode


def reached(asked):
    """Say what has reached the model in the answers of its tools."""
    parts = [part for message in asked[-1]["messages"] for part in parts_of(message["content"])]
    texts = "\n".join(part["text"] for part in parts if part["type"] == "text")
    rooms = sum(f"room {number}: picture {number}" in texts for number in range(1, 21))
    pictures = sum(part["type"] == "image_url" for part in parts)
    print(f"\n# what reached the model: {rooms} lines, {pictures} picture, ", end="")
    print(f"{texts.count('Do not touch.')} resource, {texts.count('water')} line of the file")


def left_running():
    """Count the servers of this demo that are still there."""
    try:
        listed = subprocess.run(["ps", "-A", "-o", "args="], text=True, capture_output=True).stdout
    except OSError:
        return "unknown, there is no ps"
    return sum("_server.py" in line and str(HERE) in line for line in listed.splitlines())


def parts_of(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def main(folder):
    (folder / "work").mkdir()
    (folder / "home").mkdir()
    (folder / "work" / "todo.txt").write_text("water the plants\nfeed the cat\n", encoding="utf-8")
    (folder / "work" / "servers.json").write_text(json.dumps({"servers": SERVERS}), encoding="utf-8")
    question = "What is on my list, and what is in the gallery? Note the first thing."
    with scripted_model(*SCRIPT) as (address, asked):
        code = indus(
            folder, "-p", question, "--mcp", "servers.json", "--allow", "gallery__*",
            "--allow", "notes__*", "--base-url", address, "--model", "script",
        )  # fmt: skip
        reached(asked)
    timeline = indus(folder, "ledger", "timeline")
    print(f"\n# servers left running: {left_running()}")
    return code or timeline


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(Path(place).resolve()))
