"""Similarity of texts by their longest common subsequence.

The length of the subsequence is computed with one long integer per text, a bit for each character: H. Hyyrö,
"Bit-parallel LCS-length computation revisited" (2004).
"""

from __future__ import annotations

from collections.abc import Iterable


class TextSimilarity:
    """Compares one text with others."""

    def __init__(self, text: str) -> None:
        self._length = len(text)
        self._places: dict[str, int] = {}
        for index, character in enumerate(text):
            self._places[character] = self._places.get(character, 0) | 1 << index

    def compare(self, other: str, at_least: float = 0.0) -> float:
        """Return the similarity in per cent: 100 for equal texts; 0 if it is below `at_least`."""
        total = self._length + len(other)
        # The subsequence is at most as long as the shorter text.
        if not total or 200.0 * min(self._length, len(other)) / total < at_least:
            return 0.0
        find = self._places.get
        unmatched = (1 << self._length) - 1
        for character in other:
            places = find(character)
            if places is not None:
                matched = unmatched & places
                unmatched = (unmatched + matched) | (unmatched - matched)
        common = self._length - (unmatched & (1 << self._length) - 1).bit_count()
        similarity = 200.0 * common / total
        return similarity if similarity >= at_least else 0.0

    def find_closest(self, others: Iterable[str], limit: int, at_least: float) -> list[tuple[float, str]]:
        """Return the `limit` most similar of several texts with their similarity, the best first."""
        best: list[tuple[float, str]] = []
        for other in others:
            # A text must be better than the last one of a full list.
            threshold = best[-1][0] if len(best) == limit else at_least
            similarity = self.compare(other, threshold)
            if similarity >= at_least and (len(best) < limit or similarity > threshold):
                best.append((similarity, other))
                best.sort(key=lambda pair: -pair[0])
                del best[limit:]
        return best
