from induscode.toolbox import open_deck as open_deck
from induscode.toolbox import open_deck_sync as open_deck_sync

DISTRIBUTION: str
