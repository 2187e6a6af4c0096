# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Anthropic's Messages, as Claude Code and Pi speak it."""

from __future__ import annotations

import json
import typing as t

from wire import TOKENS, Asked, Call, Events, Result, Shell, asked, listing, mapping, shell, string, text


def read(body: dict[str, t.Any]) -> Asked:
    """Return what a body asks, or raise Malformed."""
    return asked(body, _shells(body), _results(body))


def _shells(body: dict[str, t.Any]) -> t.Iterator[Shell]:
    for tool in listing(body.get("tools", []), "tools"):
        # The provider's own tools, such as its web search, come with a type and without a schema.
        if "input_schema" in mapping(tool, "tools[]"):
            yield shell(tool.get("name"), tool["input_schema"])


def _results(body: dict[str, t.Any]) -> t.Iterator[Result]:
    for message in listing(body.get("messages"), "messages"):
        content = mapping(message, "messages[]").get("content")
        for block in content if isinstance(content, list) else []:
            if mapping(block, "content[]").get("type") == "tool_result":
                call_id = string(block.get("tool_use_id"), "tool_use_id")
                # The protocol leaves it out where all went well.
                yield Result(call_id, text(block.get("content"), "content"), block.get("is_error") is True)


def plain(asked: Asked, answer: Call | str) -> dict[str, t.Any]:
    """Return the answer as one JSON object."""
    if isinstance(answer, Call):
        block = {"type": "tool_use", "id": answer.call_id, "name": answer.shell.name, "input": answer.arguments()}
    else:
        block = {"type": "text", "text": answer}
    return _message(asked) | {"content": [block], "stop_reason": _stop_reason(answer)}


def stream(asked: Asked, answer: Call | str) -> Events:
    """Yield the answer as events."""
    if isinstance(answer, Call):
        block = {"type": "tool_use", "id": answer.call_id, "name": answer.shell.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.arguments())}
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": answer}
    end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    for data in (
        {"type": "message_start", "message": _message(asked)},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": TOKENS}},
        {"type": "message_stop"},
    ):
        yield str(data["type"]), data


def _stop_reason(answer: Call | str) -> str:
    return "tool_use" if isinstance(answer, Call) else "end_turn"


def _message(asked: Asked) -> dict[str, t.Any]:
    usage = {"input_tokens": TOKENS, "output_tokens": TOKENS}
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
