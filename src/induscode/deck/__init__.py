"""The capability deck: all tools a model may call, in one place."""

from induscode.deck.contract import Capability as Capability
from induscode.deck.contract import CapabilityCard as CapabilityCard
from induscode.deck.contract import CapabilityId as CapabilityId
from induscode.deck.contract import Card as Card
from induscode.deck.contract import DeckContext as DeckContext
from induscode.deck.contract import DeckFault as DeckFault
from induscode.deck.contract import DeckFramework as DeckFramework
from induscode.deck.contract import DeckResult as DeckResult
from induscode.deck.contract import Profile as Profile
from induscode.deck.contract import capability_id as capability_id

__all__ = [
    "Capability",
    "CapabilityCard",
    "CapabilityId",
    "Card",
    "DeckContext",
    "DeckFault",
    "DeckFramework",
    "DeckResult",
    "Profile",
    "capability_id",
]
