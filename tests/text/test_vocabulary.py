"""Numbering of strings: append, sort, forget; and texts to term ids."""

from __future__ import annotations

import numpy as np
import pytest
from support import borders

from fanrank import native
from fanrank.engine.text.analyzers import Analyzer, get_analyzer
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs with the compiled loops and without them."""
    if request.param == "plain":
        monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    elif native.compiled is None:
        pytest.skip(native.reason)
    else:
        monkeypatch.delenv("FANRANK_BACKEND", raising=False)
    chosen: str = request.param
    return chosen


def encoder(analyzer: str = "minimal", strings: tuple[str, ...] = ()) -> TermIndexer:
    return TermIndexer(get_analyzer(analyzer), Vocabulary(strings))


def test_new_terms_are_numbered_alphabetically_within_a_call() -> None:
    one = encoder()
    terms, documents = one.encode_documents(["dog cat dog", "", "ant cat"])
    assert one.vocabulary.strings == ["ant", "cat", "dog"]  # alphabetical (SPEC A013)
    assert terms.tolist() == [2, 1, 2, 0, 1]
    assert documents.tolist() == [0, 0, 0, 2, 2]
    assert terms.dtype == documents.dtype == np.int32
    # Numbers once given stay, though "bee" sorts before "cat"; known spellings keep theirs.
    terms, _ = one.encode_documents(["bee Dog aardvark"])
    assert one.vocabulary.strings == ["ant", "cat", "dog", "aardvark", "bee"]
    assert terms.tolist() == [4, 2, 3]


def test_queries_leave_the_vocabulary_alone() -> None:
    one = encoder("nltk")
    one.encode_documents(["running cats"])
    known = dict(one.vocabulary.ids)
    assert one.encode_query("the cat runs past cats and dogs") == [known["cat"], known["run"], known["cat"]]
    assert one.encode_terms(["cat", "cats", "nothing", "cat"]) == [known["cat"]] * 2
    assert one.vocabulary.ids == known
    # A spelling first met in a query is no less known once a document brings its term.
    one.encode_documents(["dogs"])
    assert one.encode_query("dogs dog") == [one.vocabulary.ids["dog"]] * 2


def test_a_failed_call_leaves_nothing_behind() -> None:
    def normalize(token: str) -> str:
        if token == "boom":
            raise RuntimeError(token)
        return token

    one = TermIndexer(Analyzer("fragile", str.split, normalize), Vocabulary())
    one.encode_documents(["ant"])
    with pytest.raises(RuntimeError):
        one.encode_documents(["bee", "cat boom"])
    assert one.vocabulary.strings == ["ant"]
    assert one.encode_query("bee ant") == [0]


def test_an_empty_term_is_none() -> None:
    one = TermIndexer(Analyzer("own", str.split, lambda token: token.strip("-")), Vocabulary())
    terms, documents = one.encode_documents(["- ant --", "-", "bee-"])
    assert one.vocabulary.strings == ["ant", "bee"]
    assert (terms.tolist(), documents.tolist()) == ([0, 1], [0, 2])
    assert one.encode_query("bee - ant") == [1, 0]


def test_the_cache_of_spellings_is_bounded(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    borders.shrink(monkeypatch, MAX_CACHED_TOKENS=3)
    one, analyzer = encoder(), get_analyzer("minimal")
    for text in ("ant bee cat dog", "ant eel", "dog fox bee", "ant"):
        terms, _ = one.encode_documents([text])
        assert [one.vocabulary.strings[term] for term in terms.tolist()] == analyzer(text)
    assert one.token_path.name == path
    assert (len(one._token_ids) if one.native is None else one.native.spellings()) <= 3
