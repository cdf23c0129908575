"""App cards: the deck's tools in addition to the framework's native ones."""

from __future__ import annotations

from collections.abc import Sequence

from induscode.deck.cards.bg_process import daemon_card as daemon_card
from induscode.deck.cards.memory import memory_card as memory_card
from induscode.deck.cards.plan import enter_plan_mode_card as enter_plan_mode_card
from induscode.deck.cards.plan import exit_plan_mode_card as exit_plan_mode_card
from induscode.deck.cards.saas import saas_card as saas_card
from induscode.deck.cards.task import task_card as task_card
from induscode.deck.cards.todo import todo_card as todo_card
from induscode.deck.contract import CapabilityCard

__all__ = [
    "daemon_card",
    "memory_card",
    "enter_plan_mode_card",
    "exit_plan_mode_card",
    "saas_card",
    "task_card",
    "todo_card",
    "app_novel_cards",
]


def app_novel_cards() -> Sequence[CapabilityCard]:
    """Return the seven rows in catalog order."""
    return (
        todo_card(),
        daemon_card(),
        task_card(),
        saas_card(),
        memory_card(),
        enter_plan_mode_card(),
        exit_plan_mode_card(),
    )
