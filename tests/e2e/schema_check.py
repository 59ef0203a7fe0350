"""The part of JSON Schema that schemas/*.schema.json use; a keyword that it does not know is a violation."""
import json
import re

import program

TYPES = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}


def load(name):
    return json.loads((program.SOURCE / "schemas" / name).read_text())


def has_type(value, name):
    if name in ("integer", "number"):
        return isinstance(value, int if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def violation(value, schema, root=None, at="$"):
    """The first violation as a text; None if there is none."""
    root = root or schema
    for keyword, rule in schema.items():
        found = violation_of(keyword, rule, value, schema, root, at)
        if found:
            return found
    return None


def violation_of(keyword, rule, value, schema, root, at):
    if keyword in ("$schema", "title", "description", "$defs"):
        return None
    if keyword == "$ref":
        if not rule.startswith("#"):
            return violation(value, load(rule), at=at)
        target = root
        for part in rule[2:].split("/"):
            target = target[part]
        return violation(value, target, root, at)
    if keyword == "anyOf":
        return None if any(violation(value, one, root, at) is None for one in rule) else f"{at} fits none of anyOf"
    if keyword in ("properties", "required", "additionalProperties", "propertyNames"):
        return violation_of_object(keyword, rule, value, schema, root, at) if isinstance(value, dict) else None
    if keyword == "items":
        found = (violation(item, rule, root, f"{at}[{i}]") for i, item in enumerate(value if isinstance(value, list) else []))
        return next((one for one in found if one), None)
    checks = {
        "type": lambda: any(has_type(value, name) for name in ([rule] if isinstance(rule, str) else rule)),
        "const": lambda: value == rule and type(value) is type(rule),
        "enum": lambda: value in rule,
        "pattern": lambda: not isinstance(value, str) or re.search(rule, value),
        "minLength": lambda: not isinstance(value, str) or len(value) >= rule,
        "minItems": lambda: not isinstance(value, list) or len(value) >= rule,
        "minimum": lambda: not has_type(value, "number") or value >= rule,
        "maximum": lambda: not has_type(value, "number") or value <= rule,
    }
    if keyword not in checks:
        return f"the check does not know the keyword {keyword}"
    return None if checks[keyword]() else f"{at} breaks {keyword}"


def violation_of_object(keyword, rule, value, schema, root, at):
    if keyword == "required":
        missing = [name for name in rule if name not in value]
        return f"{at} lacks {missing[0]}" if missing else None
    for name, child in value.items():
        if keyword == "propertyNames":
            found = violation(name, rule, root, f"{at}: name {name}")
        elif keyword == "properties":
            found = violation(child, rule[name], root, f"{at}.{name}") if name in rule else None
        elif name in schema.get("properties", {}):
            found = None
        else:
            found = f"{at} has the unknown {name}" if rule is False else violation(child, rule, root, f"{at}.{name}")
        if found:
            return found
    return None
