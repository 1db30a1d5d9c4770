# Types of the extension module `fanrank.native._compiled`.
from collections.abc import Callable, Sequence

# text_binding.cpp

class Analysis:
    """Everything that one analyzer knows of one vocabulary. One writer at a time; `encode_queries` may run at any time.

    `stem` is one of ``none``, ``step_one``, ``nltk`` and ``martin``. `native/text.hpp` describes the sizes, which only
    tests set.
    """

    def __new__(
        cls,
        analyzer: Callable[[str], list[str]],
        stem: str,
        numbers: bool,
        stop_words: Sequence[str],
        *,
        slots: int = ...,
        room: int = ...,
        block: int = ...,
        share: int = ...,
        spellings: int = ...,
        multiplier: int = ...,
    ) -> Analysis: ...
    def __len__(self) -> int: ...
    def find(self, term: str, /) -> int: ...
    def spellings(self) -> int: ...
    def add_terms(self, terms: Sequence[str], /) -> None: ...
    def truncate(self, size: int, /) -> None: ...
    def encode_queries(self, texts: Sequence[str], /) -> tuple[bytearray, bytearray]: ...
    def encode_documents(self, texts: Sequence[str], threads: int, /) -> tuple[bytearray, bytearray, list[str]]: ...

def stem(word: str, kind: str, /) -> str: ...
