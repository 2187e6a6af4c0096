# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenAI's Responses, as Codex and Pi speak it."""

from __future__ import annotations

import dataclasses
import json
import typing as t

from wire import TOKENS, Asked, Call, Events, Result, Shell, asked, listing, mapping, shell, string, text

# Codex gives some models one tool that takes JavaScript, in which its other tools can be called. The text that comes
# back shall read as that of exec_command itself.
JAVASCRIPT = """\
const done = await tools.exec_command({arguments});
text(`Process exited with code ${{done.exit_code}}\nOutput:\n${{done.output}}`);
"""


def read(body: dict[str, t.Any]) -> Asked:
    """Return what a body asks, or raise Malformed."""
    items = body.get("input")
    items = [] if isinstance(items, str) else [mapping(item, "input[]") for item in listing(items, "input")]
    tools = [body] + [item for item in items if item.get("type") == "additional_tools"]
    return asked(body, [found for place in tools for found in _shells(place)], _results(items))


def _shells(place: dict[str, t.Any], namespace: str | None = None) -> t.Iterator[Shell]:
    for tool in listing(place.get("tools", []), "tools"):
        kind = mapping(tool, "tools[]").get("type")
        if kind == "namespace" and namespace is None:
            yield from _shells(tool, string(tool.get("name"), "name of a namespace"))
        elif kind == "local_shell":
            yield Shell("local_shell", {"command": {"type": "array"}}, kind)
        elif kind == "custom" and tool.get("name") == "exec":
            yield Shell("exec", {"cmd": {}, "yield_time_ms": {}}, kind, namespace)
        elif kind == "function":
            yield dataclasses.replace(shell(tool.get("name"), tool.get("parameters")), namespace=namespace)


def _results(items: list[dict[str, t.Any]]) -> t.Iterator[Result]:
    for item in items:
        if item.get("type") in ("function_call_output", "local_shell_call_output", "custom_tool_call_output"):
            yield Result(string(item.get("call_id"), "call_id"), text(item.get("output"), "output"))


def plain(asked: Asked, answer: Call | str) -> dict[str, t.Any]:
    """Return the answer as one JSON object."""
    usage = {
        "input_tokens": TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2 * TOKENS,
    }
    return _response(asked, "completed") | {"output": [_item(answer)], "usage": usage}


def stream(asked: Asked, answer: Call | str) -> Events:
    """Yield the answer as events."""
    item = _item(answer)
    place = {"item_id": item["id"], "output_index": 0}
    events: list[dict[str, t.Any]] = [
        {"type": "response.created", "response": _response(asked, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"status": "in_progress"}},
    ]
    if item["type"] == "message":
        part = place | {"content_index": 0}
        events += [
            {"type": "response.content_part.added", "part": {**item["content"][0], "text": ""}} | part,
            {"type": "response.output_text.delta", "delta": answer} | part,
            {"type": "response.output_text.done", "text": answer} | part,
            {"type": "response.content_part.done", "part": item["content"][0]} | part,
        ]
    elif item["type"] == "function_call":
        events += [
            {"type": "response.function_call_arguments.delta", "delta": item["arguments"]} | place,
            {"type": "response.function_call_arguments.done", "arguments": item["arguments"]} | place,
        ]
    events += [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": plain(asked, answer)},
    ]
    for number, data in enumerate(events):
        yield data["type"], data | {"sequence_number": number}


def _item(answer: Call | str) -> dict[str, t.Any]:
    if not isinstance(answer, Call):
        content = [{"type": "output_text", "text": answer, "annotations": []}]
        return {
            "type": "message",
            "id": "msg_scripted",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    shell, arguments = answer.shell, answer.arguments()
    item: dict[str, t.Any] = {"id": f"fc_{answer.call_id}", "call_id": answer.call_id, "status": "completed"}
    if shell.kind == "local_shell":
        return item | {"type": "local_shell_call", "action": {"type": "exec", "env": {}} | arguments}
    item |= {"name": shell.name} | ({"namespace": shell.namespace} if shell.namespace else {})
    text = json.dumps(arguments)
    if shell.kind == "custom":
        return item | {"type": "custom_tool_call", "input": JAVASCRIPT.format(arguments=text)}
    return item | {"type": "function_call", "arguments": text}


def _response(asked: Asked, status: str) -> dict[str, t.Any]:
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 0,
        "status": status,
        "model": asked.model,
        "output": [],
        "usage": None,
    }
