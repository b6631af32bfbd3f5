"""Plots of load tests, as SVG."""

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from lightretriever.loadtest.tally import median_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["latency_plot"]


def latency_plot(load: Mapping[str, Any]) -> str:
    """Median latency (p50 and p99) against answers per second, one line per system, both axes logarithmic."""
    measured = [one for one in load["systems"] if "left_out" not in one]
    with mpl.rc_context({"svg.hashsalt": "lightretriever", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        for axes, key in zip(figure.subplots(1, 2, sharey=True), ("p50_ms", "p99_ms"), strict=True):
            for one in measured:
                _line(axes, [row for row in load["open"] if row["system"] == one["name"]], key, one["label"])
            axes.set(xscale="log", yscale="log", xlabel="answers per second", title=key.removesuffix("_ms"))
            axes.grid(visible=True, which="both", alpha=0.25)
        figure.axes[0].set_ylabel("latency in ms, from when a request was due")
        if measured:
            figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _line(axes: Axes, rows: list[dict[str, Any]], key: str, label: str) -> None:
    points = []
    for fraction in sorted({row["of"] for row in rows}):
        same = [row for row in rows if row["of"] == fraction]
        rate, time = median_of(same, "qps"), median_of(same, key)
        if rate and time:
            points.append((rate, time))
    axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=label)
