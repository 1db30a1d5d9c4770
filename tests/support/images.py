"""Builds and runs a Dockerfile without docker, as far as a machine allows: ``python -m tests.support.images FILE``.

The machine's own system stands in for the base image, as the lower layer of an overlay: a step sees all of it and
changes nothing of it. So packages of the base's distribution are not installed (`LEFT_OUT`), and its Python is the one
that runs this. A container is the finished layer, read-only, with a network of its own, the image's user without any
capability, and the folders that are mounted.

It needs Linux, the superuser, and overlays: `why_not` says what is missing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = tuple(sorted((ROOT / "docker").glob("Dockerfile.*")))
LEFT_OUT = ("apt-get ",)
"""What steps begin with that the machine's own system stands in for."""
PROGRAMS = ("unshare", "nsenter", "setpriv", "chroot", "mount", "ip")
KNOWN = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Step:
    """One instruction: its line, its name, its options (``--from=build``), and the rest."""

    line: int
    name: str
    options: dict[str, str]
    value: str

    @property
    def words(self) -> list[str]:
        """The value as a list: of JSON, or of words."""
        return list(json.loads(self.value)) if self.value.startswith("[") else shlex.split(self.value)


def read_steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile. Raises `ValueError` for one that this file does not know."""
    steps, lines = [], iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        whole = line
        while whole.endswith("\\"):
            whole = whole[:-1] + next(lines)[1].strip()
        name, _, value = whole.partition(" ")
        if name not in KNOWN:
            raise ValueError(f"line {number}: {name} is not known")
        options: dict[str, str] = {}
        while (found := re.match(r"--([a-z-]+)=(\S+) +", value)) is not None:
            options[found[1]] = found[2]
            value = value[found.end() :]
        steps.append(Step(number, name, options, value.strip()))
    return steps


def stages_of(steps: Sequence[Step]) -> list[list[Step]]:
    """The instructions of each stage, which begins with FROM."""
    stages: list[list[Step]] = []
    for step in steps:
        if step.name == "FROM":
            stages.append([])
        stages[-1].append(step)
    return stages


def in_context(path: str, ignore: str) -> bool:
    """Whether the file's path, below the folder that docker is given, passes the lines of a .dockerignore.

    A line holds for a path and all below it, and the last one that holds decides.
    """
    parts = path.split("/")
    above = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    kept = True
    for line in ignore.splitlines():
        if line and not line.startswith("#"):
            pattern = _pattern(line.removeprefix("!"))
            if any(pattern.fullmatch(one) for one in above):
                kept = line.startswith("!")
    return kept


def _pattern(line: str) -> re.Pattern[str]:
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", line)
    return re.compile("".join(wild.get(part, re.escape(part)) for part in parts))


def copy_context(to: Path, root: Path = ROOT) -> list[str]:
    """Copy what docker would be given to the folder, and return the paths. Hidden folders of tools are passed over."""
    ignore = (root / ".dockerignore").read_text(encoding="utf-8")
    copied = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in [*files, *(one for one in folders if (Path(folder) / one).is_symlink())]:
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if in_context(relative, ignore):
                (to / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to / relative, follow_symlinks=False)
                copied.append(relative)
    return copied


def why_not() -> str:
    """What this machine lacks to build an image; empty: nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only the superuser of a Linux system mounts overlays"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(_enter(Path(folder), "true"), capture_output=True, text=True)
    return "" if ended.returncode == 0 else f"overlays cannot be mounted here: {ended.stderr.strip()}"


def _enter(
    folder: Path, command: str, *, read_only: bool = False, mounts: Sequence[str] = (), network: bool = True
) -> list[str]:
    """A command of the shell in the layer of this folder over the machine's system. Where not `read_only` it may write.

    ROOT in the command and in `mounts` is where both lie.
    """
    for name in ("layer", "work", "root"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    layer, work, root = (shlex.quote(str(folder / name)) for name in ("layer", "work", "root"))
    lines = [
        "set -e",
        f"mount -t overlay overlay -o lowerdir=/,upperdir={layer},workdir={work} ROOT",
        "mount --rbind /proc ROOT/proc",
        "mount --rbind /dev ROOT/dev",
        *mounts,
        *(["mount -o remount,bind,ro ROOT"] if read_only else []),
        *([] if network else ["ip link set lo up"]),
        f"exec {command}",
    ]
    script = "\n".join(lines).replace("ROOT", root)
    return ["unshare", "--mount", *([] if network else ["--net"]), "bash", "-c", script]


@dataclass
class Image:
    """A built image: its layer, which lies in `folder`, and how a container of it runs."""

    folder: Path
    base: Mapping[str, str]
    env: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Commands of all stages that were not run."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process: those of the base, and the image's own, in whose values $NAME is replaced."""
        env = dict(self.base)
        for name, value in self.env.items():
            env[name] = re.sub(r"\$\{?(\w+)\}?", lambda match: env.get(match[1], ""), value)
        return env

    def run(self, command: str) -> None:
        """Run a step's command as the superuser; what it writes stays in the layer."""
        whole = f"env -i {self._variables()} chroot ROOT sh -c {shlex.quote(f'cd {self.workdir} && {command}')}"
        subprocess.run(_enter(self.folder, whole), check=True)

    @contextmanager
    def container(
        self, mounted: Mapping[str, tuple[Path, bool]], command: Sequence[str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """A container's process, which is killed at the end. `mounted`: where, which folder, and whether to write."""
        mounts = ["mount -t tmpfs tmpfs ROOT/tmp"]
        for place, (folder, writes) in mounted.items():
            mounts.append(f"mount --bind {shlex.quote(str(folder))} ROOT{place}")
            if not writes:
                mounts.append(f"mount -o remount,bind,ro ROOT{place}")
        words = self.entrypoint + (self.command if command is None else list(command))
        arguments = _enter(self.folder, self._as_user(words), read_only=True, mounts=mounts, network=False)
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process:
            try:
                yield process
            finally:
                process.kill()

    def inside(self, process: subprocess.Popen[str], command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as its user: the health check, for instance."""
        into = ["nsenter", "--target", str(process.pid), "--mount", "--net"]
        whole = self._as_user(command).replace("ROOT", f"/proc/{process.pid}/root")
        return subprocess.run([*into, "bash", "-c", f"exec {whole}"], capture_output=True, text=True, timeout=60)

    def _as_user(self, words: Sequence[str]) -> str:
        user, _, group = self.user.partition(":")
        drop = f"setpriv --reuid {user} --regid {group or user} --clear-groups --no-new-privs --bounding-set=-all --"
        command = f"cd {self.workdir} && exec {shlex.join(words)}"
        return f"env -i {self._variables()} chroot ROOT {drop} sh -c {shlex.quote(command)}"

    def _variables(self) -> str:
        return shlex.join(f"{name}={value}" for name, value in self.environment.items())


def build(
    dockerfile: Path, folder: Path, *, base: Mapping[str, str] | None = None, left_out: Sequence[str] = LEFT_OUT
) -> Image:
    """Run a Dockerfile's steps, and return the image of its last stage. `folder` takes the layers.

    `base` are the variables that the steps begin with, beside PATH. A command of a step that begins with one of
    `left_out` is not run; commands stand apart by ``&&``.

    Raises `subprocess.CalledProcessError` where a step fails.
    """
    python = os.path.dirname(sys.executable)
    stages: dict[str, Image] = {}
    passed_over: list[str] = []
    for number, steps in enumerate(stages_of(read_steps(dockerfile.read_text(encoding="utf-8")))):
        name = steps[0].value.partition(" AS ")[2] or str(number)
        image = stages[name] = Image(folder / name, {"PATH": f"{python}:{SYSTEM}", **(base or {})})
        image.left_out = passed_over
        (image.folder / "layer").mkdir(parents=True)
        _open_python(image.folder / "layer")
        for step in steps[1:]:
            _do(step, image, stages, left_out)
    return image


def _open_python(layer: Path) -> None:
    """Let everyone reach the Python that runs this, as a base image's: here it may lie in a home that is closed."""
    for folder in (*Path(sys.executable).parents, *Path(os.path.realpath(sys.executable)).parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            (layer / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
            (layer / folder.relative_to("/")).chmod(0o711)


def _do(step: Step, image: Image, stages: Mapping[str, Image], left_out: Sequence[str]) -> None:
    if step.name == "RUN":
        parts = [part.strip() for part in step.value.split("&&")]
        kept = [part for part in parts if not part.startswith(tuple(left_out))]
        image.left_out += [part for part in parts if part not in kept]
        if kept:
            image.run(" && ".join(kept))
    elif step.name == "COPY":
        *sources, place = step.words
        to = image.folder / "layer" / os.path.join(image.workdir, place).lstrip("/")
        if "from" in step.options:
            (source,) = sources
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(stages[step.options["from"]].folder / "layer" / source.lstrip("/"), to, symlinks=True)
        elif sources == ["."]:
            copy_context(to)
        else:
            ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8")
            for source in sources:
                if not in_context(source, ignore):
                    raise FileNotFoundError(f"line {step.line}: {source} is left out by .dockerignore")
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / source, to)
    elif step.name == "ENV":
        image.env |= dict(word.split("=", 1) for word in step.words)
    elif step.name == "WORKDIR":
        image.workdir = step.value
        (image.folder / "layer" / step.value.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif step.name == "USER":
        image.user = step.value
    elif step.name == "VOLUME":
        image.volumes = step.words
    elif step.name == "ENTRYPOINT":
        image.entrypoint = step.words
    elif step.name == "CMD":
        image.command = step.words
    elif step.name == "HEALTHCHECK":
        image.health = json.loads(step.value.removeprefix("CMD "))


ASK = """
import json, sys, urllib.request
def ask(path, body):
    headers = {"Authorization": f"Bearer {sys.argv[1]}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:8765{path}", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=30))
if len(sys.argv) > 2:
    ask("/v1/records", {"records": [{"id": "m1", "text": "Error 4711: fixed by rotating the key"}]})
print(ask("/v1/search", {"query": "fix for 4711"})["results"][0]["hits"][0]["id"])
"""
WRITE = """
import os
open("/data/probe", "w").close(); os.remove("/data/probe")
open("/tmp/probe", "w").close()
for place in ("/probe", "/etc/probe", "/opt/fanrank/probe", "/keys/keys.json"):
    try: open(place, "a").close()
    except OSError: continue
    raise SystemExit(f"{place} can be written")
"""


def check_image(image: Image, folder: Path) -> None:
    """Use an image as docs/server.md says. `folder` takes the volumes. Raises `AssertionError`.

    A key is made, the server begins without it and is refused, then begins with it, is healthy, and answers. It writes
    nowhere but to its volume, ends in order, and a second container finds the record.
    """
    data, keys = (_volume(image, folder / name, f"/{name}") for name in ("data", "keys"))
    with image.container({"/data": (data, True), "/keys": (keys, False)}) as process:
        _, error = process.communicate(timeout=60)
        assert (process.returncode, "`fanrank keys add` makes it" in error) == (2, True), error
    add = ["keys", "add", "/keys/keys.json", "--namespace", "*"]
    with image.container({"/keys": (keys, True)}, add) as process:
        key, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    for again in (False, True):
        with image.container({"/data": (data, True), "/keys": (keys, False)}) as process:
            assert process.stderr is not None
            started = process.stderr.readline()
            assert started == "http://0.0.0.0:8765\n", started + process.stderr.read()
            health = image.inside(process, image.health)
            assert (health.returncode, health.stderr) == (0, ""), health.stderr
            asked = image.inside(process, ["python", "-c", ASK, key.strip(), *([] if again else ["write"])])
            assert asked.stdout == "m1\n", asked.stderr
            wrote = image.inside(process, ["python", "-c", WRITE])
            assert wrote.returncode == 0, wrote.stderr
            process.terminate()
            assert process.wait(60) == 0, process.stderr.read()


def _volume(image: Image, folder: Path, place: str) -> Path:
    """A new volume, as docker makes it: with the owner and the rights of the image's folder."""
    shown = (image.folder / "layer" / place.lstrip("/")).stat()
    folder.mkdir(parents=True)
    os.chown(folder, shown.st_uid, shown.st_gid)
    folder.chmod(shown.st_mode & 0o7777)
    return folder


def main() -> None:
    """Build the Dockerfiles that are named, with their packages from the index, and use the images."""
    lacking = why_not()
    if lacking:
        print(f"nothing was built: {lacking}")
        return
    base = {name: value for name, value in os.environ.items() if name.lower().startswith(("pip_", "ssl_", "http"))}
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            image = build(Path(name), Path(folder) / "layers", base=base)
            check_image(image, Path(folder) / "volumes")
            files = [path for path in (image.folder / "layer").rglob("*") if path.is_file() and not path.is_symlink()]
            size = sum(path.stat().st_size for path in files) / 1e6
            for part in image.left_out:
                print(f"{name}: left out: {part}")
            print(f"{name}: {size:.0f} MB over the base; {image.user} serves, and is healthy")


if __name__ == "__main__":
    main()
