"""Tools in Anthropic's shape → nouns, and the changes to them that a conversation makes on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from scaleout.codec import invalid
from scaleout.core import Json, Tool, ToolChoice
from scaleout.dialects.fields import read_text
from scaleout.errors import BadRequest


@frozen
class ToolChange:
    """A `tool_addition` or `tool_removal` block: it names a declared tool, or brings a new one along."""

    kind: str
    name: str
    definition: Tool | None = None


def read_tools(value: Json, path: str = "body.tools") -> list[Tool]:
    """The `tools` list; absent and empty are the same here."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(path, "Input should be a valid list")
    return [read_tool(one, f"{path}.{i}") for i, one in enumerate(value)]


def read_tool(value: Json, path: str) -> Tool:
    if not isinstance(value, dict):
        raise invalid(path, "Input should be a valid dictionary or object to extract fields from")
    if value.get("name") is None:
        raise invalid(f"{path}.name", "Field required")
    description = value.get("description")
    if description is not None:
        read_text(description, f"{path}.description")
    # Tools that Anthropic's own servers run have no schema: they are refused here, nobody could run them.
    schema = value.get("input_schema")
    if schema is None:
        raise invalid(f"{path}.input_schema", "Field required")
    if not isinstance(schema, dict):
        raise invalid(f"{path}.input_schema", "Input should be a valid dictionary")
    flags = {key: value.get(key) for key in ("strict", "defer_loading")}
    for key, flag in flags.items():
        if flag is not None and not isinstance(flag, bool):
            raise invalid(f"{path}.{key}", "Input should be a valid boolean")
    if "type" not in schema:
        schema = {**schema, "type": "object"}
    return Tool(read_text(value["name"], f"{path}.name"), description, schema, flags["strict"], flags["defer_loading"])


def read_change(block: Mapping[str, Json], path: str) -> ToolChange:
    """A block of a system message that changes the tools."""
    kind, tool = block["type"], block.get("tool")
    if tool is None:
        raise invalid(path, f"Value error, tool is required for {kind} blocks")
    if not isinstance(tool, dict):
        raise invalid(f"{path}.tool", "Input should be a valid dictionary or object to extract fields from")
    if tool.get("type") == "tool_reference":
        return ToolChange(kind, read_text(tool.get("name"), f"{path}.tool.name"))
    if tool.get("type") == "tool_definition":
        definition = read_tool(tool.get("definition"), f"{path}.tool.definition")
        return ToolChange(kind, definition.name, definition)
    raise invalid(f"{path}.tool.type", "Input should be 'tool_reference' or 'tool_definition'")


def apply_changes(tools: Sequence[Tool], changes: Sequence[ToolChange]) -> list[Tool]:
    """The tools after all changes, in the order they came. What is added is there at once, however it was declared."""
    declared = {tool.name: tool for tool in tools}
    now = dict(declared)
    for change in changes:
        if change.definition is not None:
            declared.setdefault(change.name, change.definition)
        if change.name not in declared:
            raise BadRequest(f"{change.kind} references tool '{change.name}', which is not declared in tools", "tools")
        if change.kind == "tool_removal":
            now.pop(change.name, None)
        else:
            now[change.name] = evolve(change.definition or declared[change.name], defer_loading=None)
    return list(now.values())


_CHOICES = {"auto": ToolChoice("auto"), "any": ToolChoice("required"), "none": ToolChoice("none")}


def read_choice(value: Json, tools: Sequence[Tool], path: str = "body.tool_choice") -> tuple[ToolChoice, bool]:
    """`tool_choice`, and whether calls may come in parallel. Without tools there is nothing to choose, whatever was asked for."""
    if value is None:
        return ToolChoice("auto" if tools else "none"), True
    if not isinstance(value, dict):
        raise invalid(path, "Input should be a valid dictionary or object to extract fields from")
    kind, name, single = value.get("type"), value.get("name"), value.get("disable_parallel_tool_use")
    if single is not None and not isinstance(single, bool):
        raise invalid(f"{path}.disable_parallel_tool_use", "Input should be a valid boolean")
    if kind == "tool":
        if name is None:
            raise invalid(path, "Value error, tool_choice.name is required when type is 'tool'")
        read_text(name, f"{path}.name")
        if all(tool.name != name for tool in tools):
            raise BadRequest(f"The tool with name '{name}' is not found in the tools list.", "tool_choice")
        return ToolChoice("named", name), not single
    choice = _CHOICES.get(kind) if isinstance(kind, str) else None
    if choice is None:
        raise invalid(f"{path}.type", "Input should be 'auto', 'any', 'tool' or 'none'")
    return (choice if tools else ToolChoice("none")), not single
