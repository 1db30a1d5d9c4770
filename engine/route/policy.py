"""Policies, and the JSON file that holds one, apart from the index (SPEC A103).

The file is ``{"format": "fanrank-policy", "version": 1, "policy": …, "about": …}``. ``policy`` is the policy's
`to_dict`, with the classifier's arrays as lists of numbers. If one strategy is best for all queries, it stands there
with ``"kind": "strategy"``. ``about`` holds any notes of the policy's author. Floats are written in full, so a policy
is loaded with the bits with which it was saved. The file contains no code, and a pickle is refused like any other file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..errors import ParameterError, PolicyFileError, choices
from ..hybrid.strategy import NAMED, STRATEGIES, AnyStrategy, Strategy
from ..storage.sync import replace_file
from .cascade import AUTO, LONGMEMEVAL_THRESHOLDS, Cascade
from .router import LONGMEMEVAL_SYSTEMS, Router

FORMAT = "fanrank-policy"
VERSION = 1
STRATEGY = "strategy"
"""The ``kind`` of a strategy that stands in place of a policy."""

Policy = Cascade | Router
AnyPolicy = str | Policy | Mapping[str, Any]
Answerer = Strategy | Policy
"""What answers a batch: one strategy for all queries, or a policy that decides for each query."""

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        AUTO,
        Cascade(),
        Cascade(taus=LONGMEMEVAL_THRESHOLDS, name="cascade-per-type"),
        Router(LONGMEMEVAL_SYSTEMS, NAMED["bm25"], name="router-by-type"),
    )
}
"""The named policies. Those by type take a query's own `type`; a router that predicts it has to be fitted."""

MENU: dict[str, Answerer] = {**STRATEGIES, "auto": AUTO}
"""What a search may name and somebody should pick."""
PUBLISHED: dict[str, Answerer] = {name: one for name, one in {**NAMED, **POLICIES}.items() if name not in MENU}
"""By name: the strategies and policies that reproduce what a source describes, word for word. Some lose to BM25."""


def policy_of(value: AnyPolicy) -> Policy:
    """A policy from its name or from the mapping of its `to_dict`; a policy is returned as it is.

    Raises `ParameterError`.
    """
    if isinstance(value, (Cascade, Router)):
        return value
    if isinstance(value, str):
        if value not in POLICIES:
            raise ParameterError(f"unknown policy {value!r}{choices(value, POLICIES)}")
        return POLICIES[value]
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind == "cascade":
        return Cascade.of(value)
    if kind == "router":
        return Router.of(value)
    raise ParameterError(f"a policy is a name, a Cascade, a Router or a mapping with their kind, not {value!r:.200}")


def strategy_of(value: AnyStrategy | AnyPolicy) -> Answerer:
    """A strategy or policy from its name, or from a mapping such as `answerer_to_dict` gives.

    A strategy or policy is returned as it is. Raises `ParameterError`.
    """
    if isinstance(value, (Cascade, Router)) or (isinstance(value, str) and value in POLICIES):
        return policy_of(value)
    if isinstance(value, str) and value not in NAMED:
        raise ParameterError(f"unknown strategy {value!r}{choices(value, MENU, PUBLISHED)}")
    if isinstance(value, Mapping) and value.get("kind") == STRATEGY:
        return Strategy.of({name: setting for name, setting in value.items() if name != "kind"})
    if isinstance(value, Mapping) and "kind" in value:
        return policy_of(value)
    return Strategy.of(value)


def answerer_to_dict(value: Answerer) -> dict[str, Any]:
    """Plain JSON values with a ``kind``: cascade, router or strategy. `strategy_of` takes them."""
    return {"kind": STRATEGY, **value.to_dict()} if isinstance(value, Strategy) else value.to_dict()


def save(path: str | os.PathLike[str], policy: AnyStrategy | AnyPolicy, about: Mapping[str, Any] | None = None) -> None:
    """Write a policy, or a strategy for all queries, to a file. An existing file is replaced atomically.

    A reader sees either the old file or the new one. `about` maps names to JSON values. Raises `ParameterError`. Raises
    `PolicyFileError` if the file cannot be written; the old file then stays.
    """
    policy = strategy_of(policy)
    if about is not None and not isinstance(about, Mapping):
        raise ParameterError(f"what is said about a policy must be a mapping, not {about!r}")
    content = {"format": FORMAT, "version": VERSION, "policy": answerer_to_dict(policy), "about": dict(about or {})}
    try:
        text = json.dumps(content, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(f"what is said about a policy must be JSON values: {error}") from None
    target = Path(path)
    try:
        replace_file(target, text + "\n")
    except OSError as error:
        raise PolicyFileError(f"{target}: cannot be written: {error.strerror or error}") from error


def load(path: str | os.PathLike[str]) -> tuple[Answerer, dict[str, Any]]:
    """Read a file of `save`: (the policy or strategy, its `about`). Raises `PolicyFileError`, naming what is wrong."""
    source = Path(path)
    try:
        text = source.read_bytes().decode("utf-8")
    except OSError as error:
        raise PolicyFileError(f"{source}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise PolicyFileError(
            f"{source}: is not a policy file (not JSON); give one that `fanrank tune` wrote"
        ) from None
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PolicyFileError(f"{source}: is not a policy file, or damaged (not JSON: {error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PolicyFileError(f"{source}: is not a policy file; give one that `fanrank tune` wrote")
    version = content.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise PolicyFileError(f"{source}: damaged: its version is {version!r}")
    if version > VERSION:
        raise PolicyFileError(
            f"{source}: written in format {version} by a newer fanrank; this one knows {VERSION}: upgrade it"
        )
    policy, about = content.get("policy"), content.get("about")
    if set(content) != {"format", "version", "policy", "about"} or not isinstance(about, dict):
        raise PolicyFileError(f"{source}: damaged: a policy file has format, version, policy and about")
    if not isinstance(policy, dict) or "kind" not in policy:
        raise PolicyFileError(f"{source}: damaged: its policy is {policy!r:.200}")
    try:
        return strategy_of(policy), about
    except ParameterError as error:
        raise PolicyFileError(f"{source}: damaged, or changed by hand to what cannot be: {error}") from error


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
