"""Profiles: an engine has the numbers of the one it names, a memory keeps them, and what is given beside it wins."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import fanrank as fr
from fanrank.engine.cli.main import main
from fanrank.evaluation import find_preset
from fanrank.text import DEFAULT_PROFILE, PROFILES

TEXTS = ["key key expired", "key", "the job failed as the key of the billing job had expired", "", "job"]


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANRANK_PROFILE", raising=False)


def numbers(engine: fr.Engine) -> tuple[str, float, float]:
    return engine.bm25.method, engine.bm25.k1, engine.bm25.b


def of(name: str) -> tuple[str, float, float]:
    row = PROFILES[name]
    return row.method, row.k1, row.b


def records() -> list[fr.Record]:
    return [fr.Record(str(number), text) for number, text in enumerate(TEXTS)]


def test_an_engine_without_a_profile_has_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEFAULT_PROFILE == "general"
    assert numbers(fr.Engine()) == of("general") == ("bm25l", 2.0, 0.75)
    monkeypatch.setenv("FANRANK_PROFILE", "code")
    assert numbers(fr.Engine()) == of("code")
    assert numbers(fr.Engine(profile="chat")) == of("chat")
    assert find_preset("default", "locomo").k1 == PROFILES["code"].k1
    assert find_preset("opsem", "locomo").method == "lucene"
    monkeypatch.setenv("FANRANK_PROFILE", "poems")
    for make in (fr.Engine, lambda: find_preset("default", "beir")):
        with pytest.raises(fr.errors.ParameterError, match=r"'poems' \(from FANRANK_PROFILE\); there are: general, ch"):
            make()


def test_what_is_given_beside_a_profile_wins() -> None:
    assert numbers(fr.Engine(profile="chat", b=0.9)) == ("bm25l", 1.5, 0.9)
    assert numbers(fr.Engine(profile="chat", method="bm25+", k1=0.0)) == ("bm25+", 0.0, 0.5)
    with pytest.raises(fr.errors.ParameterError, match="unknown profile 'talk'; there are: general, chat, documents"):
        fr.Engine(profile="talk")
    with pytest.raises(fr.errors.ParameterError, match="unknown profile 1"):
        fr.Engine(profile=1)  # type: ignore[arg-type]


def test_a_memory_keeps_its_profile(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, profile="chat", b=0.6) as engine:
        engine.add(records())
        expected = list(engine.search(["key job"]))
    for again in ({}, {"profile": "chat"}, {"profile": None, "b": None}, {"b": 0.6}):
        with fr.Engine.open(tmp_path, **again) as engine:  # type: ignore[arg-type]
            assert (engine.profile, *numbers(engine)) == ("chat", "bm25l", 1.5, 0.6)
            assert list(engine.search(["key job"])) == expected
    with pytest.raises(fr.errors.ParameterError, match="was made with profile = 'chat', not 'code'"):
        fr.Engine.open(tmp_path, profile="code")
    with fr.Engine.open(tmp_path) as engine:
        engine.save(tmp_path.with_name("saved"))
        engine.copy_to(tmp_path.with_name("copy"), profile="code")
        engine.copy_to(tmp_path.with_name("same"), profile=None, method=None, k1=None, b=None)
    saved = fr.Engine.load(tmp_path.with_name("saved"))
    assert (saved.profile, *numbers(saved)) == ("chat", "bm25l", 1.5, 0.6)
    with fr.Engine.open(tmp_path.with_name("copy")) as copy:
        assert (copy.profile, *numbers(copy)) == ("code", *of("code"))
    with fr.Engine.open(tmp_path.with_name("same")) as copy:
        assert (copy.profile, *numbers(copy)) == ("chat", "bm25l", 1.5, 0.6)


def test_a_memory_from_before_profiles_keeps_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fr.Engine._settings
    with monkeypatch.context() as before:
        before.setattr(fr.Engine, "_settings", lambda self: {k: v for k, v in settings(self).items() if k != "profile"})
        with fr.Engine.open(tmp_path, method="lucene", k1=1.2, b=0.75) as engine:
            engine.add(records())
            engine.save(tmp_path.with_name("saved"))
    with fr.Engine.open(tmp_path) as engine:
        assert (engine.profile, *numbers(engine)) == ("literature", "lucene", 1.2, 0.75)
    saved = fr.Engine.load(tmp_path.with_name("saved"))
    assert (saved.profile, *numbers(saved)) == ("literature", "lucene", 1.2, 0.75)
    with pytest.raises(fr.errors.ParameterError, match="was made with profile = 'literature', not 'chat'"):
        fr.Engine.open(tmp_path, profile="chat")


def test_the_command_line_takes_a_profile(tmp_path: Path) -> None:
    source = tmp_path / "records.jsonl"
    source.write_text("".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    found = CliRunner().invoke(main, ["add", str(tmp_path / "memory"), str(source), "--profile", "chat", "--b", "0.25"])
    assert found.exit_code == 0, found.output
    with fr.Engine.open(tmp_path / "memory") as memory:
        assert (memory.profile, *numbers(memory)) == ("chat", "bm25l", 1.5, 0.25)
    found = CliRunner().invoke(main, ["add", str(tmp_path / "memory"), str(source), "--profile", "code"])
    assert found.exit_code != 0
    assert "was made with profile = 'chat'" in found.output
