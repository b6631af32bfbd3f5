"""Write the parts of the reference pages that follow from the code.

    python -m research.pages.reference

docs/cli.md gets every command with its arguments and options, as Typer knows them, and docs/api.md every route and
every model of the API, as its OpenAPI description has them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from lightretriever.service import schemas
from lightretriever.service.cli import COMMANDS
from lightretriever.service.http.openapi import description
from lightretriever.service.http.routes import router
from lightretriever.service.settings import Settings
from research.pages.generated import Part, write

ROOT = Path(__file__).resolve().parents[2]
PART = Part("<!-- reference: written by research/pages/reference.py -->", "<!-- end of reference -->")


def command_reference() -> str:
    """Every command: what it does, and its arguments and options with their defaults."""
    return "\n".join("\n".join(_command(name, listed.load(name))) for name, listed in COMMANDS.items())


def _command(name: str, command: Any) -> Iterator[str]:
    """A heading, usage and help, and the options with defaults in one line; `--help` says what each does."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    yield f"## {name}"
    yield f"`{' '.join(['lightretriever', name, *map(_argument, arguments)])}`: {_line(command.help)}\n"
    yield from (f"- `{_metavar(one)}`{_default(one)}: {_help(one)}" for one in arguments)
    if options:
        yield f"- Options: {', '.join(f'`{_option(one)}`{_default(one)}' for one in options)}."
    yield ""


def _argument(parameter: Any) -> str:
    return _metavar(parameter) if parameter.required else f"[{_metavar(parameter)}]"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(option: Any) -> str:
    names = ", ".join(option.opts)
    if option.is_flag:
        return names
    kind = option.metavar or _values(option.type_descriptor.annotation)
    return f"{names} {kind}{' …' if option.multiple else ''}"


def _values(annotation: Any) -> str:
    """What an option takes: a name for a type, the words of a choice, each of several values."""
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return " ".join(map(_values, get_args(annotation))) or _NAMES[annotation]


_NAMES = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def _default(option: Any) -> str:
    if option.required:
        return ", required" if option.param_type_name == "option" else ""
    if isinstance(option.show_default, str):
        return f" ({option.show_default})"
    unset = option.default in (None, False, "", ()) or callable(option.default)
    return "" if unset else f" ({option.default})"


def _help(option: Any) -> str:
    variable = f" From the environment: `{option.envvar}`." if option.envvar else ""
    return _line(f"{option.help}{variable}")


def _line(text: str) -> str:
    return " ".join(text.split())


def api_reference(paths: Mapping[str, Any]) -> str:
    """Every route of an OpenAPI description with its request, answer and errors, and every model with its fields."""
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in paths.items()
        for method, operation in methods.items()
    }
    models = _models(operations.values())
    kinds = {name: list(dict.fromkeys(_error_kinds(operation))) for name, operation in operations.items()}
    counts = Counter(kind for names in kinds.values() for kind in names)
    common = [kind for kind, count in counts.items() if count > len(operations) / 2]
    head = ["## Routes", f"Most routes may answer {', '.join(f'`{kind}`' for kind in common)}.\n"]
    head += ["| route | request | answer | other errors |", "|---|---|---|---|"]
    routes = [
        _route(name, operation, [kind for kind in kinds[name] if kind not in common])
        for name, operation in operations.items()
    ]
    order = _in_order(paths, models)
    sent = set(_in_order([operation.get("requestBody") for operation in operations.values()], models))
    tables = ["\n".join(_model(name, models[name], told=name in sent)) for name in order]
    return "\n".join([*head, *routes, "", "## Models", *tables])


def _models(operations: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The JSON schemas of all models that the operations take or give, by name."""
    modes: dict[type[BaseModel], JsonSchemaMode] = {}
    for operation in operations:
        modes |= {getattr(schemas, name): "validation" for name in _references(operation.get("requestBody", {}))}
        modes |= {getattr(schemas, name): "serialization" for name in _references(operation["responses"])}
    template = "#/components/schemas/{model}"
    _, definitions = models_json_schema(list(modes.items()), ref_template=template)
    found: Mapping[str, Any] = definitions["$defs"]
    return found


def _error_kinds(operation: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in sorted(operation["responses"].items()):
        if status != "200":
            yield from re.findall(r"`(\w+)`", answer["description"])


def _route(name: str, operation: Mapping[str, Any], kinds: Iterable[str]) -> str:
    request = operation.get("requestBody", {"content": {}})["content"]
    answers = operation["responses"]["200"]["content"]
    errors = ", ".join(f"`{kind}`" for kind in kinds)
    return f"| `{name}` | {_bodies(request)} | {_bodies(answers)} | {errors} |"


def _bodies(content: Mapping[str, Any]) -> str:
    return ", ".join(_kind(body["schema"]) if "$ref" in body["schema"] else media for media, body in content.items())


def _in_order(part: Any, models: Mapping[str, Any]) -> list[str]:
    """The names of all models: those of the first route first, each before those that its fields have."""
    found: dict[str, None] = {}
    waiting = _references(part)
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found[name] = None
            waiting = [*_references(models[name]), *waiting]
    return list(found)


def _references(part: Any) -> list[str]:
    if isinstance(part, Mapping):
        own = [part["$ref"].rpartition("/")[2]] if isinstance(part.get("$ref"), str) else []
        return own + [name for key, value in part.items() if key != "examples" for name in _references(value)]
    return [name for value in part for name in _references(value)] if isinstance(part, list) else []


def _model(name: str, schema: Mapping[str, Any], *, told: bool) -> Iterator[str]:
    """A heading, and the fields with their types: of a request `told` in a line each, with bounds and default."""
    yield f"### {name}"
    required = schema.get("required", [])
    lines = []
    for field, value in schema.get("properties", {}).items():
        default = value.get("default")
        shown = "" if field in required or default in (None, [], {}) else f" ({_json(default)})"
        lines.append(f"`{field}`: {_kind(value)}{_bounds(value)}{shown}" if told else f"`{field}` {_kind(value)}")
    yield from ((f"- {line}" for line in lines) if told else [", ".join(lines)])
    yield ""


def _kind(schema: Mapping[str, Any]) -> str:
    """The type that a JSON schema allows, in words; models are links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = {one.get("type") for one in schema[key]}
            left_out = {"null", "integer"} if "number" in kinds else {"null"}
            given = [one for one in schema[key] if one.get("type") not in left_out]
            return " or ".join(dict.fromkeys(f"{_kind(one)}{_bounds(one)}" for one in given))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return f"`{'|'.join(json.dumps(value, ensure_ascii=False) for value in values)}`"
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        inner = schema.get("prefixItems", [schema.get("items", {})])
        return f"list of {', '.join(map(_kind, inner))}"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), Mapping):
        return f"object of {_kind(values)}"
    return kind


_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "minLength": "from {} characters",
    "maxLength": "up to {} characters",
    "minItems": "from {} items",
    "maxItems": "up to {} items",
}


def _bounds(schema: Mapping[str, Any]) -> str:
    found = [text.format(f"{schema[key]:,}") for key, text in _BOUNDS.items() if key in schema]
    return "".join(", not empty" if text.startswith("from 1 ") else f", {text}" for text in found)


def _json(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def outputs(root: Path) -> dict[Path, str]:
    """Both pages, as they are to be."""
    paths = description(router.routes, Settings())["paths"]
    parts = {"cli.md": command_reference(), "api.md": api_reference(paths)}
    pages = {root / "docs" / name: text for name, text in parts.items()}
    return {page: PART.replaced(page, text) for page, text in pages.items()}


if __name__ == "__main__":
    write(outputs(ROOT))
