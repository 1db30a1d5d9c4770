"""A memory as a plain dictionary, random lives of it, and what it must list."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import fanrank as fr

NAMESPACES = ("", "a", "b")
WORDS = ("tea", "milk", "rain", "snow", "")
FILTERS: list[tuple[dict[str, Any] | None, Callable[[fr.Record], bool]]] = [
    (None, lambda record: True),
    ({"role": "user"}, lambda record: record.role == "user"),
    ({"role": None}, lambda record: record.role is None),
    ({"role": "nobody"}, lambda record: False),
    ({"time": {">=": 3.0}}, lambda record: record.time is not None and record.time >= 3.0),
    ({"not": {"project": "x"}}, lambda record: record.extra.get("project") != "x"),
    (
        {"or": [{"project": ["x", "y"]}, {"priority": {"<": 2}}]},
        lambda record: record.extra.get("project") in ("x", "y") or record.extra.get("priority", 9) < 2,
    ),
]
VERBS = ("upsert", "upsert", "add", "update", "delete", "patch", "update_where", "delete_where", "flush")
COLUMNS = {"project": "category", "priority": "number"}


class Model:
    """Records by (namespace, id), in the order of their last write."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], fr.Record] = {}

    def write(self, record: fr.Record) -> None:
        self.kept.pop((record.namespace, record.id), None)
        self.kept[record.namespace, record.id] = record

    def delete(self, namespace: str, name: str) -> None:
        del self.kept[namespace, name]

    def ids(self, namespace: str) -> list[str]:
        return [name for space, name in self.kept if space == namespace]

    def passing(self, namespace: str | None, passes: Callable[[fr.Record], bool]) -> list[fr.Record]:
        return [
            record
            for (space, _), record in self.kept.items()
            if (namespace is None or space == namespace) and passes(record)
        ]

    def listed(
        self, namespace: str | None, passes: Callable[[fr.Record], bool], order: str, reverse: bool
    ) -> list[fr.Record]:
        chosen = self.passing(namespace, passes)
        if order == "written":
            return chosen[::-1] if reverse else chosen
        chosen.sort(key=lambda record: (record.id, record.namespace), reverse=reverse)
        if order == "id":
            return chosen
        timed = [record for record in chosen if record.time is not None]
        timed.sort(key=lambda record: (record.time, record.id, record.namespace), reverse=reverse)
        return timed + [record for record in chosen if record.time is None]

    def distinct(self, namespace: str | None, passes: Callable[[fr.Record], bool], column: str) -> list[Any]:
        counts: Counter[Any] = Counter(
            record.extra.get(column) if column in COLUMNS else getattr(record, column)
            for record in self.passing(namespace, passes)
        )
        return sorted(counts.items(), key=lambda item: (-item[1], item[0] is None, 0 if item[0] is None else item[0]))


def made(rng: random.Random, name: str, namespace: str) -> fr.Record:
    extra: dict[str, Any] = {"other": rng.random()}
    for column, values in (("project", ["x", "y", "z", None]), ("priority", [0, 1.5, 2, None])):
        if (value := rng.choice(values)) is not None:
            extra[column] = value
    return fr.Record(
        name,
        " ".join(rng.choices(WORDS, k=rng.randrange(4))),
        namespace,
        role=rng.choice(["user", "tool", None]),
        time=rng.choice([None, 1.0, 2.0, 3.0, -4.0, float(rng.randrange(9))]),
        importance=rng.choice([None, 0.25, 1.0]),
        payload=rng.choice([None, {"n": rng.randrange(9)}]),
        extra=extra,
    )


def name_of(rng: random.Random) -> str:
    return rng.choice(["r", "é", "ab", "\U0001f375", "z\0"]) + str(rng.randrange(12))


def step(rng: random.Random, engine: fr.Engine, model: Model, verbs: Sequence[str] = VERBS) -> str:
    """One random write, to the engine and to the model; returns its verb."""
    namespace = rng.choice(NAMESPACES)
    live = model.ids(namespace)
    verb = rng.choice(verbs)
    filter, passes = rng.choice(FILTERS[1:])
    some = rng.sample(live, min(len(live), rng.randrange(1, 5)))
    if verb in ("upsert", "add"):
        names = dict.fromkeys(name_of(rng) for _ in range(rng.randrange(1, 9)))
        spaces = NAMESPACES if rng.random() < 0.3 else (namespace,)
        batch = [made(rng, name, space) for name in names for space in spaces]
        if verb == "add":
            batch = [record for record in batch if (record.namespace, record.id) not in model.kept]
        assert getattr(engine, verb)(batch) == len(batch)
        # A batch is written namespace by namespace, in the order in which the store meets them.
        order = list(dict.fromkeys(record.namespace for record in batch))
        replaced = {record.namespace for record in batch if (record.namespace, record.id) in model.kept}
        live_first = [space for space in order if space in replaced]
        for space in dict.fromkeys((*live_first, *order)):
            for record in batch:
                if record.namespace == space:
                    model.write(record)
    elif verb == "update":
        batch = [made(rng, name, namespace) for name in some]
        assert engine.update(batch) == len(batch)
        for record in batch:
            model.write(record)
    elif verb == "delete":
        assert engine.delete(some, namespace=namespace) == len(some)
        for name in some:
            model.delete(namespace, name)
    elif verb == "patch":
        project = rng.choice(["x", "w", None])
        assert engine.patch(some, {"project": project}, namespace=namespace, importance=0.5) == len(some)
        for name in some:
            model.write(patched(model.kept[namespace, name], project, importance=0.5))
    elif verb == "update_where":
        scope = rng.choice([namespace, None])
        chosen = model.passing(scope, passes)
        assert engine.update_where(filter or {}, namespace=scope, role="agent") == len(chosen)
        if scope is None:
            # Namespace by namespace, in the order in which the memory first held them.
            spaces_held = list(engine.index.ready().snapshots)
            chosen.sort(key=lambda record: spaces_held.index(record.namespace))
        for record in chosen:
            model.write(replace(record, role="agent"))
    elif verb == "delete_where":
        if rng.random() < 0.3:
            chosen = model.passing(namespace, passes)
            assert engine.delete_where(filter or {}, namespace=namespace) == len(chosen)
            for record in chosen:
                model.delete(namespace, record.id)
    else:
        engine.flush()
    return verb


def patched(record: fr.Record, project: str | None, **fields: Any) -> fr.Record:
    extra = {name: value for name, value in record.extra.items() if name != "project"}
    return replace(record, extra=extra if project is None else {**extra, "project": project}, **fields)
