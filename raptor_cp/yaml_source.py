"""YAML input that remembers its lines, and turns model errors into sentences."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

import yaml

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel, ValidationError

Key = str | int
Path_ = tuple[Key, ...]

#: A file larger than this is not a scenario; aliases may not expand beyond the
#: node limit (a few hundred bytes of nested aliases can mean gigabytes).
MAX_BYTES, MAX_NODES = 64 * 2**20, 2_000_000


class YamlSource:
    """Parsed YAML: ``data`` (mappings, tuples, scalars), and where each key stands."""

    def __init__(self, name: str, data: object, lines: dict[Path_, int]) -> None:
        self.name, self.data, self._lines = name, data, lines

    @classmethod
    def read(cls, path: Path) -> YamlSource:
        """Parse a file.

        Raises:
            MalformedInput: missing, unreadable, not UTF-8, too large, not YAML.
        """
        try:
            if path.is_dir():
                raise MalformedInput(
                    "this is a folder", where=str(path), expected="a YAML file"
                )
            with path.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
        except FileNotFoundError:
            raise MalformedInput("no such file", where=str(path)) from None
        except OSError as error:
            raise MalformedInput(
                f"cannot be read: {error.strerror}", where=str(path)
            ) from None
        if len(raw) > MAX_BYTES:
            raise MalformedInput(
                "the file is too large",
                where=str(path),
                expected=f"at most {MAX_BYTES} bytes",
            )
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise MalformedInput(
                f"not UTF-8 text (byte {error.start})", where=str(path)
            ) from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, name: str) -> YamlSource:
        """Parse a string; ``name`` stands for the file in messages."""
        try:
            loader = yaml.SafeLoader(text)
            try:
                node = loader.get_single_node()
                lines: dict[Path_, int] = {}
                builder = _Builder(loader, name, lines)
                data = None if node is None else builder.build(node, (), 0)
            finally:
                loader.dispose()
        except (yaml.YAMLError, ValueError) as error:
            if isinstance(error, MalformedInput):
                raise
            mark = getattr(error, "problem_mark", None)
            where = f"{name}:{mark.line + 1}" if mark else name
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise MalformedInput(f"not legal YAML: {problem}", where=where) from None
        except RecursionError:
            raise MalformedInput("nested too deeply", where=name) from None
        return cls(name, data, lines)

    def copy(self) -> YamlSource:
        """The same content, for overrides of its own."""
        return YamlSource(self.name, self.data, dict(self._lines))

    def override(self, text: str) -> None:
        """Apply one ``key.path=value``; the value is YAML, list items by number.

        Raises:
            MalformedInput: no ``=``, or a path through something that is no mapping.
        """
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise MalformedInput(
                "an override has the form key.path=value", where="--set", value=text
            )
        path: Path_ = tuple(
            int(part) if part.isdigit() else part for part in key.strip().split(".")
        )
        parsed = YamlSource.parse(value, f"--set {key}").data
        self.data = _replaced(self.data, path, parsed, f"--set {text}")
        for known in [p for p in self._lines if p[: len(path)] == path]:
            del self._lines[known]

    def place(self, path: Path_) -> str:
        """``file:line`` of a key, or of its nearest parent that has a line."""
        for length in range(len(path), 0, -1):
            line = self._lines.get(path[:length])
            if line is not None:
                return f"{self.name}:{line}"
        return self.name

    def explain(self, error: ValidationError, model: type[BaseModel]) -> MalformedInput:
        """The first problem of a validation, as a sentence with a place."""
        problems = error.errors(include_url=False)
        paths = [_data_path(self.data, p["loc"], p["type"]) for p in problems]
        # An unknown key explains a missing one; of the members of a union, the one
        # that got furthest into the value explains best.
        best = min(
            range(len(problems)),
            key=lambda i: (problems[i]["type"] != "extra_forbidden", -len(paths[i]), i),
        )
        first, path = problems[best], paths[best]
        shown = ".".join(str(part) for part in path) or "the scenario"
        others = {p for p in paths if p != path[: len(p)]}
        more = len(others)
        hint = f"and {more} more problem{'s' if more > 1 else ''}" if more else ""
        where = f"{self.place(path)}: {shown}"
        kind, context = first["type"], first.get("ctx", {})
        if kind == "extra_forbidden":
            legal = _legal_keys(model, tuple(first["loc"][:-1]))
            near = difflib.get_close_matches(str(path[-1]), legal, n=1)
            meant = f"did you mean {near[0]!r}?" if near else ""
            return MalformedInput(
                "unknown key",
                where=where,
                value=path[-1],
                expected=f"one of {', '.join(legal)}" if legal else "no key",
                hint=meant or hint,
            )
        if kind == "missing":
            return MalformedInput("missing", where=where, hint=hint)
        if kind in ("union_tag_invalid", "union_tag_not_found"):
            return MalformedInput(
                "cannot tell which kind this is",
                where=where,
                value=first["input"],
                expected="kind: pim, pe or table"
                if path[-1:] == ("target",)
                else "one of the keys zoo, onnx, pimcomp, operations, tasks, kernel",
            )
        message = str(first["msg"])
        if kind == "value_error":
            message = str(context.get("error", message))
        message = message.removeprefix("Input should be ").removeprefix("Value error, ")
        return MalformedInput(
            "wrong value", where=where, value=first["input"], expected=message,
            hint=hint,
        )  # fmt: skip


class _Builder:
    """Builds plain data from YAML nodes; lists become tuples, as the models want."""

    def __init__(
        self, loader: yaml.SafeLoader, name: str, lines: dict[Path_, int]
    ) -> None:
        self._loader, self._name, self._lines = loader, name, lines
        self._nodes = 0

    def build(self, node: yaml.Node, path: Path_, depth: int) -> object:
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > MAX_NODES or depth > 60:
            raise MalformedInput(
                "too many or too deeply nested values",
                where=f"{self._name}:{line}",
                expected=f"at most {MAX_NODES} values, 60 levels",
            )
        self._lines.setdefault(path, line)
        if isinstance(node, yaml.SequenceNode):
            return tuple(
                self.build(item, (*path, index), depth + 1)
                for index, item in enumerate(node.value)
            )
        if isinstance(node, yaml.MappingNode):
            self._loader.flatten_mapping(node)
            result: dict[str, object] = {}
            for key_node, value_node in node.value:
                key = key_node.value
                if not isinstance(key_node, yaml.ScalarNode):
                    place = key_node.start_mark.line + 1
                    raise MalformedInput(
                        "a key must be a word", where=f"{self._name}:{place}"
                    )
                if key in result:
                    raise MalformedInput(
                        "this key stands twice",
                        where=f"{self._name}:{key_node.start_mark.line + 1}",
                        value=key,
                    )
                self._lines[(*path, key)] = key_node.start_mark.line + 1
                result[key] = self.build(value_node, (*path, key), depth + 1)
            return result
        value: object = self._loader.construct_object(node)
        return value


def _replaced(data: object, path: Path_, value: object, where: str) -> object:
    head, rest = path[0], path[1:]
    if isinstance(data, tuple) and isinstance(head, int):
        if head >= len(data):
            raise MalformedInput(
                "no such list item", where=where, value=head,
                expected=f"0 to {len(data) - 1}",
            )  # fmt: skip
        items = list(data)
        items[head] = value if not rest else _replaced(data[head], rest, value, where)
        return tuple(items)
    if not isinstance(data, Mapping):
        raise MalformedInput(
            f"cannot set {head!r} inside a plain value", where=where, value=data
        )
    key = str(head)
    result = dict(data)
    result[key] = (
        value if not rest else _replaced(result.get(key, {}), rest, value, where)
    )
    return result


def _data_path(data: object, location: Path_, kind: str) -> Path_:
    """The part of a model location that exists in the data (no union members)."""
    current, kept = data, []
    for index, part in enumerate(location):
        missing = kind == "missing" and index == len(location) - 1
        if isinstance(current, Mapping) and (part in current or missing):
            kept.append(part)
            current = current.get(str(part))
        elif (
            isinstance(current, tuple) and isinstance(part, int) and part < len(current)
        ):
            kept.append(part)
            current = current[part]
    return tuple(kept)


def _legal_keys(model: type[BaseModel], location: Path_) -> list[str]:
    """Field names of the model at ``location`` (union tags select a member)."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})

    def follow(node: dict[str, object]) -> dict[str, object]:
        while isinstance(node.get("$ref"), str):
            node = definitions[str(node["$ref"]).rsplit("/", 1)[-1]]
        return node

    current = follow(schema)
    for part in location:
        options = current.get("oneOf") or current.get("anyOf")
        if isinstance(part, str) and part.startswith("<") and isinstance(options, list):
            wanted = part.strip("<>")
            current = next(
                (
                    o
                    for o in map(follow, options)
                    if wanted in _properties(o)
                    or _properties(o).get("kind", {}).get("const") == wanted
                ),
                {},
            )
        elif isinstance(part, int):
            items = current.get("items")
            current = follow(items) if isinstance(items, dict) else {}
        else:
            current = follow(_properties(current).get(part, {}))
    return sorted(_properties(current))


def _properties(node: dict[str, object]) -> dict[str, dict[str, object]]:
    found = node.get("properties")
    return found if isinstance(found, dict) else {}


class _PlainDumper(yaml.SafeDumper):
    """Plain data, paths as text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_PlainDumper.add_multi_representer(
    PurePath, lambda dumper, path: dumper.represent_str(str(path))
)


def yaml_text(value: object, where: str) -> str:
    """``value`` as YAML that :class:`YamlSource` reads back.

    Args:
        value: mappings, lists, tuples, texts, numbers, paths.
        where: for the message.

    Raises:
        MalformedInput: something else is in it.
    """
    try:
        return yaml.dump(
            value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True
        )
    except (yaml.YAMLError, RecursionError) as error:
        raise MalformedInput(
            "not plain data", where=where, expected="mappings, lists, texts, numbers"
        ) from error
