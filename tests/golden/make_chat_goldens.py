#!/usr/bin/env python3
"""Writes tests/golden/chat/goldens.json: chat templates rendered by jinja2 in transformers' own environment.

    make_chat_goldens.py [--templates FOLDER] [--out FILE]

Needs: pip install transformers jinja2. FOLDER holds *.jinja files; tests/golden/chat/templates by default. To compare
with templates that are not part of this repository, write another file and name it to the test:
ASYMKV_CHAT_GOLDENS=FILE chat_template_test --gtest_filter='ChatGolden.*'
"""

import argparse
import datetime
import json
import pathlib

import jinja2
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent / "chat"
NOW = 1764417600  # 2025-11-29 12:00:00 UTC; strftime_now shows it

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place, \"now\" & <here>.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "City, e.g. Zürich 饭"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1}, "wind": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}}}},
    "return": {"type": "string"}}}
ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                   "required": ["a", "b"]}}}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, call_id):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = message("user", "  Hello, how are you?\n")
ANSWER = message("assistant", "Fine. <think>hm</think> And you?")
SYSTEM = message("system", "You answer in one line.")
SECOND = message("user", "Say \"it's\" in Greek: ναι\n\ttabbed")
THIRD = message("assistant", "<think>\nShort thought.\n</think>\n\nναι")
CALLS = message("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2}, "call00001")])
CALL_TEXT = message("assistant", "Let me look.", tool_calls=[
    call("get_weather", {"city": "Bern", "wind": True, "limit": 1.5, "note": None}, "call00001"),
    call("add", {"a": 1, "b": -2}, "call00002")])
RESULT = message("tool", "{\"temperature\": 3}", name="get_weather", tool_call_id="call00001")
RESULT_2 = message("tool", "-1", name="add", tool_call_id="call00002")

CONTEXTS = {
    "one_turn": dict(messages=[USER], add_generation_prompt=True),
    "no_prompt": dict(messages=[USER, ANSWER], add_generation_prompt=False),
    "system": dict(messages=[SYSTEM, USER], add_generation_prompt=True),
    "turns": dict(messages=[SYSTEM, USER, ANSWER, SECOND], add_generation_prompt=True),
    "long": dict(messages=[SYSTEM, USER, ANSWER, SECOND, THIRD, USER], add_generation_prompt=True),
    "thinking_off": dict(messages=[SYSTEM, USER], add_generation_prompt=True, enable_thinking=False, thinking=False),
    "tools": dict(messages=[SYSTEM, USER], tools=[WEATHER, ADD], add_generation_prompt=True),
    "tools_no_system": dict(messages=[USER], tools=[ADD], add_generation_prompt=True),
    "tool_call": dict(messages=[USER, CALLS, RESULT], tools=[WEATHER], add_generation_prompt=True),
    "tool_calls": dict(messages=[SYSTEM, USER, CALL_TEXT, RESULT, RESULT_2, message("assistant", "Cold."), SECOND],
                       tools=[WEATHER, ADD], add_generation_prompt=True),
    "reasoning": dict(messages=[USER, message("assistant", "Yes.", reasoning_content="Think.", thinking="Think."), SECOND],
                      add_generation_prompt=True),
    "parts": dict(messages=[message("user", [{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}])],
                  add_generation_prompt=True),
    "two_users": dict(messages=[USER, SECOND], add_generation_prompt=True),
    "empty": dict(messages=[], add_generation_prompt=True),
}
TOKENS = dict(bos_token="<s>", eos_token="</s>")


def render(compiled, context):
    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    try:
        return {"text": compiled.render(strftime_now=strftime_now, **context)}
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError  # by raise_exception
        return {"error": f"{type(error).__name__}: {error}", **({"raised": str(error)} if raised else {})}
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=pathlib.Path, default=HERE / "templates")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "goldens.json")
    args = parser.parse_args()
    # A missing tools, as transformers passes it.
    contexts = {name: {"tools": None, "documents": None, **TOKENS, **context} for name, context in CONTEXTS.items()}
    names, cases, rendered = [], [], 0
    for path in sorted(args.templates.glob("*.jinja")):
        names.append(path.stem)
        compiled = chat_template_utils._compile_jinja_template(path.read_bytes().decode())
        for name, context in contexts.items():
            golden = render(compiled, context)
            rendered += "text" in golden
            cases.append({"template": path.stem, "context": name, **golden})
    folder = "templates" if args.templates == HERE / "templates" else str(args.templates.resolve())
    goldens = {"now": NOW, "folder": folder, "contexts": contexts, "templates": names, "rendered": rendered,
               "cases": cases}
    args.out.write_text(json.dumps(goldens, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(names)} templates, {rendered} of {len(cases)} cases render")


if __name__ == "__main__":
    main()
