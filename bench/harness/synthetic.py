"""A synthetic agent memory (SPEC A039), made from a seed at any size and rate, and questions about it.

Records come in blocks, and each block has its own random generator. So any stretch can be made without the records
before it, a longer memory begins with a shorter one, and nothing is stored. A text has about twelve words: common words
(Zipf), words of its session's topic (topics drift: each is popular for a while), and names of its session, most of them
recent. So old records share words with new ones, and names show when a record was written.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fanrank import Record
from fanrank.engine.arrays import Floats, Integers

Objects = npt.NDArray[np.object_]

WEEK = 7 * 86400.0
START = 1577836800.0
"""2020-01-01 UTC."""
PER_WEEK = 430
"""Records a week: at every size of AgentIR's Table 2 (A037) four windows hold about 1,700 (39.5 % of 4,052, 4.3 % of
40,081)."""
TWO_YEARS = 104 * WEEK
RECENT_SHARE = 0.8
RECENCY = 1.4
"""Of the questions about recent records, the share asked about an age of w weeks falls as ``exp(-RECENCY * w)``
(SPEC A031 and A032)."""

BLOCK = 1 << 14
LANES = 4
"""Sessions that run side by side."""
SESSION_RECORDS = 10
WORDS, WORD_SPREAD = 12, 0.4
COMMON, COMMON_SHIFT = 20_000, 10
TOPIC_POOL, TOPIC_WORDS, TOPIC_RECORDS, TOPIC_LIFE = 40_000, 200, 2_000, 3.0
NAMES, NAME_RECORDS, NAME_LIFE = 3, 40, 50.0
"""Names a session; records after which a new name appears; the life of a name, counted in new names."""
COMMON_SHARE, TOPIC_SHARE = 0.55, 0.25
AGENTS, TOOLS, USERS = 8, 24, 50
ROLES = ("user", "assistant", "tool call", "tool output", "system", "planning")
SCRIPTS = (
    ("user", "assistant"),
    ("user", "tool call", "tool output", "assistant"),
    ("user", "planning", "tool call", "tool output", "tool call", "tool output", "assistant"),
)
"""The roles of the records of a turn. One session in five begins with a system record."""
SYSTEM_SHARE = 0.2
SYLLABLES = [consonant + vowel for consonant in "bdfgjklmnprstvyz" for vowel in "aiou"]


@dataclass(frozen=True)
class SyntheticQuestion:
    """A question about a synthetic memory: words of one record.

    `text` has 4 to 6 different ones (all of them, if it has fewer); `gold` is the id of the record.
    """

    text: str
    now: float
    gold: str


@dataclass(frozen=True)
class SyntheticMemory:
    """A synthetic agent memory, made from a seed while it is read: nothing is stored, at any size.

    - `records`: how many; record n is called ``r<n>``. A longer memory begins with the records of a shorter one.
    - `seed`: the same seed gives the same records (numpy's generators make them)
    - `interval`: seconds between two records, on average; by default 430 records come in a week
    - `start`: the time before the first record, in seconds since 1970-01-01 UTC
    - `namespace`: of all records
    """

    records: int
    seed: int = 42
    interval: float = WEEK / PER_WEEK
    start: float = START
    namespace: str = ""

    @property
    def end(self) -> float:
        """The time after the last record."""
        return self.start + self.records * self.interval

    def stream(self, first: int = 0, stop: int | None = None) -> Iterator[Record]:
        """The records numbered from `first` to `stop` (exclusive; default: to the end), made as they are consumed."""
        stop = self.records if stop is None else min(stop, self.records)
        for number in range(first // BLOCK, -(-stop // BLOCK)):
            base = number * BLOCK
            yield from self._records(_block(self.seed, number), base, max(first - base, 0), min(stop - base, BLOCK))

    def times(self, first: int = 0) -> Floats:
        """The times of the records from `first` on, [records - first] seconds."""
        numbers = range(first // BLOCK, -(-self.records // BLOCK))
        jitter = np.concatenate([np.zeros(0), *(_block(self.seed, number).jitter for number in numbers)])
        places = np.arange(first, self.records)
        times: Floats = self.start + (places + jitter[places - first // BLOCK * BLOCK]) * self.interval
        return times

    def _records(self, block: "_Block", base: int, first: int, stop: int) -> Iterator[Record]:
        own = slice(first, stop)
        numbers = range(base + first, base + stop)
        times = self.start + (np.arange(base + first, base + stop) + block.jitter[own]) * self.interval
        columns = (
            map("r%d".__mod__, numbers),
            block.texts(first, stop),
            block.roles[own].tolist(),
            block.sessions[own].tolist(),
            block.users[own].tolist(),
            block.agents[own].tolist(),
            block.tools[own].tolist(),
            times.tolist(),
            block.importance[own].tolist(),
        )
        record, namespace = Record, self.namespace
        for name, text, role, session, user, agent, tool, time, importance in zip(*columns, strict=True):
            yield record(
                id=name,
                text=text,
                namespace=namespace,
                role=role,
                session=session,
                user=user,
                agent=agent,
                tool=tool,
                time=time,
                importance=importance,
            )

    def questions(
        self, count: int, *, seed: int | None = None, recent: float = RECENT_SHARE
    ) -> list[SyntheticQuestion]:
        """`count` questions, each of 4 to 6 distinct words of one record, asked within an hour after the last record.

        A share `recent` of them is about recent records: their age in weeks is exponential with rate `RECENCY`, so
        that three in four lie in the newest week, however large the memory (the newest fifth of a memory of 5 million
        records would reach back 45 years). The others are about any record. `seed` picks other questions about the
        same memory.
        """
        random_numbers = np.random.default_rng([self.seed if seed is None else seed, self.records, count])
        ages = random_numbers.exponential(WEEK / RECENCY / self.interval, count).astype(np.int64)
        anywhere = random_numbers.integers(0, self.records, count)
        about_recent = (random_numbers.random(count) < recent) & (ages < self.records)
        numbers = np.where(about_recent, self.records - 1 - ages, anywhere)
        sizes = random_numbers.integers(4, 7, count).tolist()
        later = (self.end + random_numbers.random(count) * 3600.0).tolist()
        found: list[SyntheticQuestion | None] = [None] * count
        # Block by block, so that each block is made once.
        for place in np.argsort(numbers, kind="stable").tolist():
            number = int(numbers[place])
            words = sorted(set(_block(self.seed, number // BLOCK).words_of(number % BLOCK)))
            order = np.random.default_rng([self.seed, number, place]).permutation(len(words))[: sizes[place]]
            found[place] = SyntheticQuestion(" ".join(words[word] for word in order), later[place], f"r{number}")
        return [question for question in found if question is not None]


@dataclass(frozen=True, eq=False)
class _Block:
    """`BLOCK` records without ids and times; word w of record i is ``words[tokens[offsets[i] + w]]``."""

    words: Objects
    tokens: Integers
    offsets: Integers  # [BLOCK + 1]
    roles: Objects  # [BLOCK], as the following
    sessions: Objects
    users: Objects
    agents: Objects
    tools: Objects  # None where there is no tool
    jitter: Floats  # [0, 1)
    importance: Floats

    def words_of(self, record: int) -> list[str]:
        words: list[str] = self.words[self.tokens[self.offsets[record] : self.offsets[record + 1]]].tolist()
        return words

    def texts(self, first: int, stop: int) -> Iterator[str]:
        begin = self.offsets[first]
        words = self.words[self.tokens[begin : self.offsets[stop]]].tolist()
        bounds = (self.offsets[first : stop + 1] - begin).tolist()
        join = " ".join
        return (join(words[start:end]) for start, end in pairwise(bounds))


# The last few blocks alone: questions and growth read a block twice in a row, never all of them.
@lru_cache(maxsize=4)
def _block(seed: int, number: int) -> "_Block":
    random_numbers = np.random.default_rng([seed, number])
    place, turn = _sessions(random_numbers)
    begun = number * BLOCK + np.arange(BLOCK) - turn * LANES  # the record that begins each record's session
    lengths = random_numbers.lognormal(math.log(WORDS) - WORD_SPREAD**2 / 2, WORD_SPREAD, BLOCK)
    counts = np.clip(np.rint(lengths), 3, 60).astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    words, tokens = _tokens(random_numbers, np.repeat(place, counts), begun[place == np.arange(BLOCK)], place)
    script = random_numbers.integers(0, len(SCRIPTS), BLOCK)[place]
    first_tool = random_numbers.integers(0, TOOLS, BLOCK)[place]
    roles = _ROLE_AT[script, turn % _ROLE_AT.shape[1]]
    roles[(turn == 0) & (random_numbers.random(BLOCK) < SYSTEM_SHARE)] = ROLES.index("system")
    tool = (first_tool + turn // _SCRIPT_LENGTHS[script]) % TOOLS
    with_tool = (roles == ROLES.index("tool call")) | (roles == ROLES.index("tool output"))
    users = (USERS * random_numbers.random(BLOCK) ** 2).astype(np.int64)[place]
    return _Block(
        words,
        tokens,
        offsets,
        np.array(ROLES, dtype=object)[roles],
        _names("s%d", begun[place == np.arange(BLOCK)])[_rank(place)],
        _names("user-%d", range(USERS))[users],
        _names("agent-%d", range(AGENTS))[random_numbers.integers(0, AGENTS, BLOCK)[place]],
        np.array([*_names("tool-%d", range(TOOLS)), None], dtype=object)[np.where(with_tool, tool, TOOLS)],
        random_numbers.random(BLOCK),
        np.rint(100 * random_numbers.beta(2.0, 5.0, BLOCK)) / 100,
    )


def _sessions(random_numbers: np.random.Generator) -> tuple[Integers, Integers]:
    """(index in the block of the record that begins each record's session, turns since then), both [BLOCK]."""
    begins = random_numbers.random((BLOCK // LANES, LANES)) < 1 / SESSION_RECORDS
    begins[0] = True
    rows = np.arange(BLOCK // LANES)[:, None]
    first = np.maximum.accumulate(np.where(begins, rows, 0), axis=0)
    return (first * LANES + np.arange(LANES)).reshape(-1), (rows - first).reshape(-1)


def _rank(place: Integers) -> Integers:
    """The number of each record's session, [BLOCK]. Sessions are numbered in the order of their first records."""
    return (np.cumsum(place == np.arange(BLOCK)) - 1)[place]


def _tokens(
    random_numbers: np.random.Generator, place: Integers, begun: Integers, place_of_record: Integers
) -> tuple[Objects, Integers]:
    """(words of the block, number of each token's word among them). `place` [tokens], `begun` [sessions]."""
    session = _rank(place_of_record)[place]
    # Counted from 100 lives on, so that the first sessions have older topics and names.
    topic = begun // TOPIC_RECORDS + int(100 * TOPIC_LIFE)
    topic -= random_numbers.exponential(TOPIC_LIFE, len(begun)).astype(np.int64)
    clock = (begun // NAME_RECORDS)[:, None] + int(100 * NAME_LIFE)
    held = clock - random_numbers.exponential(NAME_LIFE, (len(begun), NAMES)).astype(np.int64)
    oldest = int(held.min())

    kind = random_numbers.random(len(place))
    uniform = random_numbers.random(len(place))
    shifted = (COMMON + COMMON_SHIFT + 1) / (COMMON_SHIFT + 1)
    tokens = np.minimum(((COMMON_SHIFT + 1) * (shifted**uniform - 1)).astype(np.int64), COMMON - 1)
    of_topic = np.flatnonzero((kind >= COMMON_SHARE) & (kind < COMMON_SHARE + TOPIC_SHARE))
    rank = (TOPIC_WORDS ** uniform[of_topic]).astype(np.int64)
    # Two primes spread a topic's words over the pool, and give each topic another order of words.
    tokens[of_topic] = COMMON + (topic[session[of_topic]] * 7919 + rank * 104729) % TOPIC_POOL
    named = np.flatnonzero(kind >= COMMON_SHARE + TOPIC_SHARE)
    names = held[session[named], (uniform[named] * NAMES).astype(np.int64)]
    tokens[named] = COMMON + TOPIC_POOL + names - oldest
    new = np.array([_word(name, 4) for name in range(oldest, int(held.max()) + 1)], dtype=object)
    return np.concatenate([_usual_words(), new]), tokens


@lru_cache(maxsize=1)
def _usual_words() -> Objects:
    return np.array([_word(number, 3) for number in range(COMMON + TOPIC_POOL)], dtype=object)


def _word(number: int, syllables: int) -> str:
    """A pronounceable word. Different numbers below ``64**syllables`` give different words."""
    return "".join([SYLLABLES[number >> 6 * place & 63] for place in range(syllables)])


def _names(pattern: str, numbers: range | Integers) -> Objects:
    return np.array([pattern % number for number in numbers], dtype=object)


_SCRIPT_LENGTHS = np.array([len(script) for script in SCRIPTS])
_ROLE_AT = np.array(
    [[ROLES.index(script[turn % len(script)]) for turn in range(math.lcm(*map(len, SCRIPTS)))] for script in SCRIPTS]
)
