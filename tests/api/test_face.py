"""What `import fanrank` shows: the face, its themes, and that each name says where it is imported from."""

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import fanrank as fr
from fanrank.engine import errors as all_errors

FACE = (
    "AsyncClient BM25 Cascade Client Coalescer Engine FanrankError Hit Hits Memory Neighbours OwnVectors Query Record "
    "Relation Router SearchScope SentenceEncoder ShardedEngine Strategy col open parse_when read_records"
)
THEMES = {
    "encoders": "CachedEncoder Encoder SparseSentenceEncoder TermEncoder weights_of",
    "errors": (
        "AnswerError BackendUnavailableError CacheError DamagedIndexError DamagedStoreError DatasetError DeadlineError "
        "DeviceMemoryError DuplicateIdError EncoderError ForeignIndexError IndexFileError KeyRefusedError "
        "MissingExtraError ModelMismatchError NewerFormatError NotBroughtError NotSupportedError OverloadedError "
        "ParameterError PolicyFileError QueryError QuotaError RecencyWarning RecordError ServerError ShardError "
        "ShardVersionError SplitNamespaceError StorageError StoreLockedError UnknownColumnError UnknownIdError "
        "UnreachableError"
    ),
    "evaluation": (
        "METRICS PRESETS AlphaFit AnswerJudge Answering ChatAnswerer ChatJudge ChatModel Comparison Dataset "
        "Evaluation FittedWeights JudgedAnswer JudgedAnswers Labelled Latency Preset QuestionAnswerer "
        "Tuned TunedBM25 Verdict answer_metrics answer_substring answers_in_context check_policy "
        "cluster_bootstrap compare compare_strategies draw_per_category evaluate find_preset fit_alpha fit_weights "
        "gold_recency judge_answers labelled_questions load_beir load_locomo load_longmemeval means "
        "measure_latency paired_bootstrap per_query rank render run study_strategies "
        "token_recall tune tune_bm25 validate"
    ),
    "published": "PUBLISHED",
    "reports": (
        "BackupReport ChannelShare DriftReport Explanation FusedExplanation HealthReport Imported Recency"
        " TermContribution"
    ),
    "routing": (
        "LONGMEMEVAL_SYSTEMS LONGMEMEVAL_THRESHOLDS ByNamespace Classifier Decision amortised "
        "capacity load_policy save_policy"
    ),
    "scopes": "Filter Listing Namespace Occasion When parse_filter",
    "strategies": (
        "STRATEGIES AgentRRF Approximate Boosted Candidates CheckedReranker ContextVectors ContextWords Conversation "
        "CrossEncoderReranker Cue Decay Dense Feedback Fused Fusion Graph Hinted Interaction Learned Lexical Linear "
        "MinMax Optimizer PageRank RM3 RRF Reranker ScoreRRF Temporal ZScore feedback_of"
    ),
    "text": "ANALYZERS DEFAULT_PROFILE METHODS PROFILES Analyzer Profile get_analyzer make_analyzer register_analyzer",
}
PUBLIC = {"fanrank": FACE.split(), **{f"fanrank.{theme}": names.split() for theme, names in THEMES.items()}}
HOMES = [(module, name) for module, names in PUBLIC.items() for name in names]

HEAVY = (
    "cupy faiss huggingface_hub matplotlib nltk numba nvtx pandas pyarrow pytrec_eval regex scipy "
    "sentence_transformers sklearn torch transformers triton fanrank.cpu_fallback fanrank.engine.check "
    "fanrank.engine.cli fanrank.engine.evaluate fanrank.engine.tune fanrank.evaluation fanrank.integrations "
    "fanrank.kernels"
)
"""What no program should wait for that only imports fanrank."""

SMALL = [
    fr.BM25(k1=1.5), fr.Cascade(), fr.OwnVectors(4), fr.Query("tea", filter=fr.col("role") == "user"),
    fr.Record("1", "tea", time=3.0, role="user"), fr.Relation("a", "knows", "b"), fr.SearchScope.session("s"),
    fr.strategies.STRATEGIES["rrf"], fr.strategies.Conversation(), fr.strategies.Optimizer(), fr.strategies.RM3(),
    fr.evaluation.Comparison(0.1, 0.0, 0.2, 0.04, 1000, 7), fr.evaluation.Labelled(fr.Query("tea?"), {"1": 1}),
    fr.evaluation.Preset(), fr.parse_when("yesterday", 1e9), fr.scopes.parse_filter({"role": {"==": "user"}}),
]  # fmt: skip


def home(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def test_the_face_and_each_theme_hold_these_names() -> None:
    assert {module: sorted(importlib.import_module(module).__all__) for module in PUBLIC} == {
        module: sorted(names) for module, names in PUBLIC.items()
    }


def test_a_name_has_one_home() -> None:
    names = [name for _, name in HOMES]
    assert len(names) == len(set(names))
    assert not [name for name in names if name not in PUBLIC["fanrank"] and hasattr(fr, name)]


def test_dir_shows_the_face_and_the_themes_alone() -> None:
    assert {name for name in dir(fr) if not name.startswith("_")} == {*FACE.split(), *THEMES}
    assert {"__version__", "__all__", "__doc__"} <= set(dir(fr))
    with pytest.raises(AttributeError, match="module 'fanrank' has no attribute 'QueryError'"):
        fr.QueryError  # type: ignore[attr-defined]  # noqa: B018


def test_every_class_and_function_names_the_module_that_users_import_it_from() -> None:
    kinds = [(module, name, home(module, name)) for module, name in HOMES]
    described = [
        (value.__module__, value.__name__, value.__qualname__)
        for _, _, value in kinds
        if isinstance(value, (type, FunctionType))
    ]
    wanted = [(module, name, name) for module, name, value in kinds if isinstance(value, (type, FunctionType))]
    assert described == wanted
    others = [name for _, name, value in kinds if not isinstance(value, (type, FunctionType))]
    assert sorted(others) == [
        *("ANALYZERS", "DEFAULT_PROFILE", "LONGMEMEVAL_SYSTEMS", "LONGMEMEVAL_THRESHOLDS", "METHODS", "METRICS"),
        *("PRESETS", "PROFILES", "PUBLISHED", "STRATEGIES"),
    ]


def test_every_error_that_reaches_a_caller_is_public() -> None:
    errors = {name for name, value in inspect.getmembers(all_errors, inspect.isclass) if issubclass(value, Exception)}
    # The engine answers this one itself: it reads the directory again.
    assert errors - {"StaleIndexError"} == {*THEMES["errors"].split(), "FanrankError"}


def test_public_classes_and_functions_are_pickled_by_their_public_path() -> None:
    for module, name in HOMES:
        value = home(module, name)
        if isinstance(value, (type, FunctionType)):
            pickled = pickle.dumps(value, protocol=4)
            assert module.encode() in pickled
            assert b"fanrank.engine" not in pickled
            assert pickle.loads(pickled) is value
            assert copy.deepcopy(value) is value


@pytest.mark.parametrize("value", SMALL, ids=lambda value: type(value).__name__)
def test_a_value_survives_pickling_and_copying(value: Any) -> None:
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert type(again) is type(value)
        assert repr(again) == repr(value)
        if type(value).__eq__ is not object.__eq__:
            assert again == value


def test_an_error_survives_pickling() -> None:
    made = {
        name: getattr(fr.errors, name)("what was wrong")
        for name in set(PUBLIC["fanrank.errors"]) - {"MissingExtraError"}
    }
    made["MissingExtraError"] = fr.errors.MissingExtraError("faiss", "approximate")
    for name, error in made.items():
        for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert type(again) is getattr(fr.errors, name)
            assert str(again) == str(error)


def test_another_process_reads_a_pickle_of_a_theme_that_it_has_not_imported() -> None:
    pickled = pickle.dumps([fr.evaluation.Labelled(fr.Query("tea?"), {"1": 1}), fr.evaluation.tune])
    code = f"import pickle; one, tune = pickle.loads({pickled!r}); print(one, tune.__module__, tune.__qualname__)"
    assert run(code) == f"{fr.evaluation.Labelled(fr.Query('tea?'), {'1': 1})} fanrank.evaluation tune"


def test_type_hints_of_public_classes_and_calls_can_be_read() -> None:
    assert typing.get_type_hints(fr.Record)["text"] is str
    assert typing.get_type_hints(fr.Query)["filter"] == fr.scopes.Filter | Mapping[str, Any] | None
    assert typing.get_type_hints(fr.Engine.search)["return"] is fr.Hits
    assert typing.get_type_hints(fr.read_records)["return"].__args__ == (fr.Record,)
    unread = []
    for module, name in HOMES:
        value = home(module, name)
        if isinstance(value, type):
            try:
                typing.get_type_hints(value)
            except NameError as error:
                unread.append((name, error.name))
    # Names that are imported for type checkers alone.
    assert unread == [("Hits", "Callable")]


def test_importing_fanrank_loads_no_heavy_module() -> None:
    found = f"[name for name in {HEAVY.split()} if name in sys.modules]"
    assert run(f"import sys, fanrank; print({found})") == "[]"
    assert run(f"import sys, fanrank; fanrank.evaluation; print('fanrank.engine.tune' in {found})") == "True"
    libraries = f"[name for name in {[name for name in HEAVY.split() if '.' not in name]} if name in sys.modules]"
    for use in (
        "from fanrank.engine.encoders import cache, models, sentence, sparse; import fanrank.engine.hybrid.rerank",
        "[fanrank.text.get_analyzer(name)('Running past the end') for name in ('full', 'nltk', 'lucene')]",
    ):
        assert run(f"import sys, fanrank; {use}; print({libraries})") == "[]"


def loaded_by(code: str) -> set[str]:
    """The modules of the package and numpy that a new process has loaded after this code."""
    show = "print(*(name for name in sys.modules if name.split('.')[0] == 'fanrank' or name == 'numpy'))"
    return set(run(f"import sys, fanrank as fr\n{code}\n{show}").split())


def test_importing_fanrank_loads_what_it_names_alone() -> None:
    assert loaded_by("") == {"fanrank", "fanrank._public", "fanrank.engine", "fanrank.engine.errors", "fanrank.errors"}


def run(code: str) -> str:
    """What a fresh process prints."""
    source = str(Path(fr.__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    return done.stdout.strip()


def test_a_first_search_loads_no_more_than_it_did() -> None:
    """Modules are counted, as seconds depend on the machine. Raise the number only for what a plain search needs."""
    loaded = loaded_by('fr.Engine.from_records([fr.Record("1", "tea")]).search(["tea"])')
    assert not {name for name in loaded if name.startswith("fanrank.engine.serve")}
    assert len(loaded) <= 222
