"""docker/: what the images and the compose file name is there, and none of them gives away rights or secrets."""

import json
import re
import runpy
import shlex
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.source import ROOT

from fanrank.engine.cli.main import main

DOCKER = ROOT / "docker"


@pytest.mark.parametrize("file", sorted(DOCKER.glob("Dockerfile.*")), ids=lambda file: file.name)
def test_an_image_names_what_is_there(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    steps = [line.partition(" ")[::2] for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    values = {name: [value for own, value in steps if own == name] for name, _ in steps}
    assert all(re.match(r"[\w-]+:\d[\w.-]*", base) for base in values["FROM"]), "a base without a version"
    assert all((ROOT / copied.split()[0]).exists() for copied in values["COPY"] if not copied.startswith("--from"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"[\w-]+", "".join(re.findall(r"'\.\[([\w,-]+)\]'", text))):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
    (user,) = values["USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "not a user by number, or root"
    assert not re.search(r"(?i)(key|secret|token|password)\w*=", "".join(values["ENV"]))
    assert [json.loads(volume) for volume in values["VOLUME"]] == [["/data"]]
    assert json.loads(values["ENTRYPOINT"][0]) == ["fanrank"]
    name, *arguments = json.loads(values["CMD"][0])
    given = main.commands[name].make_context(name, arguments).params
    # Without keys the server refuses to listen beyond its own machine, even in a container.
    assert (given["path"], given["keys"], given["host"]) == ("/data/memory", "/keys/keys.json", "0.0.0.0")
    assert values["EXPOSE"] == [str(given["port"])]


def test_the_compose_file_gives_away_no_rights() -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    for right in (
        "read_only: true",
        "cap_drop: [ALL]",
        '"no-new-privileges:true"',
        '"127.0.0.1:8765:8765"',
        "keys:/keys:ro",
    ):
        assert right in text
    (built,) = re.findall(r"dockerfile: (\S+)", text)
    assert (ROOT / built).is_file()
    (group, name, *arguments) = shlex.split(re.findall(r"run --rm (keys .*)", text)[0])
    main.commands[group].commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


class Answer(BaseHTTPRequestHandler):
    """Answers /v1/health alone, with the server's `status`."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/v1/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_the_health_check_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    check = runpy.run_path(str(DOCKER / "health.py"))["check"]
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        port = server.server_port
        for status, fault in ((200, None), (503, f"port {port} answers with status 503")):
            monkeypatch.setattr(Answer, "status", status)
            Thread(target=server.handle_request).start()
            assert check(port) == fault
    assert "does not answer" in check(port)
