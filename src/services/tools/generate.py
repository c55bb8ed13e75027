"""Makes the modules by which Python programs call the tools of one MCP server.

Runs in a sandbox of its own, without a network. Standard input is one JSON object: the server's name and description,
and its tools with their schemas, which are a stranger's. Each line of standard output is one module.

A schema is cleaned before a code generator sees it: only keywords that describe data, references only into itself. What
was generated is executed here once; where that fails, the tool gets a module that takes anything. The server checks
arguments by the schema as it is.
"""

import json
import re
import sys
from typing import Any

sys.path.append("/opt/tools")
sys.setrecursionlimit(3000)

BYTES_MAX = 128 << 10
DEPTH_MAX = 40
MEMBERS_MAX = 1000
ENUM_MAX = 200
TEXT_CHARS_MAX = 2000

# Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE = {"items", "additionalProperties"}
_LIST = {"anyOf", "oneOf", "allOf", "prefixItems"}
_NAMED = {"properties", "$defs", "definitions"}
_PLAIN = {
    "type", "required", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",
    "minItems", "maxItems", "default",
}  # fmt: skip


class Unusable(Exception):
    pass


def text_of(text: Any, most: int = TEXT_CHARS_MAX) -> str:
    """A stranger's text without what hides or moves other text."""
    hidden = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
    return hidden.sub(" ", text)[:most] if isinstance(text, str) else ""


def is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def clean(schema: Any, depth: int = 0, count: list[int] | None = None) -> Any:
    """Only what describes data."""
    count = [0] if count is None else count
    count[0] += 1
    if depth > DEPTH_MAX or count[0] > MEMBERS_MAX:
        raise Unusable("it is too large")
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise Unusable("a schema is no object")
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _ONE:
            made[name] = clean(value, depth + 1, count)
        elif name in _LIST and isinstance(value, list):
            made[name] = [clean(one, depth + 1, count) for one in value]
        elif name in _NAMED and isinstance(value, dict):
            made[name] = {inner: clean(one, depth + 1, count) for inner, one in value.items()}
        elif name in _PLAIN:
            values = value if isinstance(value, list) else [value]
            # A structure here could hold what the generator reads as a schema.
            if all(is_scalar(one) for one in values):
                made[name] = value
        elif name == "description":
            made[name] = text_of(value)
        elif name == "const" and is_scalar(value):
            made["enum"] = [value]
        elif name == "enum" and isinstance(value, list) and len(value) <= ENUM_MAX and all(map(is_scalar, value)):
            made[name] = value
        elif name == "$ref":
            if not (isinstance(value, str) and re.fullmatch(r"#(/[^/]+)*", value)):
                raise Unusable("a reference leads out of the schema")
            made[name] = value
    is_object = "properties" in made or made.get("type") == "object"
    if is_object and made.get("additionalProperties", {}) == {}:
        # As the schema means it; but beside named arguments another name is a mistake rather than wanted.
        is_free = depth > 0 or "additionalProperties" in schema or not made.get("properties")
        made["additionalProperties"] = is_free
    return made


def models(schema: Any, name: str) -> str:
    """The code of a model and of those that it needs."""
    from datamodel_code_generator import DataModelType, InputFileType, LiteralType, PythonVersion, generate

    if not isinstance(schema, dict) or len(json.dumps(schema)) > BYTES_MAX:
        raise Unusable("it is too large")
    # Any root is a nested one for what a tool answers.
    made = generate(
        clean(schema, depth=int(name == "Result")),
        input_filename="schema.json",
        input_file_type=InputFileType.JsonSchema,
        output_model_type=DataModelType.PydanticV2BaseModel,
        target_python_version=PythonVersion.PY_313,
        class_name=name,
        formatters=[],
        use_double_quotes=True,
        use_field_description=True,
        enum_field_as_literal=LiteralType.All,
        field_constraints=True,
        allow_population_by_field_name=True,
        allow_remote_refs=False,
        disable_future_imports=True,
    )
    if not isinstance(made, str):
        raise Unusable("it became several modules")
    lines = [line for line in made.splitlines() if not line.startswith(("#", "from __future__"))]
    text = "\n".join(lines).strip() + "\n"
    # A field may have a name that models have methods of.
    return text.replace("populate_by_name=True,", "populate_by_name=True,\n        protected_namespaces=(),")


ANY_PARAMS = '''from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Takes any arguments: the schema of this tool cannot be written as a class."""

    model_config = ConfigDict(extra="allow")
'''

TAIL = '''

_TOOL = _Tool({server}, {tool}, Params, {result})


def run(params: Params | dict | None = None, /, **arguments: Any) -> Result:
    return _TOOL.run(params, arguments)


async def run_async(params: Params | dict | None = None, /, **arguments: Any) -> Result:
    return await _TOOL.run_async(params, arguments)
'''


def docstring(tool: dict[str, Any]) -> str:
    text = text_of(tool.get("description") or tool.get("title") or tool["name"])
    return json.dumps(text, ensure_ascii=False)


def module(server: str, tool: dict[str, Any], typed: bool) -> str:
    params = models(tool["input"], "Params") if typed else ANY_PARAMS
    result, kind = "Result = str\n", "None"
    if tool.get("output") is not None:
        result, kind = "Result = Any\n", "Any"
        if typed:
            result, kind = models(tool["output"], "Result"), "Result"
    head = f"{docstring(tool)}\n\nfrom __future__ import annotations\n\nfrom typing import Any\n\n"
    head += "from mcptools._client import Tool as _Tool\n"
    tail = TAIL.format(server=json.dumps(server), tool=json.dumps(tool["name"]), result=kind)
    return f"{head}{params}\n\n{result}{tail}"


def shown(annotation: Any) -> str:
    is_class = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    text = annotation.__name__ if is_class else str(annotation)
    return re.sub(r"\b(typing|mcptools_made|builtins)\.", "", text)[:120]


def signature(name: str, space: dict[str, Any], has_output: bool) -> str:
    fields = []
    for field, info in space["Params"].model_fields.items():
        default = "" if info.is_required() else " = …"
        fields.append(f"{field}: {shown(info.annotation)}{default}")
    return f"{name}({', '.join(fields)}) -> {'Result' if has_output else 'str'}"[:500]


def made(server: str, tool: dict[str, Any]) -> dict[str, Any]:
    from pydantic import RootModel

    for typed in (True, False):
        try:
            text = module(server, tool, typed)
            space: dict[str, Any] = {"__name__": "mcptools_made"}
            sys.modules["mcptools_made"] = type(sys)("mcptools_made")
            space = sys.modules["mcptools_made"].__dict__
            exec(compile(text, tool["module"], "exec"), space)
            if issubclass(space["Params"], RootModel):
                raise Unusable("its arguments are no object")
            space["Params"].model_json_schema()
            line = signature(tool["module"], space, tool.get("output") is not None)
            return {"module": tool["module"], "text": text, "signature": line, "typed": typed}
        except (Exception, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"[:300]
            print(f"{tool['module']}: {why}", file=sys.stderr)
    return {"module": tool["module"], "text": "raise ImportError('this tool has no module')\n", "signature": ""}


def main() -> None:
    order = json.load(sys.stdin)
    server = order["server"]
    lines = [made(server, tool) for tool in order["tools"]]
    about = text_of(order.get("description")) or f"Tools of the MCP server {server}."
    listed = "\n".join(f"    {line['signature'] or line['module']}" for line in lines)
    top = {"module": "", "text": f"{json.dumps(f'{about}\n\n{listed}', ensure_ascii=False)}\n", "signature": ""}
    for line in [top, *lines]:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
