"""Renders an answer in the terminal for the command `search`, with and without colours."""

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lightretriever.service.schemas import Explanation, Hit, LegScore, SearchResponse, Timings, WordShares

__all__ = ["show"]

_INDENT: Final = 5
_LONGEST_SNIPPET: Final = 300
_LONGEST_NAME: Final = 100
_LONGEST_VALUE: Final = 60
_LONGEST_WORD: Final = 40
_SHARE: Final = 11  # a space, and the longest number of four digits: -1.234e-05
_COLOURS: Final = {"dense": "green", "sparse": "magenta"}
# Non-printing characters to keep, because they join their neighbours.
_JOINERS: Final = "\u200c\u200d"


def show(console: Console, response: SearchResponse) -> None:
    """Print degraded legs, what of the query was changed, the hits, best first, and the times of the search.

    In a terminal, long lines wrap with their indent; in a pipe or a file, they stay whole.
    """
    for leg in response.degraded:
        name = "reranking model" if leg == "rerank" else f"{leg} leg"
        _print(console, Text(f"degraded: the {name} failed or was late and is missing here", "bold red"))
    if response.did_you_mean is not None:
        _print(console, Text(f"did you mean: {_clean(response.did_you_mean, _LONGEST_SNIPPET)}", "yellow"))
    if response.searched is not None:
        _print(console, Text(f"searched for: {_clean(response.searched, _LONGEST_SNIPPET)}", "yellow"))
    if response.matched == "none" and response.hits:
        _print(console, Text("no document matches well; these are the nearest", "yellow"))
    for hit in response.hits:
        _show_hit(console, hit)
    if not response.hits:
        _print(console, Text("no hits", "yellow"))
    _print(console, Text(_summary(response), "dim"))


def _print(console: Console, line: Text, indent: int = 0) -> None:
    if console.is_terminal:
        console.print(Padding(line, (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent).append_text(line), soft_wrap=True)


def _show_hit(console: Console, hit: Hit) -> None:
    name, title = _clean(hit.id, _LONGEST_NAME), _clean(hit.fields.get("title"), _LONGEST_NAME)
    _print(console, Text.assemble((f"{hit.rank:>3}. ", "dim"), (title or name, "bold cyan")))
    scores = Text.assemble((f"{hit.score:.4f}", "bold"), *_legs(hit))
    if title:
        scores.append(f"  id {name}", "dim")
    _print(console, scores, _INDENT)
    if (snippet := _snippet(hit)).plain:
        _print(console, snippet, _INDENT)
    if others := _others(hit.fields):
        _print(console, Text(others, "dim"), _INDENT)
    if hit.explanation is not None:
        for line in _words(hit.explanation):
            _print(console, line, _INDENT)


def _snippet(hit: Hit) -> Text:
    """Give the service's snippet of the text with the query's words in bold, or the text's beginning."""
    whole, chosen = hit.fields.get("text"), (hit.snippets or {}).get("text")
    if chosen is None:
        return Text(_clean(whole, _LONGEST_SNIPPET))
    text = Text("".join(map(_visible, chosen.text)))
    for start, end in chosen.marks:
        text.stylize("bold", start, end)
    text.rstrip()
    cut = isinstance(whole, str) and chosen.start + len(chosen.text) < len(whole)
    return Text.assemble("…" if chosen.start else "", text, "…" if cut else "")


def _legs(hit: Hit) -> Iterator[tuple[str, str]]:
    """Give each leg's score and rank; nothing where no leg gave one."""
    if hit.dense is None and hit.sparse is None:
        return
    yield from (_leg("dense", hit.dense), _leg("sparse", hit.sparse))


def _words(explanation: Explanation) -> Iterator[Text]:
    """Give a line for each word of the query: its shares of the scores, and whether it was added by meaning."""
    words, legs = explanation.words, ("dense", "sparse")
    told = [leg for leg in legs if any(getattr(word, leg) is not None for word in words)]
    names = [_clean(word.word, _LONGEST_WORD) + (f" × {word.count}" if word.count > 1 else "") for word in words]
    width = max(map(cell_len, ["word", *names]), default=0)
    if told:
        yield Text("".join([set_cell_size("word", width), *(f"{leg:>{_SHARE}}" for leg in told)]), "dim")
    for word, name in zip(words, names, strict=True):
        added = ("  added by meaning", "yellow") if word.added else ""
        shares = ((_share(word, leg), _COLOURS[leg]) for leg in told)
        yield Text.assemble(set_cell_size(name, width), *shares, added)


def _share(word: WordShares, leg: str) -> str:
    value = getattr(word, leg)
    return f"{'–' if value is None else f'{value:.4g}':>{_SHARE}}"


def _leg(name: str, leg: LegScore | None) -> tuple[str, str]:
    if leg is None:
        return f"  {name} –", "dim"
    return f"  {name} {leg.score:.4g} " + ("not proposed" if leg.rank is None else f"#{leg.rank}"), _COLOURS[name]


def _others(fields: Mapping[str, Any]) -> str:
    """Give the document's other scalar fields, on one line."""
    named = ((name, value) for name, value in fields.items() if name not in ("title", "text"))
    plain = ((name, value) for name, value in named if isinstance(value, str | int | float))
    return "  ".join(f"{_clean(name, _LONGEST_VALUE)}: {_clean(value, _LONGEST_VALUE)}" for name, value in plain)


def _summary(response: SearchResponse) -> str:
    count = len(response.hits)
    hits = f"{count} hit{'' if count == 1 else 's'} of {response.candidates:,} candidates"
    if response.matched is not None and response.hits:
        hits += f", best match {response.matched}"
    if response.unmatched is not None:
        hits += f", {response.unmatched} left out by min_matched"
    return f"{hits}, {response.mode}, task {response.task}; {_timings(response.timings_ms)}"


def _timings(timings: Timings) -> str:
    stages = {name: ms for name, ms in timings.model_dump().items() if ms is not None}
    total = stages.pop("total")
    return f"{total:.1f} ms ({', '.join(f'{name} {ms:.2f}' for name, ms in stages.items())})"


def _clean(value: object, length: int) -> str:
    """Give a value as one line of at most `length` characters, without control characters."""
    if value is None:
        return ""
    text = str(value)
    line = " ".join("".join(map(_visible, text)).split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def _visible(character: str) -> str:
    return character if character in _JOINERS or unicodedata.category(character)[0] != "C" else " "
