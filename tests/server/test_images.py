"""docker/: what every image keeps to, and the CPU's built and used without docker, as far as this machine allows."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support import images, source
from support.images import DOCKERFILES, Image, Step, build, in_context, read_steps, stages_of

from fanrank.engine.cli.main import main as commands

DOCKER = source.ROOT / "docker"
OFFLINE = {
    # The extension is optional, and its compiler takes a quarter of a minute.
    **{"CC": "false", "CXX": "false"},
    # pip installs the package alone, and the container finds its requirements where this test does.
    **{"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_IGNORE_INSTALLED": "1"},
    "PYTHONPATH": sysconfig.get_path("purelib"),
    "PIP_QUIET": "1",
}


def faults_of(text: str) -> list[str]:
    """What a Dockerfile does that no image of a server should."""
    steps = read_steps(text)
    *_, last = stages_of(steps)
    named = {step.value.partition(" AS ")[2] for step in steps if step.name == "FROM"}
    found = []

    def refuse(fault: bool, message: str) -> None:
        if fault:
            found.append(message)

    for step in steps:
        if step.name == "FROM":
            base = step.value.partition(" AS ")[0]
            refuse(base not in named and not re.search(r":[\w.-]*\d[\w.-]*$", base), f"{base} has no tag of a version")
        if step.name == "ENV":
            refuse(bool(re.search(r"(?i)(?:key|secret|token|password)\w*=", step.value)), f"a secret: {step.value}")
        if step.name == "COPY":
            refuse("key" in step.value or "*" in step.value, f"what is copied is not certain: {step.value}")
        if step.name == "RUN":
            pip = step.value.startswith("pip ")
            refuse(pip and "--no-cache-dir" not in step.value, f"pip's cache is kept: {step.value}")
            refuse(
                "apt-get" in step.value and "rm -rf /var/lib/apt/lists/*" not in step.value,
                f"apt's lists are kept: {step.value}",
            )
    last_of = {step.name: step for step in last}
    user = last_of["USER"].value if "USER" in last_of else "0"
    refuse(not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), f"the user is {user}, and not a number other than 0")
    refuse(any(step.name == "RUN" for step in last[last.index(last_of.get("USER", last[-1])) :]), "RUN after USER")
    for name in ("ENTRYPOINT", "CMD"):
        refuse(not _is_list(last_of.get(name)), f"{name} is not a list, so that a shell would take the signals")
    health = last_of.get("HEALTHCHECK")
    refuse(health is None, "no health check")
    refuse(health is not None and bool(re.search(r"curl|wget", health.value)), "the base has no curl")
    refuse("VOLUME" not in last_of or last_of["VOLUME"].words != ["/data"], "the volume is not /data alone")
    return found


def _is_list(step: Step | None) -> bool:
    return step is not None and step.value.startswith("[")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_keeps_to_the_rules(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert faults_of(text) == []
    *_, last = stages_of(read_steps(text))
    (command,) = (step.words for step in last if step.name == "CMD")
    name, *arguments = command
    given = commands.commands[name].make_context(name, arguments).params
    # Keys are asked for: without them the server refuses to listen beyond its own machine, even in a container.
    assert (given["path"], given["keys"], given["host"]) == ("/data/memory", "/keys/keys.json", "0.0.0.0")
    exposed = [step.value for step in last if step.name == "EXPOSE"]
    assert exposed == [str(given["port"])]
    extras = {extra for found in re.findall(r"'\.\[([\w,-]+)\]'", text) for extra in found.split(",")}
    project = (source.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("python:3.13-slim-bookworm AS", "python:latest AS", "has no tag"),
        ("python:3.13-slim-bookworm AS", "python AS", "has no tag"),
        ("USER 10001:10001\n", "", "the user is 0"),
        ("USER 10001:10001", "USER root", "the user is root"),
        ("USER 10001:10001", "USER 10001:10001\nRUN true", "RUN after USER"),
        ("ENV PATH", "ENV FANRANK_KEY=abc PATH", "a secret"),
        ("COPY . .", "COPY keys.json .", "not certain"),
        (" --no-cache-dir", "", "pip's cache"),
        ("&& rm -rf /var/lib/apt/lists/*", "&& true", "apt's lists"),
        ('["fanrank"]', "fanrank", "ENTRYPOINT is not a list"),
        ("HEALTHCHECK", "# HEALTHCHECK", "no health check"),
        ('["python", "-I", "/opt/fanrank/health.py"]', "curl http://127.0.0.1:8765/v1/health", "no curl"),
        ('["/data"]', '["/"]', "the volume"),
    ],
)
def test_a_planted_fault_is_found(before: str, after: str, fault: str) -> None:
    text = (DOCKER / "Dockerfile.cpu").read_text(encoding="utf-8")
    assert before in text
    (found,) = faults_of(text.replace(before, after, 1))
    assert fault in found


def test_the_images_differ_in_what_a_gpu_needs_alone() -> None:
    cpu, cuda = ([(step.name, step.value) for step in read_steps(file.read_text())] for file in DOCKERFILES)
    assert [step for step in cpu if step not in cuda] == [
        ("RUN", "pip --python /opt/fanrank/bin/python install --no-cache-dir '.[mcp]'"),
        ("ENV", "PATH=/opt/fanrank/bin:$PATH"),
    ] + [step for step in cpu if step[0] == "HEALTHCHECK" and step not in cuda]


def test_what_docker_is_given_is_the_package_alone(tmp_path: Path) -> None:
    ignore = (source.ROOT / ".dockerignore").read_text(encoding="utf-8")
    given = images.copy_context(tmp_path)
    assert {path.split("/")[0] for path in given} == {
        *("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "docker", "src"),
        *source.FOLDERS,
    }
    assert [path for path in given if path.startswith("docker/")] == ["docker/health.py"]
    for path in ("keys.json", ".git/config", "tests/conftest.py", "memory/records.sqlite", "docker/Dockerfile.cpu"):
        assert not in_context(path, ignore), path
    for path in ("native/_compiled.abi3.so", "engine/__pycache__/engine.pyc", "src/fanrank.egg-info/PKG-INFO"):
        assert not in_context(path, ignore), path


def test_lines_of_a_dockerignore() -> None:
    ignore = "# a comment\n*\n!docs/*.md\n!deep\n**/*.so\ndeep/a?c\n!deep/abc/kept\n"
    for path, kept in {
        "README.md": False,
        "docs/a.md": True,
        "docs/a/b.md": False,
        "deep/x/y.py": True,
        "deep/x/y.so": False,
        "deep/abc/z": False,
        "deep/abc/kept": True,
        "deep/abbc/z": True,
    }.items():
        assert in_context(path, ignore) == kept, path


def test_steps_of_a_dockerfile() -> None:
    text = '# c\nFROM a:1 AS b\nRUN one \\\n    && two\n\nCOPY --from=b /x /y\nCMD ["a", "b c"]\n'
    steps = read_steps(text)
    assert [(step.line, step.name, step.value) for step in steps] == [
        (2, "FROM", "a:1 AS b"),
        (3, "RUN", "one && two"),
        (6, "COPY", "/x /y"),
        (7, "CMD", '["a", "b c"]'),
    ]
    assert steps[2].options == {"from": "b"}
    assert steps[3].words == ["a", "b c"]
    with pytest.raises(ValueError, match="line 1: ADD is not known"):
        read_steps("ADD x y")


def test_the_compose_file_gives_away_no_rights() -> None:
    yaml = pytest.importorskip("yaml")
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    services: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "environment" not in service
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    server, keys = services["fanrank"], services["keys"]
    assert server["ports"] == ["127.0.0.1:8765:8765"]
    assert server["volumes"] == ["data:/data", "keys:/keys:ro"]
    assert (keys["volumes"], keys["network_mode"]) == (["keys:/keys"], "none")
    for words in (keys["entrypoint"][1:] + keys["command"], _keys_of(text)):
        group: Any = commands.commands[words[0]]
        group.commands[words[1]].make_context(words[1], words[2:])


def _keys_of(text: str) -> list[str]:
    """The command of the file's first line that makes a key."""
    found = re.search(r"run --rm (keys .*)", text)
    assert found is not None
    return shlex.split(found[1])


class Answer(BaseHTTPRequestHandler):
    """Answers /v1/health alone, with the server's `status`."""

    def do_GET(self) -> None:
        self.send_response(getattr(self.server, "status") if self.path == "/v1/health" else 404)  # noqa: B009
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(("status", "fault"), [(200, None), (503, "answers with status 503"), (0, "does not answer")])
def test_the_health_check_says_what_is_wrong(status: int, fault: str | None) -> None:
    check: Callable[[int], str | None] = runpy.run_path(str(DOCKER / "health.py"))["check"]
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        port = server.server_port
        server.status = status  # type: ignore[attr-defined]
        if status:
            Thread(target=server.handle_request).start()
            assert check(port) == (fault and f"port {port} {fault}")
    if not status:
        wrong = check(port)
        assert wrong is not None
        assert fault is not None
        assert fault in wrong
        ended = subprocess.run([sys.executable, str(DOCKER / "health.py"), str(port)], capture_output=True, text=True)
        assert ended.returncode == 1
        assert fault in ended.stderr


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    lacking = images.why_not()
    if lacking:
        pytest.skip(lacking)
    pytest.importorskip("mcp")
    folder = tmp_path_factory.mktemp("image")
    left_out = (*images.LEFT_OUT, "/opt/fanrank/bin/python -c")
    return build(DOCKER / "Dockerfile.cpu", folder, base=OFFLINE, left_out=left_out)


@pytest.mark.slow
def test_the_image_is_built_serves_and_writes_to_its_volume_alone(image: Image, tmp_path: Path) -> None:
    assert image.left_out == [
        "apt-get update",
        "apt-get install -y --no-install-recommends g++",
        '/opt/fanrank/bin/python -c "import fanrank.native._compiled"',
    ]
    assert json.dumps(image.volumes) == '["/data"]'
    images.check_image(image, tmp_path / "volumes")
