"""Tables of recorded results: systems in rows, datasets in columns, and an average that is fair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.evaluation.quality import MEASURE, PerQuery, Row
from artifacts.evaluation.significance import PairedTest, paired_test

__all__ = ["Results", "Table", "average_sets", "paired_tests"]


@dataclass(frozen=True)
class Results:
    """The rows of a file of results by system and dataset, the values of single queries, and the datasets in order."""

    rows: Mapping[tuple[str, str], Row]
    queries: PerQuery
    datasets: Sequence[str]

    def value(self, system: str, dataset: str, measure: str) -> float | None:
        """A recorded number, None where there is none."""
        row = self.rows.get((system, dataset))
        return None if row is None or row.get(measure) is None else float(row[measure])

    def has(self, system: str) -> bool:
        """Whether anything is recorded of a system."""
        return any((system, dataset) in self.rows for dataset in self.datasets)


@dataclass(frozen=True)
class Table:
    """Systems with their labels, in the order of the rows; `measure` is a key of the recorded rows."""

    systems: Sequence[tuple[str, str]]
    measure: str = MEASURE
    digits: int = 3

    def markdown(self, results: Results) -> list[str]:
        """The lines of the table: systems of which nothing is recorded are left out, the best is bold.

        The average is over the datasets that all rows have; where there is none, or only one column, it is left out.
        """
        shown = [(system, label) for system, label in self.systems if results.has(system)]
        datasets = [name for name in results.datasets if any((system, name) in results.rows for system, _ in shown)]
        common = average_sets([system for system, _ in shown], results)
        columns = [[results.value(system, name, self.measure) for system, _ in shown] for name in datasets]
        heads = list(datasets)
        if common and len(datasets) > 1:
            heads.append("average" if len(common) == len(datasets) else f"average of {len(common)}")
            columns.append([self._mean(system, common, results) for system, _ in shown])
        cells = [self._cells(column) for column in columns]
        lines = [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
        return lines + [f"| {label} | {' | '.join(c[row] for c in cells)} |" for row, (_, label) in enumerate(shown)]

    def _mean(self, system: str, datasets: Sequence[str], results: Results) -> float | None:
        values = [results.value(system, name, self.measure) for name in datasets]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None

    def _cells(self, column: Sequence[float | None]) -> list[str]:
        """Numbers as text, the best bold: the highest of a measure, no postings are best."""
        texts = ["–" if value is None else f"{value:,.{self.digits}f}" for value in column]
        known = [value for value in column if value is not None]
        if len(known) < 2 or self.digits == 0:
            return texts
        best = f"{max(known):,.{self.digits}f}"
        return [f"**{text}**" if text == best else text for text in texts]


def average_sets(systems: Sequence[str], results: Results) -> list[str]:
    """The datasets that all of `systems` have."""
    return [name for name in results.datasets if systems and all((system, name) in results.rows for system in systems)]


def paired_tests(pair: tuple[str, str], results: Results) -> dict[str, PairedTest]:
    """The paired test of two systems on nDCG@10, for every dataset whose single queries are recorded of both."""
    found = {}
    for dataset in results.datasets:
        values = results.queries.get(dataset, {}).get(MEASURE, {})
        if all(system in values for system in pair) and len(values[pair[0]]) > 1:
            found[dataset] = paired_test(values[pair[0]], values[pair[1]])
    return found
