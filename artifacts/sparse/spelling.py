"""The words of a corpus as they are spelt in it: corrections of words that it lacks, and completions of beginnings.

An index whose vocabulary has words has their spellings in a field of its own, in lower case and not stemmed. Lucene's
fuzzy and sorted terms find them.
"""

from collections.abc import Sequence
from typing import Final

from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.java_bytes import pack_text, pack_texts, unpack_counts, unpack_texts
from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.artifacts.sparse.vocabulary import Language, word_analyzer

MIN_WORD: Final = 3
"""Letters of a word that is corrected; shorter ones are like too many others."""

MAX_WORD: Final = 40
"""Letters of the longest word that is corrected; what is near a longer one takes too long to find."""

MIN_BEGINNING: Final = 2
"""Letters of a beginning that is completed."""


class Spelling:
    """The spellings of an open index. Any number of threads may use it at once; the index is closed elsewhere."""

    def __init__(self, index: ImpactIndex, language: Language = "english") -> None:
        """`language` is that of the vocabulary's words."""
        self._index = index
        self._analyzer = word_analyzer(language)
        self._java = java_class("lightretriever.Spellings")

    @property
    def available(self) -> bool:
        """True if the index has spellings. One whose vocabulary has no words has none."""
        return bool(java_call(self._java.areIn, self._index.handle))

    def corrections(self, words: Sequence[str]) -> list[str]:
        """For each word, in lower case, the word of the corpus that is most like it; "" where the corpus has the word
        in any form, and where no word is near. A word that the corpus has counts as a misspelling where one letter
        makes it a word of 200 times as many documents, unless it is the id of a document.

        Words of 4 and 5 letters may differ in one letter, longer ones in two, but not in the first. Two neighbours that
        are swapped count as one. Among equals, the word of most documents is taken. A word of three letters is
        corrected only to one that has two neighbours swapped or one letter more, that five documents and one in 200
        have, and ten times as many as any other such word. Raises ValueError for a word that is no Unicode.
        """
        if not words:
            return []
        asked = (word if MIN_WORD <= len(word) <= MAX_WORD else "" for word in words)
        packed = pack_texts("word", asked)
        return unpack_texts(java_call(self._java.corrections, self._index.handle, self._analyzer, packed))

    def forms(self, words: Sequence[str]) -> list[list[str]]:
        """For each word, in lower case, the words of the corpus that have the same term."""
        packed = pack_texts("word", words)
        forms = java_call(self._java.forms, self._index.handle, self._analyzer, packed)
        return [text.split() for text in unpack_texts(forms)]

    def completions(self, beginning: str, most: int) -> list[tuple[str, int]]:
        """The words that begin with a text in lower case, of at least two letters, the text itself included if it is a
        word, each with the number of documents that have it: the most frequent `most`, ties by word."""
        if len(beginning) < MIN_BEGINNING:
            return []
        packed = pack_text("beginning", beginning)
        return unpack_counts(java_call(self._java.completions, self._index.handle, packed, most))
