"""Memories with typed records of any size, and questions in the spirit of the sources' own, each with its answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

import fanrank as fr

DAY = 86_400.0
NOW = 400 * DAY

# (question, type of the answer, text of the answer). Most hold a trigger word in another sense than that of the type.
QUESTIONS: tuple[tuple[str, str, str], ...] = (
    ("what did I say about climate?", "Fact", "climate change worries me, the rising sea above all"),
    ("what did I say about the budget last week?", "Fact", "the marketing budget is 12,000 euros this year"),
    (
        "what's that thing I mentioned that's like an API but for people?",
        "Fact",
        "an org chart is an API for people and teams",
    ),
    ("what's my setting for the Kestrel project timeout?", "Fact", "the Kestrel project timeout is 30 seconds"),
    ("what did I tell Ana about JIRA-9921?", "Fact", "Ana knows that JIRA-9921 waits for the vendor"),
    ("did I ever revoke the access token for E-47821?", "Fact", "the access token for E-47821 was revoked by security"),
    ("how was it decided to cut the travel budget?", "Fact", "the board voted to cut the travel budget"),
    ("what was it about carbon prices?", "Fact", "carbon prices double every decade"),
    ("what's that like, the Golden Wok?", "Fact", "the Golden Wok is loud and cheap"),
    ("does it look like the Hoffmann invoice was paid?", "Event", "the Hoffmann invoice was paid on Friday"),
    ("what will happen next with the Heron migration?", "Fact", "the Heron migration ends with a dry run"),
    ("may I ask where the spare keys are?", "Fact", "spare keys are in the blue drawer"),
    ("who's on call for the Osprey cluster?", "Fact", "Ben has the pager for the Osprey cluster"),
    ("I want to know when the passport expires", "Fact", "the passport expires in 2031"),
    ("did I mention something like a wifi password?", "Fact", "the wifi password is on the fridge"),
    ("what's my badge ID 47821?", "Fact", "badge ID is 47821"),
    ("what does Sarah like to drink?", "Preference", "Sarah likes to drink green tea"),
    ("when did we sign the Rotterdam lease?", "Event", "signed the Rotterdam lease"),
    ("who is Doctor Okafor?", "Entity", "Doctor Okafor, dentist in Lisbon"),
)

_THINGS = """
    coffee train garden piano novel bicycle kitchen laptop winter museum football camera pasta hiking radio sofa bakery
    river market theatre lamp jacket tennis yoga guitar movie airport library beach cheese
"""
_NOUNS = _THINGS.split()
_PLACES = ["Oslo", "Porto", "Leeds", "Turin", "Basel", "Malmo", "Ghent", "Lyon", "Split", "Bergen"]
_PEOPLE = ["Ana", "Tom", "Mia", "Leo", "Eva", "Max", "Lea", "Jan", "Will", "May"]
# By type, so that each filler is a plausible record. They hold the words of triggers, as real records do.
_FILLERS = {
    "Preference": ("I like {0} more than {1}", "my setting for the {0} is {1}", "{2} wants a new {0}"),
    "Event": ("{2} said that the {0} was fine", "the {0} happened in {3}", "I did ask {2} for the {0}"),
    "Entity": ("{2} who lives in {3}", "the {0} shop in {3}"),
    "Fact": ("the {0} is in {3}", "{2} told me about the {0}", "a {0} costs more than a {1}"),
}
_KINDS = ("Preference", "Event", "Preference", "Event", "Fact", "Fact", "Entity", "Event")


def memory_records(size: int, seed: int = 0) -> list[fr.Record]:
    """`size` records in a seeded order; those of `QUESTIONS` have the ids ``answer 0``, ``answer 1``, ...

    The fillers are of four types, most of them Preferences and Events. Half of the records are of the last week.
    """
    random = np.random.default_rng(seed)
    texts = [(f"answer {number}", kind, text) for number, (_, kind, text) in enumerate(QUESTIONS)]
    for number in range(size - len(texts)):
        kind = _KINDS[number % len(_KINDS)]
        form = _FILLERS[kind][int(random.integers(len(_FILLERS[kind])))]
        words = [*random.choice(_NOUNS, 2, replace=False), random.choice(_PEOPLE), random.choice(_PLACES)]
        texts.append((f"filler {number}", kind, form.format(*words)))
    order = random.permutation(len(texts))
    return [
        fr.Record(
            texts[place][0],
            texts[place][2],
            type=texts[place][1],
            time=NOW - float(random.integers(1, 14)) * DAY + 1.0,
            entities={name: name.lower() for name in (*_PEOPLE, "Sarah") if re.search(rf"\b{name}\b", texts[place][2])}
            or None,
        )
        for place in order.tolist()
    ]


class WordVectors:
    """An encoder without a model: a text is the sum of its words' random directions. Common words weigh little."""

    name, version, dimension = "words", "1", 64

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> npt.NDArray[Any]:
        return np.stack([self._sum(text) for text in texts])

    def queries(self, texts: Sequence[str]) -> npt.NDArray[Any]:
        return self.documents(texts)

    def _sum(self, text: str) -> npt.NDArray[Any]:
        total = np.full(self.dimension, 1e-3)
        for word in _words(text):
            total += (0.3 if len(word) < 4 else 1.0) * _direction(word, self.dimension)
        return total


@cache
def _direction(word: str, size: int) -> npt.NDArray[Any]:
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).normal(size=size)


def _words(text: str) -> Iterator[str]:
    for word in re.findall(r"\w+", text.lower()):
        yield word.removesuffix("s")
