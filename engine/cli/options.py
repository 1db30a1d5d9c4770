"""Options that several commands share, and dataclasses in which related options reach a command."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from ...client.opening import open_with
from ...shards.choosing import LOCAL, RAY, ShardSettings, is_address, is_sharded, open_directory, refuse_address
from ..backends import choose as backends
from ..carry.files import FORMATS
from ..encoders.sparse import SparseSentenceEncoder
from ..engine import Engine
from ..errors import ForeignIndexError, ParameterError
from ..evaluate.encoders import open_encoder
from ..hybrid.strategy import Strategy
from ..index.bm25 import METHODS, QUERY_TF
from ..index.profiles import DEFAULT_PROFILE, PROFILES
from ..memory import Memory
from ..plan.device_options import POSTING_BYTES, SELECT, DeviceOptions
from ..records.declared import Declared
from ..records.neighbours import Neighbours
from ..route.by_namespace import AnyAnswerer, answerer_of
from ..route.policy import MENU, Policy, answerer_to_dict, strategy_of
from ..settings import KEY_VARIABLE
from ..storage.row_codec import RECORDS
from ..text.analyzers import ANALYZERS, DEFAULT_ANALYZER
from .output import print_json
from .values import FILTER_HELP, parse_columns, parse_duration, parse_moment, parse_object

Command = TypeVar("Command", bound=Callable[..., Any])
Answered = TypeVar("Answered")
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

# Eager, so that options that print and exit know of it, wherever it stands.
json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, help="Print one JSON object instead of text."
)


def _list_strategies(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        if context.params.get("as_json"):
            print_json({name: answerer_to_dict(one) for name, one in MENU.items()})
        else:
            for one in MENU.values():
                click.echo(one)
        context.exit()


list_option = click.option(
    "--list-strategies",
    is_flag=True,
    expose_value=False,
    callback=_list_strategies,
    help="Print the strategies to pick from and exit. Those that reproduce a source are in fanrank.published.",
)


def _checked_path(context: click.Context, _: click.Parameter, path: str) -> str:
    """The path, in which no shell may have read ``~``. Tells who gives a file how the command is written."""
    if os.path.isfile(path := os.path.expanduser(path)):
        words = [path if word == "FILE" else word for word in context.command.collect_usage_pieces(context)[1:]]
        command = f"fanrank {context.info_name}"
        raise ParameterError(f"{command} takes a memory first, and {path} is a file: {command} {' '.join(words)}")
    return path


memory_argument = click.argument("path", type=click.Path(), metavar="MEMORY", callback=_checked_path)


def _keep_key(context: click.Context, parameter: click.Parameter, key: str | None) -> None:
    given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    context.meta[KEY_VARIABLE] = key, given


_key_option = click.option(
    "--key",
    envvar=KEY_VARIABLE,
    expose_value=False,
    callback=_keep_key,
    help=f"Key for the server, where MEMORY is an address. Default: {KEY_VARIABLE} of the environment.",
)


def served_argument(command: Command) -> Command:
    """MEMORY, which may also be the address of a server, and the key for it."""
    return memory_argument(_key_option(command))


def given_key(path: str) -> dict[str, Any]:
    """The keyword of `Client` for the key that the command line gives. Raises `ParameterError` for a directory."""
    key, given = click.get_current_context().meta.get(KEY_VARIABLE, (None, False))
    if is_address(path):
        return {"key": key}
    if given:
        raise ParameterError(f"{path}: --key is for the address of a server (http://HOST:PORT)")
    return {}


accept_loss_option = click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on where acknowledged changes are missing, as after the loss of the database's log.",
)
backend_option = click.option(
    "--backend",
    type=click.Choice(backends.BACKENDS),
    help="Use this backend instead of the one that `fanrank doctor` names.",
)
threads_option = click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Number of threads that score a batch."
)
encoder_option = click.option(
    "--encoder",
    metavar="MODEL",
    help="Model that makes embeddings: a sentence-transformers name, a folder, or a package that holds one.",
)
term_encoder_option = click.option(
    "--term-encoder", metavar="MODEL", help="SparseEncoder of sentence-transformers that makes learned term weights."
)
embeddings_option = click.option(
    "--embeddings",
    type=click.Path(),
    help="File that keeps the embeddings of --encoder, so that no text is encoded twice.",
)


def bundle(
    name: str, kind: Callable[..., Any], *options: Option, names: Sequence[str] | None = None
) -> Callable[[Command], Command]:
    """A decorator that adds `options` to a command and hands their values over as one argument `name`, a `kind`.

    `kind` takes the options' parameters by their `names`. None: it is a dataclass with fields of these names; a field
    without an option keeps its default.
    """
    taken = [field.name for field in fields(cast(Any, kind))] if names is None else names

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_bundle(*arguments: Any, **values: Any) -> Any:
            members = {member: values.pop(member) for member in taken if member in values}
            return command(*arguments, **values, **{name: kind(**members)})

        decorated: Any = with_bundle
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


_PLAIN: tuple[str, Callable[[Any], Any]] = "", lambda value: value
_WRITTEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "moment": (" Seconds since 1970, or an ISO 8601 date.", parse_moment),
    "span": (" A number and a unit (s, m, h, d, w), such as 12h or 7d.", parse_duration),
    "strings": (" Repeatable.", lambda values: values or None),
    "object": (" As a JSON object.", parse_object),
    "filter": (f" Those {FILTER_HELP} Repeatable.", lambda filters: filters),
}
"""How values of these kinds are written, and what reads them. A filter is read where its memory is open."""


def declared_option(field: Declared) -> Option:
    """The option of a field, or of a parameter of a verb, by its declaration."""
    kinds: dict[str, Any] = {"integer": click.IntRange(field.about.least), "number": float}
    several = field.kind in ("strings", "filter")
    return click.option(
        f"--{field.name.replace('_', '-')}",
        field.name,
        type=click.Choice(field.choices) if field.choices else kinds.get(field.kind),
        is_flag=field.kind == "boolean",
        multiple=several,
        required=field.required,
        metavar={"filter": "COLUMN=VALUE", "object": "JSON"}.get(field.kind),
        default=None if several else field.default,
        show_default=bool(field.choices),
        help=field.about.text.replace("`", "'") + _WRITTEN.get(field.kind, _PLAIN)[0],
    )


def read_value(field: Declared, value: Any) -> Any:
    """What the option of a field says. Raises `ParameterError`."""
    return _WRITTEN.get(field.kind, _PLAIN)[1](value)


@dataclass(frozen=True)
class NeighbourOptions:
    """What records borrow from their neighbours, as it is written on the command line."""

    neighbours: int | None
    neighbour_weights: tuple[float, ...]

    def read(self) -> Neighbours | None:
        """None where the command line does not say. Raises `ParameterError` and `QueryError`."""
        if self.neighbours is None:
            if self.neighbour_weights:
                raise ParameterError("--neighbour-weight needs a number of neighbours: give --neighbours")
            return None
        weights = self.neighbour_weights
        if not weights:
            return Neighbours(self.neighbours)
        return Neighbours(self.neighbours, weights[0] if len(weights) == 1 else weights)


neighbour_options = bundle(
    "borrowed",
    NeighbourOptions,
    click.option(
        "--neighbours",
        type=int,
        metavar="N",
        help="Let a record borrow from the N records before and the N after it in its session, 0 to 8. Default: none, "
        "or what the strategy says.",
    ),
    click.option(
        "--neighbour-weight",
        "neighbour_weights",
        type=float,
        multiple=True,
        metavar="WEIGHT",
        help="Share of a neighbour's score that is borrowed, above 1/128 to 1; repeatable, one for each distance. "
        f"Default: {Neighbours().weight}.",
    ),
)


@dataclass(frozen=True)
class EngineParameters:
    """How an engine analyses texts and scores terms."""

    analyzer: str
    profile: str | None
    method: str | None
    k1: float | None
    b: float | None
    delta: float | None
    query_tf: str
    fields: tuple[str, ...]
    """``NAME=WEIGHT``, as on the command line."""
    columns: tuple[str, ...]
    """``NAME:KIND``, as on the command line."""

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for `Engine`.

        Raises `ParameterError` for a field that is not NAME=WEIGHT, and a column that is not NAME:KIND.
        """
        return {**vars(self), "fields": _field_weights(self.fields), "columns": self._columns()}

    def given_keywords(self, context: click.Context) -> dict[str, Any]:
        """Those of `keywords` that the command line names. Defaults are left out."""
        given = {name: value for name, value in vars(self).items() if is_given(context, name)}
        if "fields" in given:
            given["fields"] = _field_weights(self.fields)
        if "columns" in given:
            given["columns"] = self._columns()
        return given

    def _columns(self) -> dict[str, str]:
        return parse_columns(self.columns, "--column")


def is_given(context: click.Context, name: str) -> bool:
    """Whether the command line names the parameter; its default does not count."""
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _field_weights(options: tuple[str, ...]) -> dict[str, float] | None:
    weights: dict[str, float] = {}
    for option in options:
        name, separator, weight = option.partition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            separator = ""
        if not separator:
            raise ParameterError(f"--field takes NAME=WEIGHT, not {option!r}")
    return {"text": 1.0, **weights} if weights else None


engine_options = bundle(
    "parameters",
    EngineParameters,
    click.option(
        "--analyzer",
        default=DEFAULT_ANALYZER,
        show_default=True,
        help=f"How a text becomes terms. One of: {', '.join(ANALYZERS)}, snowball:LANGUAGE.",
    ),
    click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        help="What the records are like. It gives --method, --k1 and --b where they are not given. Default: "
        f"{DEFAULT_PROFILE}.",
    ),
    click.option(
        "--method",
        type=click.Choice(METHODS),
        help="Variant of BM25. Default: the profile's. lucene's scores are k1 + 1 times those of Lucene itself, in the "
        "same order.",
    ),
    click.option(
        "--k1",
        type=float,
        help="BM25's k1, 0 or more: how much a repeated term still adds. Default: the profile's.",
    ),
    click.option(
        "--b",
        type=float,
        help="BM25's b, 0 to 1: how much a record's length counts. Default: the profile's.",
    ),
    click.option(
        "--delta",
        type=float,
        help="BM25's delta, 0 or more, for bm25l (default 0.5) and bm25+ (default 1).",
    ),
    click.option(
        "--query-tf",
        type=click.Choice(QUERY_TF),
        default="count",
        show_default=True,
        help="Score a term that a query repeats as often as it stands there (count), or once (unique).",
    ),
    click.option(
        "--field",
        "fields",
        multiple=True,
        metavar="NAME=WEIGHT",
        help="Also score this field of the records, with this weight (BM25F); repeatable. The text has weight 1.",
    ),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="NAME:KIND",
        help="Filter by this value of the records too: a category, a number or json; repeatable.",
    ),
)


@dataclass(frozen=True)
class Models:
    """Names of the models that encode texts, and the file that caches the embeddings of `encoder`."""

    encoder: str | None = None
    embeddings: str | None = None
    term_encoder: str | None = None

    def load(self) -> dict[str, Any]:
        """Load the named encoders, as keyword arguments for `Engine`. Raises `ParameterError`."""
        if self.encoder is None and self.embeddings is not None:
            raise ParameterError("--embeddings keeps what --encoder makes; give both")
        loaded: dict[str, Any] = {}
        if self.encoder is not None:
            loaded["encoder"] = open_encoder(self.encoder, self.embeddings)
        if self.term_encoder is not None:
            loaded["term_encoder"] = SparseSentenceEncoder(self.term_encoder)
        return loaded


device_options = bundle(
    "device",
    DeviceOptions,
    click.option(
        "--posting-bytes",
        type=click.Choice([str(size) for size in POSTING_BYTES]),
        callback=lambda context, parameter, value: None if value is None else int(value),
        help="Bytes of a posting in the memory of --backend. 4: for up to 4,096 kinds of postings.",
    ),
    click.option("--tile-bits", type=int, help="Let --backend score 2**N documents together."),
    click.option("--select", type=click.Choice(SELECT), help="How the CUDA kernels of --backend find the best."),
)
format_option = click.option(
    "--format",
    type=click.Choice(FORMATS),
    help="Format of FILE. Default: by its suffix; else, and for -, JSON lines.",
)
shard_options = bundle(
    "shard_settings",
    ShardSettings,
    click.option(
        "--shards",
        type=click.IntRange(min=1),
        metavar="COUNT",
        help="Make MEMORY of so many shards, if it is not there.",
    ),
    click.option("--address", help="Cluster of Ray that holds the shards: auto, or ray://HOST:PORT."),
    click.option("--storage", type=click.Path(), help="Folder of the shards' directories. Default: MEMORY."),
)
transport_option = click.option(
    "--transport",
    type=click.Choice((RAY, LOCAL)),
    default=RAY,
    show_default=True,
    help="Where the shards of a sharded memory run: in processes of Ray, or in this one.",
)
replicas_option = click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="Processes that answer for each shard of a sharded memory. Default: 1.",
)
model_options = bundle("models", Models, encoder_option, embeddings_option, term_encoder_option)


def holds_records(path: str) -> bool:
    """Whether the directory is one engine's, or a sharded memory."""
    return os.path.exists(os.path.join(path, RECORDS)) or is_sharded(path)


def open_memory(path: str, settings: ShardSettings | None = None, *, make: bool = False, **options: Any) -> Memory:
    """Open a directory, which `make` may make if it is not there, or a server. Raises `ForeignIndexError`."""
    key = given_key(path)
    if not is_address(path):
        refuse_address(path)
        if not (make or holds_records(path)):
            raise ForeignIndexError(f"{path}: no engine's directory (it has no {RECORDS})")
    # At its default an option says nothing of a server, which has none of a directory's.
    given = {name: value for name, value in options.items() if value or not is_address(path)}
    return open_with(path, settings, progress=True, **key, **given)


def open_engine(path: str, **options: Any) -> Memory:
    """Open what `path` holds for searching: an engine's directory, a sharded memory or a saved index; or a server."""
    key = given_key(path)
    if is_address(path):
        return open_with(path, None, **key, **options)
    refuse_address(path)
    if holds_records(path):
        return open_directory(path, read_only=True, progress=True, **options)
    return Engine.load(path, **options)


def parse_strategy(text: str) -> Strategy | Policy:
    """A strategy or policy by its name, or as the JSON of its `to_dict`. Raises `ParameterError`."""
    return _parse_strategy(text, strategy_of)


def parse_answerer(text: str) -> AnyAnswerer:
    """As `parse_strategy`, and also the JSON of a strategy for each namespace."""
    return _parse_strategy(text, answerer_of)


def _parse_strategy(text: str, parse: Callable[[Any], Answered]) -> Answered:
    if not text.startswith("{"):
        return parse(text)
    try:
        return parse(json.loads(text))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"--strategy {text[:80]!r}: not JSON: {error}") from None
