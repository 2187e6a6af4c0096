# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenAI's Responses, as Codex and Pi speak it."""

from __future__ import annotations

import typing as t

from wire import TOKENS, Asked, Call, Events, Malformed, Result, Shell, asked, listing, mapping, shell, string, text

LOCAL_SHELL = Shell("local_shell", {"command": {"type": "array"}})


def read(body: dict[str, t.Any]) -> Asked:
    """Return what a body asks, or raise Malformed."""
    return asked(body, _shells(body), _results(body))


def _shells(body: dict[str, t.Any]) -> t.Iterator[Shell]:
    for tool in listing(body.get("tools", []), "tools"):
        kind = mapping(tool, "tools[]").get("type")
        if kind == "local_shell":
            yield LOCAL_SHELL
        elif kind == "function":
            yield shell(tool.get("name"), tool.get("parameters"))


def _results(body: dict[str, t.Any]) -> t.Iterator[Result]:
    items = body.get("input")
    if items is None:
        raise Malformed("input is missing")
    for item in [] if isinstance(items, str) else listing(items, "input"):
        if mapping(item, "input[]").get("type") in ("function_call_output", "local_shell_call_output"):
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
    item = {"id": f"fc_{answer.call_id}", "call_id": answer.call_id, "status": "completed"}
    if answer.shell is LOCAL_SHELL:
        action = {"type": "exec", "env": {}, **answer.arguments}
        return item | {"type": "local_shell_call", "action": action}
    return item | {"type": "function_call", "name": answer.shell.name, "arguments": answer.arguments_json}


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
