"""Who asks, and what they may read and write."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from .problems import Problem

PRINCIPAL = "principal"
"""Where a request keeps who asks: ``request.scope[PRINCIPAL]``, set before any endpoint runs."""


@dataclass(frozen=True)
class Quota:
    """How many records, and bytes of them, may be held; None: any number."""

    records: int | None = None
    bytes: int | None = None

    def to_dict(self) -> dict[str, int]:
        """Those that are bounds."""
        return {name: most for name, most in vars(self).items() if most is not None}


UNBOUNDED = Quota()


@dataclass(frozen=True)
class Principal:
    """Who asks. `patterns` are namespaces, or paths with ``/*`` for all below; None allows every namespace."""

    name: str
    patterns: tuple[str, ...] | None = None
    write: bool = True
    metrics: bool = False
    """Whether the counts of the whole server may be read by one whose namespaces are not all of them."""
    label: str = ""
    """What the key's owner calls it, for the log."""
    quota: Quota = UNBOUNDED
    """What its namespaces may hold together."""
    refusal: tuple[str, str] = ("ReadOnlyKey", "this key may read and not write")
    """The problem of a write where `write` is false."""

    @property
    def only(self) -> str | None:
        """The one namespace that is reached; None where there are more or none."""
        first, *more = self.patterns or ("*",)
        return None if more or first.endswith("*") else first

    def allows(self, namespace: str) -> bool:
        """Whether records of this namespace may be read."""
        if self.patterns is None:
            return True
        return any(
            namespace.startswith(pattern[:-1]) if pattern.endswith("/*") else namespace == pattern
            for pattern in self.patterns
        )

    def allows_under(self, path: str) -> bool:
        """Whether this namespace and all below it may be read. ``acme/*`` reaches what is below acme, and not acme."""
        if self.patterns is None:
            return True
        # The engine reads a path without the slashes at its end.
        path = path.rstrip("/")
        below = any(pattern.endswith("/*") and f"{path}/".startswith(pattern[:-1]) for pattern in self.patterns)
        return below and self.allows(path)


ANYONE = Principal("local")
"""Who asks a server that has no keys and listens on this machine alone."""


def principal_of(request: Request) -> Principal:
    """Who asks. A request that nothing has admitted is nobody's."""
    principal = request.scope.get(PRINCIPAL)
    if not isinstance(principal, Principal):
        raise Problem(401, "KeyRequired", "give a key in the header Authorization: Bearer KEY")
    return principal


def check_read(principal: Principal, namespace: str, field: str | None = None) -> None:
    """Raise `Problem` where the namespace may not be read. Whether it exists is not said."""
    if not principal.allows(namespace):
        raise Problem(403, "NamespaceForbidden", "this key does not reach this namespace", field=field)


def check_everything(principal: Principal, *, write: bool) -> None:
    """Raise `Problem` where the memory as a whole, with all its tenants, may not be read, or written."""
    if principal.patterns is not None:
        detail = "this is of the whole memory, and this key reaches some namespaces"
        raise Problem(403, "NamespaceForbidden", detail)
    if write and not principal.write:
        raise Problem(403, *principal.refusal)


def check_reach(principal: Principal, namespace: str | None, *, write: bool) -> None:
    """Raise `Problem` where this namespace, or with None the memory as a whole, may not be read, or written."""
    if namespace is None:
        check_everything(principal, write=write)
    else:
        (check_write if write else check_read)(principal, namespace, "namespace")


def check_metrics(principal: Principal) -> None:
    """Raise `Problem` where the counts of the server, which are of all its tenants, may not be read."""
    if principal.patterns is not None and not principal.metrics:
        raise Problem(403, "MetricsForbidden", "this key may not read metrics; `fanrank keys add --metrics` makes one")


def check_write(principal: Principal, namespace: str, field: str | None = None) -> None:
    """Raise `Problem` where records of the namespace may not be written."""
    check_read(principal, namespace, field)
    if not principal.write:
        raise Problem(403, *principal.refusal, field=field)
