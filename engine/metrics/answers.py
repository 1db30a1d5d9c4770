"""Whether a gold answer stands in the texts that were found: what any answer made from them depends on.

============================ =========================================================================================
name                         meaning, for a question with a gold answer and the texts of its first k records
============================ =========================================================================================
``answer_substring@k``       1 if the answer stands in the joined texts, whatever the case of its letters, else 0
``token_recall@k``           share of the answer's different words of 4 letters and more that are words of the texts
============================ =========================================================================================

An answer without such a word ("3", "$50") has a token recall of 0, not an undefined one. The published rows need this
reading: on knowledge updates .744 of the answers stand in the texts as a whole, and all their words with them, but the
mean token recall is .578.

Sources: A117, T002.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError

ANSWER_DEPTHS = (5, 10)
"""The depths k that the source reports."""

_WORD = re.compile(r"\w{4,}")


def answer_substring(answer: str, texts: Iterable[str]) -> float:
    """1.0 if the answer stands in the texts, joined by line ends, whatever the case of its letters; else 0.0.

    Spaces at the ends of the answer do not count. An empty answer stands nowhere.
    """
    wanted = answer.strip().casefold()
    return float(bool(wanted) and wanted in "\n".join(texts).casefold())


def token_recall(answer: str, texts: Iterable[str]) -> float:
    """The share of the answer's different words of 4 letters or digits and more that are words of the texts.

    The case of letters does not count. An answer without such a word has 0.0.
    """
    wanted = _words(answer)
    present = set[str]().union(*map(_words, texts))
    return len(wanted & present) / len(wanted) if wanted else 0.0


def answer_metrics(
    texts: Mapping[str, Sequence[str]], answers: Mapping[str, str], depths: Iterable[int] = ANSWER_DEPTHS
) -> dict[str, npt.NDArray[np.float64]]:
    """``answer_substring@k`` and ``token_recall@k`` for each depth k, each a float64 array [answers] in their order.

    ``texts[question]`` are the texts of the records that were found, best first. A question without texts has 0.
    Raises `ParameterError` for a depth below 1.
    """
    depths = tuple(depths)
    if any(depth < 1 for depth in depths):
        raise ParameterError(f"a depth of answer metrics must be 1 or more, not {min(depths)}")
    values: dict[str, npt.NDArray[np.float64]] = {}
    for name, measure in (("answer_substring", answer_substring), ("token_recall", token_recall)):
        for depth in depths:
            column = [measure(answer, texts.get(question, ())[:depth]) for question, answer in answers.items()]
            values[f"{name}@{depth}"] = np.array(column, dtype=np.float64)
    return values


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
