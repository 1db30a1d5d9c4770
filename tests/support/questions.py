"""Questions of three types, for the tests of the classifier."""

from hypothesis import strategies as st

WORDS = "when did I last visit Paris which book Ärger naïve it's E-47821 a 2024"
TEXT = st.lists(st.sampled_from(WORDS.split()), max_size=7).map(" ".join)
TEXTS = [
    "When did I last visit Paris?",
    "When was the book bought, before or after the visit?",
    "Which book did I finish?",
    "Which of the books was my favourite book?",
    "How many days did I camp this year?",
    "How many books have I bought in 2024?",
    "when when when",
    "a",
]
TYPES = ["time", "time", "user", "user", "several", "several", "time", "user"]
