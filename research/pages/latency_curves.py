"""The curves of latency over throughput, from what `research.speed.users` measured."""

import json
from pathlib import Path

from research.pages.charts import Curve, curve_chart
from research.pages.run_tables import medians

__all__ = ["latency_curves"]


def latency_curves(file: Path) -> str:
    """Latency over throughput by locust's users as a chart: p50 with lines, p95 dashed."""
    content = json.loads(file.read_text(encoding="utf-8"))
    found, drawn = medians(content), list[Curve]()
    for system in content["systems"]:
        for figure in ("p50_ms", "p95_ms"):
            rows = [(users, found[system["name"], users]) for users in content["plan"]["users"]]
            shown = [(users, row["qps"], row[figure]) for users, row in rows if row["qps"] and row[figure]]
            points = [(qps, time) for _, qps, time in shown if qps and time]
            texts = [str(users) if figure == "p50_ms" else "" for users, _, _ in shown]
            if points:
                drawn.append(Curve(system["label"], points, texts, dashed=figure == "p95_ms"))
    title = "Latency over throughput, by the number of users (p50; dashed: p95)"
    return curve_chart(title, "requests/s", "ms", drawn)
