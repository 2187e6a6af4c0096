# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenAI's Chat Completions, as Pi speaks it."""

from __future__ import annotations

import json
import typing as t

from wire import TOKENS, Asked, Call, Events, Result, Shell, asked, listing, mapping, shell, string, text


def read(body: dict[str, t.Any]) -> Asked:
    """Return what a body asks, or raise Malformed."""
    return asked(body, _shells(body), _results(body))


def _shells(body: dict[str, t.Any]) -> t.Iterator[Shell]:
    for tool in listing(body.get("tools", []), "tools"):
        if mapping(tool, "tools[]").get("type") == "function":
            function = mapping(tool.get("function"), "tools[].function")
            yield shell(function.get("name"), function.get("parameters"))


def _results(body: dict[str, t.Any]) -> t.Iterator[Result]:
    for message in listing(body.get("messages"), "messages"):
        if mapping(message, "messages[]").get("role") == "tool":
            yield Result(string(message.get("tool_call_id"), "tool_call_id"), text(message.get("content"), "content"))


def plain(asked: Asked, answer: Call | str) -> dict[str, t.Any]:
    """Return the answer as one JSON object."""
    message = {"role": "assistant"} | _content(answer)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer)}
    return _completion(asked, "chat.completion") | {"choices": [choice], "usage": _usage()}


def stream(asked: Asked, answer: Call | str) -> Events:
    """Yield the answer as events."""
    chunk = _completion(asked, "chat.completion.chunk")
    delta = {"role": "assistant"} | _content(answer)
    yield None, chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    end = {"index": 0, "delta": {}, "finish_reason": _finish_reason(answer)}
    yield None, chunk | {"choices": [end]}
    yield None, chunk | {"choices": [], "usage": _usage()}
    yield None, "[DONE]"


def _content(answer: Call | str) -> dict[str, t.Any]:
    if not isinstance(answer, Call):
        return {"content": answer}
    function = {"name": answer.shell.name, "arguments": json.dumps(answer.arguments())}
    call = {"index": 0, "id": answer.call_id, "type": "function", "function": function}
    return {"content": None, "tool_calls": [call]}


def _finish_reason(answer: Call | str) -> str:
    return "tool_calls" if isinstance(answer, Call) else "stop"


def _completion(asked: Asked, kind: str) -> dict[str, t.Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": asked.model}


def _usage() -> dict[str, int]:
    return {"prompt_tokens": TOKENS, "completion_tokens": TOKENS, "total_tokens": 2 * TOKENS}
