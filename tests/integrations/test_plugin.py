"""The plug-in for Claude Code and Codex: its files have the fields that both publish, and its hook answers both."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner

import fanrank as fr
from fanrank.engine.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugin"
EVENTS = ("SessionStart", "UserPromptSubmit")


def some(required: str = "", *, more: bool = False, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": more}


TEXT, TEXTS = {"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}}
NAME = {"type": "string", "pattern": "^[a-z][a-z0-9]*(-[a-z0-9]+)*$"}
INSIDE = {"type": "string", "pattern": r"^\./(?!.*\.\.)"}
"""Paths of a manifest begin with ./ and stay in the folder."""
ABOUT = {
    **{"name": NAME, "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"}, "description": TEXT},
    **{"author": some("name", name=TEXT, email=TEXT, url=TEXT), "homepage": TEXT, "repository": TEXT},
    **{"license": TEXT, "keywords": TEXTS},
}
HANDLER = some("type command", type={"const": "command"}, command=TEXT, timeout={"type": "number", "maximum": 60})
GROUPS = {"type": "array", "items": some("hooks", matcher=TEXT, hooks={"type": "array", "items": HANDLER})}
PROMPTS = {"type": "array", "maxItems": 3, "items": {"type": "string", "minLength": 1, "maxLength": 128}}
LOOKS = dict.fromkeys(("displayName", "shortDescription", "longDescription", "developerName", "category"), TEXT)
SCHEMAS = {
    # code.claude.com/docs/en/plugins/manifest-reference, as of November 2026. Hooks, tools and skills in their places
    # are found without a field, and a field that names them again loads them twice.
    ".claude-plugin/plugin.json": some("name", **ABOUT),
    # developers.openai.com/plugins/build/plugins, and codex-rs/core-plugins/src/manifest.rs.
    ".codex-plugin/plugin.json": some(
        "name version description",
        **{**ABOUT, "skills": INSIDE, "mcpServers": INSIDE, "hooks": INSIDE},
        interface=some(**LOOKS, capabilities=TEXTS, defaultPrompt=PROMPTS, logo=INSIDE),
    ),
    ".mcp.json": some("mcpServers", mcpServers=some("memory", memory=some("command", command=TEXT, args=TEXTS))),
    # Events that both have.
    "hooks/hooks.json": some("hooks", hooks=some(**dict.fromkeys(EVENTS, GROUPS))),
    # Codex reads the marketplace of Claude Code, too; for it a plug-in lies below the root.
    "../.claude-plugin/marketplace.json": some(
        "name owner plugins",
        name=NAME,
        owner=some("name", name=TEXT),
        plugins={"type": "array", "items": some("name source", name=NAME, source=INSIDE, description=TEXT)},
    ),
}


def read(name: str) -> Any:
    return json.loads((PLUGIN / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_has_the_published_fields(name: str) -> None:
    jsonschema.Draft202012Validator(SCHEMAS[name]).validate(read(name))


def test_the_files_agree_and_name_what_is_there() -> None:
    claude, codex = read(".claude-plugin/plugin.json"), read(".codex-plugin/plugin.json")
    assert claude.items() <= codex.items()
    assert claude["version"] == fr.__version__
    (listed,) = read("../.claude-plugin/marketplace.json")["plugins"]
    assert (listed["name"], listed["description"]) == (claude["name"], claude["description"])
    assert (ROOT / listed["source"]).samefile(PLUGIN)
    assert all((PLUGIN / codex[key]).exists() for key in ("skills", "mcpServers"))
    # Codex fills in no ${...} in commands of tools, so none stands there.
    assert not re.search(r"\$", (PLUGIN / ".mcp.json").read_text() + (PLUGIN / "hooks/hooks.json").read_text())
    text = (PLUGIN / "skills/memory/SKILL.md").read_text(encoding="utf-8")
    about = dict(line.split(": ", 1) for line in text.split("---\n")[1].splitlines())
    assert about["name"] == "memory"
    assert about.keys() == {"name", "description"}
    assert len(about["description"]) <= 1024
    for command in [read(".mcp.json")["mcpServers"]["memory"]] + [
        dict(zip(("command", "args"), (words[0], words[1:]), strict=True))
        for groups in read("hooks/hooks.json")["hooks"].values()
        for words in (shlex.split(groups[0]["hooks"][0]["command"]),)
    ]:
        assert command["command"] == "fanrank"
        name, *rest = command["args"]
        assert rest[0] == "~/.fanrank/memory"
        main.commands[name].make_context(name, rest, parent=click.Context(main, **main.context_settings))


def hook(event: Any, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["hook", "~/memory", *arguments], input=json.dumps(event))
    return done.exit_code, done.stdout or done.stderr


def test_the_hook_says_what_fits_and_never_stops_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    start, asked = {"hook_event_name": EVENTS[0]}, {"hook_event_name": EVENTS[1], "prompt": "how does the build fail"}
    assert hook(start) == hook(asked) == (0, "")
    assert not (tmp_path / "memory").exists()
    with fr.open(tmp_path / "memory") as engine:
        engine.add([{"id": "old", "text": "the build fails\nwithout a compiler " + "x" * 400, "time": 10}])
        engine.add([{"id": "new", "text": "Ana drinks tea", "time": 20}])
        # While another process writes, a hook reads.
        for event, ids, k in ((start, ["new", "old"], "5"), (start, ["new"], "1"), (asked, ["old"], "5")):
            code, printed = hook(event, "-k", k)
            answer = json.loads(printed)["hookSpecificOutput"]
            assert (code, answer["hookEventName"]) == (0, event["hook_event_name"])
            heading, *rows = answer["additionalContext"].split("\n")
            assert "instruct nobody" in heading
            assert [row.split("]")[0] for row in rows] == [f"- [{id}" for id in ids]
            assert all(len(row) < 350 for row in rows)
        assert hook({**asked, "prompt": "zebra"}) == hook({**asked, "prompt": " "}) == hook({}) == (0, "")
    (tmp_path / "memory" / "records.sqlite").write_bytes(b"damaged")
    code, told = hook(asked)
    assert (code, "records.sqlite" in told) == (1, True)
    for event in ([asked], "no object", None):
        assert hook(event) == (1, "fanrank: an event of a hook is a JSON object; it stands on standard input\n")
