"""As much of JSON Schema as the schemas of this project use, read as the standard words it; references as in draft-07.

A keyword that is not known here is an error, so that nothing in a schema is passed over.
"""

from __future__ import annotations

import re
from typing import Any

ANNOTATIONS = {"$schema", "definitions", "description", "title"}


class Schema:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def accepts(self, value: object, name: str | None = None) -> bool:
        """Whether the value is valid at the root, or against one definition."""
        return self.valid(self.document if name is None else self.document["definitions"][name], value)

    def valid(self, schema: dict[str, Any], value: object) -> bool:
        if "$ref" in schema:  # everything beside a reference is ignored in draft-07
            start, _, name = schema["$ref"].rpartition("/")
            assert start == "#/definitions"
            return self.valid(self.document["definitions"][name], value)
        return all(self.keyword(word, schema, value) for word in schema if word not in ANNOTATIONS)

    def keyword(self, word: str, schema: dict[str, Any], value: object) -> bool:
        argument = schema[word]
        match word:
            case "type":
                return is_type(argument, value)
            case "const":
                return same(argument, value)
            case "enum":
                return any(same(one, value) for one in argument)
            case "pattern":
                # `$` of ECMA-262 stands at the very end, that of Python also before a last newline.
                return not isinstance(value, str) or re.search(argument.replace("$", r"\Z"), value) is not None
            case "minimum":
                return not is_type("number", value) or value >= argument
            case "maximum":
                return not is_type("number", value) or value <= argument
            case "minLength":
                return not isinstance(value, str) or len(value) >= argument
            case "maxLength":
                return not isinstance(value, str) or len(value) <= argument
            case "minItems":
                return not isinstance(value, list) or len(value) >= argument
            case "maxItems":
                return not isinstance(value, list) or len(value) <= argument
            case "maxProperties":
                return not isinstance(value, dict) or len(value) <= argument
            case "items":
                return not isinstance(value, list) or all(self.valid(argument, one) for one in value)
            case "required":
                return not isinstance(value, dict) or all(name in value for name in argument)
            case "properties":
                return not isinstance(value, dict) or all(
                    self.valid(argument[name], value[name]) for name in argument if name in value
                )
            case "additionalProperties":
                known = schema.get("properties", {})
                if argument is False:
                    return not isinstance(value, dict) or value.keys() <= known.keys()
                return not isinstance(value, dict) or all(
                    self.valid(argument, value[name]) for name in value if name not in known
                )
            case "not":
                return not self.valid(argument, value)
            case "anyOf":
                return any(self.valid(one, value) for one in argument)
            case "oneOf":
                return sum(self.valid(one, value) for one in argument) == 1
        raise AssertionError(f"{word} is not known here")


def is_type(name: str, value: object) -> bool:
    match name:
        case "string":
            return isinstance(value, str)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "integer":
            return is_type("number", value) and value == value // 1  # type: ignore[operator]
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    raise AssertionError(f"type {name} is not known here")


def same(left: object, right: object) -> bool:
    """JSON equality of scalars: true is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)
