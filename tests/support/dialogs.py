"""A dialog with scripted answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from induscode.cli.dialog import Reply

if TYPE_CHECKING:
    from induscode.cli.dialog import Question


@dataclass
class ScriptedDialog:
    """Gives the replies of a script, and records the questions; at the end of the script it cancels.

    An invalid answer to a question fails the test, except for one that the question's `check` refuses: then the next
    reply is taken, as a person would try again.
    """

    script: list[Reply] = field(default_factory=list[Reply])
    questions: list[Question] = field(default_factory=list["Question"])
    problems: list[str] = field(default_factory=list[str])
    shown: list[str] = field(default_factory=list[str])

    async def ask(self, question: Question, /) -> Reply:
        """Record a question, and give the next reply."""
        self.questions.append(question)
        assert all(line.isprintable() for line in (question.title, *question.lines)), question
        while self.script:
            reply = self.script.pop(0)
            if reply.cancelled:
                return reply
            if question.choices:
                assert reply.key in {choice.key for choice in question.choices}, (reply, question)
                return reply
            problem = None if question.check is None else question.check(reply.text)
            if problem is None:
                return reply
            self.problems.append(problem)
        return Reply(cancelled=True)

    def show(self, text: str, /) -> None:
        """Record a line."""
        self.shown.append(text)


def scripted(*answers: str | Reply) -> ScriptedDialog:
    """Build a dialog: a text is the key of a choice and what follows it, or free text after `>`."""
    replies: list[Reply] = []
    for answer in answers:
        if isinstance(answer, Reply):
            replies.append(answer)
        elif answer.startswith(">"):
            replies.append(Reply(text=answer[1:]))
        else:
            key, _, text = answer.partition(" ")
            replies.append(Reply(key, text))
    return ScriptedDialog(replies)
