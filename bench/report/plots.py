"""The pictures of docs/figures.md, as SVG: the same bytes from the same rows and the same matplotlib.

All colours have a contrast of about 4 with white and with GitHub's dark background alike, and there is no background.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from fanrank.engine.evaluate.headlines import GROWTH_RECORDS, GROWTH_US

from ..harness.systems import SYSTEMS
from .fanout import newest
from .format import order_names
from .growth import COUNTERPARTS, corpora, curves
from .rows import Fields, Recorded

INK = "#767c84"
OWN = "#c8551b"
PUBLISHED = "#2f7fd6"
SMALL = 7.5


def version() -> str | None:
    """What the SVGs name as their creator; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    return f"Matplotlib v{matplotlib.__version__}"


def svgs(recorded: Recorded) -> dict[str, bytes]:
    """Every picture that has rows, by file name. Raises `ImportError` without matplotlib."""
    pictures: dict[str, Callable[[], Any]] = {}
    rows = [row for row in newest(recorded) if row["process"] == "warm" and not row["whole"]]
    if rows:
        pictures["fanout.svg"] = partial(fanout, rows)
    steady = corpora(recorded).get("steady")
    if steady:
        pictures["growth-steady.svg"] = partial(growth, steady)
    with _plain_style():
        return {name: _svg(draw()) for name, draw in pictures.items()}


@contextmanager
def _plain_style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        style: Any = {f"{what}.color": INK for what in ("text", "xtick", "ytick")}
        style |= {"axes.labelcolor": INK, "axes.edgecolor": INK, "axes.linewidth": 0.6, "axes.titlecolor": INK}
        style |= {f"axes.spines.{side}": False for side in ("top", "right", "left")}
        style |= {"font.size": 8.5, "svg.hashsalt": "fanrank", "axes.titlesize": 9, "axes.titlelocation": "left"}
        style |= {f"{axis}tick.{kind}.size": 0 for axis in "xy" for kind in ("major", "minor")}
        matplotlib.rcParams.update(
            {**style, "axes.axisbelow": True, "axes.facecolor": "none", "grid.color": INK, "grid.alpha": 0.25}
        )
        yield


def _svg(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return b"\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + b"\n"


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _plain_ticks(axis: Any, subs: tuple[float, ...] = (1.0,)) -> None:
    """Label an axis with 1, 10, 1,000 instead of powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def _text(value: float) -> str:
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _colour(system: str) -> str:
    return OWN if system.startswith("fanrank") else INK


def _panels(count: int, lines: int, label: str) -> tuple[Any, list[Any]]:
    """A figure of panels that share their axes, two or three in a row."""
    columns = 2 if count in (2, 4) else min(3, count)
    rows = math.ceil(count / columns)
    figure = _figure(3.1 * columns + 1.0, rows * (0.24 * lines + 0.55) + 0.4)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for axis in axes[count:]:
        axis.set_visible(False)
    figure.supxlabel(label, fontsize=8.5, color=INK)
    return figure, axes[:count]


def _dress(axis: Any, title: str, systems: Sequence[str]) -> None:
    axis.set_title(title)
    axis.set_xscale("log")
    _plain_ticks(axis.xaxis)
    axis.set_yticks(range(len(systems)), systems)
    axis.set_ylim(len(systems) - 0.4, -0.6)
    axis.grid(axis="x", linewidth=0.6)
    axis.tick_params(labelbottom=True)
    for label, system in zip(axis.get_yticklabels(), systems, strict=False):  # only the first column has one
        label.set_color(_colour(system))


def fanout(rows: Sequence[Fields]) -> Any:
    """Milliseconds a query of every system, one panel a corpus: asked alone, and in a fan-out of 20."""
    sizes = (1, 20)
    systems = order_names((row["system"] for row in rows), SYSTEMS)
    cases = list(dict.fromkeys(row["case"] for row in rows))
    at = {(row["case"], row["system"], row["batch"]): row["ms"] / row["batch"] for row in rows if row["batch"] in sizes}
    label = f"milliseconds a query, 1 thread; ● in a call of {sizes[1]}, ○ alone"
    figure, axes = _panels(len(cases), len(systems), label)
    for axis, case in zip(axes, cases, strict=True):
        for line, system in enumerate(systems):
            times = [at[case, system, size] for size in reversed(sizes) if (case, system, size) in at]
            if not times:
                continue
            colour = _colour(system)
            axis.plot(times, [line] * len(times), color=colour, linewidth=1.2, zorder=2)
            axis.plot(times[-1:], [line], "o", color=colour, markerfacecolor="none", markersize=4.5, zorder=3)
            axis.plot(times[:1], [line], "o", color=colour, markersize=5, zorder=3)
            _beside(axis, _text(times[0]), min(times), line, colour, left=True)
        _dress(axis, case, systems)
    values = list(at.values())
    axes[0].set_xlim(min(values) / 2.6, max(values) * 1.6)
    return figure


def _beside(axis: Any, text: str, x: float, y: float, colour: str, left: bool) -> None:
    where = {"xytext": (-5 if left else 5, 0), "textcoords": "offset points", "va": "center"}
    axis.annotate(text, (x, y), ha="right" if left else "left", color=colour, fontsize=SMALL, **where)


_LABELS = {
    "sequential": "numpy, one by one",
    "vectorised": "every posting",
    "temporal": "temporal, 4 windows",
    "decay": "decay",
    "decay-exhaustive": "decay, everything scored",
}
"""The methods that are drawn, and their labels."""
_LINES = ("-", "--", "-", "-.", (0, (1, 1)))


def growth(rows: Sequence[Fields]) -> Any:
    """Microseconds a query over records of steady corpora, both logarithmic, with AgentIR's figures as points."""
    found = {method: own for method, own in curves(rows).items() if method in _LABELS} or curves(rows)
    figure = _figure(8.2, 4.6)
    axis = figure.subplots()
    drawn: list[tuple[list[Any], list[float], str, dict[str, Any]]] = []
    for method, own in found.items():
        stops = method.startswith(("temporal", "decay")) and not method.endswith("exhaustive")
        style = {
            "color": OWN if stops else INK,
            "linewidth": 1.8 if stops else 1.2,
            "linestyle": _LINES[len(drawn) % 5],
        }
        line = [row["records"] for row in own], [row["p50_us"] for row in own]
        drawn.append((*line, _LABELS.get(method, method), {**style, "marker": "o", "zorder": 3}))
    for at, (method, column) in enumerate(COUNTERPARTS.items()):
        if method in found:
            style = {"color": PUBLISHED, "linewidth": 0.8, "linestyle": ":", "marker": "s^vD"[at % 4]}
            line = [*GROWTH_RECORDS], [float(value) for value in GROWTH_US[column]]
            drawn.append((*line, f"source: {column}", {**style, "markerfacecolor": "none", "zorder": 2}))
    for x, y, name, style in sorted(drawn, key=lambda own: -own[1][-1]):
        axis.plot(x, y, label=name, markersize=3.5, **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    _plain_ticks(axis.xaxis)
    low, high = axis.get_ylim()
    _plain_ticks(axis.yaxis, (1.0,) if high / low > 1e3 else (1.0, 2.0, 5.0))
    axis.grid(axis="y", linewidth=0.6)
    axis.set_xlabel("records")
    axis.set_title("microseconds a query, steady corpora, 1 thread (source: 8 threads)")
    figure.legend(loc="outside right upper", frameon=False, labelcolor="linecolor", fontsize=SMALL + 0.5)
    return figure
