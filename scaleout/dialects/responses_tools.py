"""Tools of the responses API → functions, and the way back for the names of the calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from scaleout.codec import invalid
from scaleout.core import Json, Tool, ToolChoice
from scaleout.dialects.fields import read_text
from scaleout.errors import BadRequest

SPACE = "__"
"""Between a namespace and a function's name: models know one flat list."""

PAYLOAD = "input"
CUSTOM_SCHEMA: Mapping[str, Json] = {
    "type": "object",
    "properties": {PAYLOAD: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [PAYLOAD],
    "additionalProperties": False,
}
"""A custom tool takes text. Models write JSON, so for them it is a function with one string."""


def flat_name(name: str, namespace: str | None) -> str:
    return f"{namespace}{SPACE}{name}" if namespace else name


def read_tools(value: Json, path: str = "body.tools") -> list[Tool]:
    """The functions among the tools. Tools that OpenAI's own servers run are passed over: nobody could run them here."""
    return [_read_tool(tool, space, at) for tool, space, at in _each_tool(value, path)]


def _each_tool(
    value: Json, path: str, space: str | None = None
) -> Iterator[tuple[Mapping[str, Json], str | None, str]]:
    """Functions and custom tools with the namespace they stand in and their JSON path."""
    if value is None:
        return
    if not isinstance(value, list):
        raise invalid(path, "Input should be a valid list")
    for i, tool in enumerate(value):
        at = f"{path}.{i}"
        if not isinstance(tool, dict):
            raise invalid(at, "Input should be a valid dictionary")
        kind = read_text(tool.get("type"), f"{at}.type")
        if kind in ("function", "custom"):
            yield tool, space, at
        elif kind == "namespace" and space is None:
            yield from _each_tool(tool.get("tools"), f"{at}.tools", read_text(tool.get("name"), f"{at}.name"))


def _read_tool(tool: Mapping[str, Json], space: str | None, path: str) -> Tool:
    if tool.get("name") is None:
        raise invalid(f"{path}.name", "Field required")
    name = flat_name(read_text(tool["name"], f"{path}.name"), space)
    description, parameters, strict = tool.get("description"), tool.get("parameters"), tool.get("strict")
    if description is not None:
        read_text(description, f"{path}.description")
    if tool["type"] == "custom":
        wanted = tool.get("format")
        if isinstance(wanted, dict) and wanted.get("type") == "grammar":
            raise BadRequest(
                "Custom tools with a grammar format are not supported; only free-form text custom tools are accepted. "
                "(parameter=tools)",
                "tools",
            )
        return Tool(name, description, CUSTOM_SCHEMA)
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(f"{path}.parameters", "Input should be a valid dictionary")
    defer = tool.get("defer_loading")
    for key, flag in (("strict", strict), ("defer_loading", defer)):
        if flag is not None and not isinstance(flag, bool):
            raise invalid(f"{path}.{key}", "Input should be a valid boolean")
    return Tool(name, description, parameters, strict, defer)


# ---------------------------------------------------------------------------------------------- choice


def read_choice(value: Json, declared: Json, tools: Sequence[Tool]) -> tuple[ToolChoice, list[Tool]]:
    """`tool_choice`, and the tools that may be called under it. `declared`: the tools as they were sent."""
    everything = list(tools)
    if value is None or value == "auto":
        return ToolChoice("auto" if tools else "none"), everything
    if value == "none":
        return ToolChoice("none"), everything
    if value == "required":
        _check_callable(value, declared, tools)
        return ToolChoice("required"), everything
    if not isinstance(value, dict):
        raise invalid("body.tool_choice", "Input should be 'none', 'auto', 'required' or a valid dictionary")
    kind = value.get("type")
    if kind in ("function", "custom"):
        return ToolChoice("named", _find(kind, value, tools)), everything
    if kind == "allowed_tools":
        return _read_allowed(value, declared, tools)
    raise BadRequest(f"Unsupported tool_choice type: {kind} (parameter=tool_choice)", "tool_choice")


def _check_callable(kind: str, declared: Json, tools: Sequence[Tool]) -> None:
    if not declared:
        raise BadRequest(
            f"Tool choice '{kind}' must be specified with 'tools' parameter. (parameter=tool_choice)", "tool_choice"
        )
    if not tools:
        raise BadRequest(
            "tool_choice requires a function call, but tools contains no function tool the model can call. "
            "(parameter=tool_choice)",
            "tool_choice",
        )


def _find(kind: str, value: Mapping[str, Json], tools: Sequence[Tool]) -> str:
    name = flat_name(read_text(value.get("name"), "body.tool_choice.name"), value.get("namespace"))
    if all(tool.name != name for tool in tools):
        raise BadRequest(f"Tool choice '{kind}' not found in 'tools' parameter. (parameter=tool_choice)", "tool_choice")
    return name


def _read_allowed(value: Mapping[str, Json], declared: Json, tools: Sequence[Tool]) -> tuple[ToolChoice, list[Tool]]:
    """`allowed_tools`: a choice among some of the tools. The others are not shown to the model at all."""
    mode, listed = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise invalid("body.tool_choice.mode", "Input should be 'auto' or 'required'")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise invalid("body.tool_choice.tools", "Input should be a valid list of dictionaries")
    names = {
        _find("allowed_tools", one, tools) for one in listed if one.get("type", "function") in ("function", "custom")
    }
    allowed = [tool for tool in tools if tool.name in names]
    if mode == "required":
        _check_callable("required", declared, allowed)
        return ToolChoice("required"), allowed
    return ToolChoice("auto" if allowed else "none"), allowed


# ---------------------------------------------------------------------------------------------- the way back


@frozen
class Naming:
    """How names of calls are to be read: which are custom tools, and which namespaces there are."""

    custom: Sequence[str] = ()
    spaces: Sequence[str] = ()

    def split(self, name: str) -> tuple[str, str | None]:
        """A call's name and its namespace."""
        for space in self.spaces:
            if name.startswith(space + SPACE):
                return name[len(space) + len(SPACE) :], space
        return name, None


def naming_of(declared: Json) -> Naming:
    """From the tools as they were sent; they have been read without an error before."""
    custom: list[str] = []
    spaces: dict[str, None] = {}
    for tool, space, _ in _each_tool(declared, ""):
        if space is not None:
            spaces[space] = None
        if tool["type"] == "custom":
            custom.append(flat_name(tool["name"], space))
    return Naming(custom, list(spaces))
