# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scripted model endpoint, asked as the CLIs ask it."""

from __future__ import annotations

import hashlib
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t

import anthropic_messages
import openai_chat
import openai_responses
import pytest
from endpoint import Endpoint
from hypothesis import given
from hypothesis import strategies as st
from script import ASIDE, FINAL, Script
from wire import Malformed

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "endpoint"
COMMANDS = ["echo one", "cat /none", "printf 'a\\nb'"]
STRING: dict[str, t.Any] = {"type": "object", "properties": {"command": {"type": "string"}}}


class Client:
    """A CLI that knows one protocol: asks with the results it has and says what it was told to do."""

    path: t.ClassVar[str]
    tool: t.ClassVar[dict[str, t.Any]]

    def __init__(self, port: int, stream: bool = True) -> None:
        self.port = port
        self.stream = stream
        self.results: list[tuple[str, str]] = []

    def post(self, body: t.Any, path: str | None = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path or self.path, content, {"Content-Type": "application/json"} | headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def ask(self, **more: t.Any) -> tuple[str, str] | str:
        """Return the id and command of the call that was answered, or the text."""
        body = self.body() | {"model": "any", "tools": [self.tool], "stream": self.stream} | more
        status, text = self.post(body)
        assert status == 200, text
        return self.streamed(self.events(text)) if self.stream else self.plain(json.loads(text))

    def events(self, text: str) -> list[dict[str, t.Any]]:
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in data if line != "[DONE]"]

    def body(self) -> dict[str, t.Any]:
        raise NotImplementedError

    def plain(self, answer: dict[str, t.Any]) -> tuple[str, str] | str:
        raise NotImplementedError

    def streamed(self, events: list[dict[str, t.Any]]) -> tuple[str, str] | str:
        raise NotImplementedError


class Messages(Client):
    path = "/v1/messages?beta=true"
    tool: t.ClassVar = {"name": "Bash", "input_schema": STRING}

    def body(self) -> dict[str, t.Any]:
        blocks = [
            {"type": "tool_result", "tool_use_id": name, "content": [{"type": "text", "text": output}]}
            for name, output in self.results
        ]
        return {"messages": [{"role": "user", "content": "go"}, {"role": "user", "content": blocks}]}

    def plain(self, answer: dict[str, t.Any]) -> tuple[str, str] | str:
        block = answer["content"][0]
        assert answer["stop_reason"] == ("tool_use" if block["type"] == "tool_use" else "end_turn")
        return block["text"] if block["type"] == "text" else (block["id"], block["input"]["command"])

    def streamed(self, events: list[dict[str, t.Any]]) -> tuple[str, str] | str:
        assert events[-1]["type"] == "message_stop"
        block, delta = events[1]["content_block"], events[2]["delta"]
        return delta["text"] if block["type"] == "text" else (block["id"], json.loads(delta["partial_json"])["command"])


class Responses(Client):
    path = "/v1/responses"
    tool: t.ClassVar = {"type": "function", "name": "exec_command", "parameters": {"properties": {"cmd": {}}}}

    def body(self) -> dict[str, t.Any]:
        return {
            "input": [
                {"type": "function_call_output", "call_id": name, "output": output} for name, output in self.results
            ]
        }

    def plain(self, answer: dict[str, t.Any]) -> tuple[str, str] | str:
        item = answer["output"][0]
        if item["type"] == "message":
            return str(item["content"][0]["text"])
        return item["call_id"], json.loads(item["arguments"])["cmd"]

    def streamed(self, events: list[dict[str, t.Any]]) -> tuple[str, str] | str:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
        assert events[-1]["response"]["output"] == [done]
        return self.plain(events[-1]["response"])


class Chat(Client):
    path = "/v1/chat/completions"
    tool: t.ClassVar = {"type": "function", "function": {"name": "bash", "parameters": STRING}}

    def body(self) -> dict[str, t.Any]:
        messages = [{"role": "tool", "tool_call_id": name, "content": output} for name, output in self.results]
        return {"messages": messages}

    def plain(self, answer: dict[str, t.Any]) -> tuple[str, str] | str:
        return self.message(answer["choices"][0]["message"])

    def streamed(self, events: list[dict[str, t.Any]]) -> tuple[str, str] | str:
        return self.message(events[0]["choices"][0]["delta"])

    def message(self, message: dict[str, t.Any]) -> tuple[str, str] | str:
        if "tool_calls" not in message:
            return str(message["content"])
        call = message["tool_calls"][0]
        return call["id"], json.loads(call["function"]["arguments"])["command"]


CLIENTS = (Messages, Responses, Chat)


@pytest.fixture
def endpoint(tmp_path: pathlib.Path) -> t.Iterator[Endpoint]:
    with Endpoint(Script(COMMANDS, tmp_path / "result.json")).serving() as endpoint:
        yield endpoint


def record(tmp_path: pathlib.Path) -> t.Any:
    return json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("client", CLIENTS)
def test_commands_come_in_turn_until_the_closing_text(
    endpoint: Endpoint, tmp_path: pathlib.Path, client: type[Client], stream: bool
) -> None:
    cli = client(endpoint.port, stream)
    for index, command in enumerate(COMMANDS):
        call = cli.ask()
        assert isinstance(call, tuple)
        assert call[1] == command
        assert [result["index"] for result in record(tmp_path)["results"]] == list(range(index))
        assert not record(tmp_path)["finished"]
        cli.results.append((call[0], f"output {index}"))
    assert cli.ask() == FINAL
    found = record(tmp_path)
    assert found["finished"]
    assert [(result["command"], result["output"]) for result in found["results"]] == [
        (command, f"output {index}") for index, command in enumerate(COMMANDS)
    ]
    assert found["prior_results"] == 0
    assert found == endpoint.script.result()


@pytest.mark.parametrize("client", CLIENTS)
def test_neither_a_retry_nor_a_side_request_shifts_the_script(endpoint: Endpoint, client: type[Client]) -> None:
    cli = client(endpoint.port)
    first = cli.ask()
    assert cli.ask(tools=[]) == ASIDE
    assert cli.ask() == first
    assert isinstance(first, tuple)
    cli.results.append((first[0], "one"))
    assert cli.ask(tools=[]) == ASIDE
    second = cli.ask()
    assert isinstance(second, tuple)
    assert second[1] == COMMANDS[1]
    cli.results.clear()
    assert cli.ask() == first


@pytest.mark.parametrize("client", CLIENTS)
def test_results_of_an_earlier_run_are_counted_and_are_no_results_of_this_one(
    endpoint: Endpoint, client: type[Client]
) -> None:
    cli = client(endpoint.port)
    cli.results = [(f"call_{'0' * 16}x{index}", "old") for index in (0, 1)] + [("toolu_of_somebody_else", "other")]
    call = cli.ask()
    assert isinstance(call, tuple)
    assert call[1] == COMMANDS[0]
    cli.ask()
    assert endpoint.script.result()["prior_results"] == 2
    assert endpoint.script.result()["results"] == []


def test_the_first_word_about_a_result_counts(endpoint: Endpoint) -> None:
    """A CLI that shortens its conversation must not take evidence away."""
    cli = Messages(endpoint.port)
    cli.results.append((cli.ask()[0], "evidence"))
    cli.ask()
    cli.results = [(cli.results[0][0], "[cleared]")]
    cli.ask()
    assert [result["output"] for result in endpoint.script.result()["results"]] == ["evidence"]


def test_a_made_up_call_of_this_run_is_refused(endpoint: Endpoint) -> None:
    cli = Chat(endpoint.port)
    cli.results = [(f"call_{endpoint.script.run}x{len(COMMANDS)}", "never asked")]
    status, text = cli.post(cli.body() | {"model": "any"})
    assert status == 400
    assert "is no call of this run" in text


def test_anthropic_says_which_commands_failed(endpoint: Endpoint) -> None:
    cli = Messages(endpoint.port)
    call = cli.ask()[0]
    block = {"type": "tool_result", "tool_use_id": call, "content": "Exit code 2", "is_error": True}
    cli.ask(messages=[{"role": "user", "content": [block]}])
    assert endpoint.script.result()["results"][0]["is_error"] is True


def function(name: str, **properties: t.Any) -> dict[str, t.Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": properties}}


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        pytest.param(
            [function("view_image"), function("exec_command", cmd={"type": "string"}, yield_time_ms={})],
            "exec_command",
            {"cmd": "id", "yield_time_ms": 30000},
            id="exec_command",
        ),
        pytest.param(
            [function("shell", command={"type": "array"})], "shell", {"command": ["sh", "-c", "id"]}, id="shell"
        ),
        pytest.param([function("shell_command", command={})], "shell_command", {"command": "id"}, id="shell_command"),
        pytest.param([function("bash", command={}), function("Bash", command={})], "Bash", {"command": "id"}, id="two"),
    ],
)
def test_the_call_has_the_form_of_the_tool_that_was_offered(
    tools: list[t.Any], name: str, arguments: dict[str, t.Any]
) -> None:
    item = answer(Script(["id"]), {"model": "any", "input": "go", "tools": tools})
    assert (item["type"], item["name"], json.loads(item["arguments"])) == ("function_call", name, arguments)


def answer(script: Script, body: dict[str, t.Any]) -> dict[str, t.Any]:
    asked = openai_responses.read(body)
    item: dict[str, t.Any] = openai_responses.plain(asked, script.answer(asked))["output"][0]
    return item


def test_codex_local_shell_gets_an_action() -> None:
    item = answer(Script(["id"]), {"model": "any", "input": [], "tools": [{"type": "local_shell"}]})
    assert item["type"] == "local_shell_call"
    assert item["action"] == {"type": "exec", "env": {}, "command": ["sh", "-c", "id"]}


def test_codex_code_mode_gets_javascript() -> None:
    """Its newer models are offered one tool, inside a namespace, inside the conversation."""
    script = Script(["echo '\"`${x}'"])
    functions = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}
    items: list[dict[str, t.Any]] = [{"type": "additional_tools", "tools": [functions]}]
    item = answer(script, {"model": "any", "input": items})
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "functions", "exec")
    assert f"exec_command({json.dumps({'cmd': script.commands[0], 'yield_time_ms': 30000})});" in item["input"]
    items.append({"type": "custom_tool_call_output", "call_id": item["call_id"], "output": [{"text": "done"}]})
    assert answer(script, {"model": "any", "input": items})["content"][0]["text"] == FINAL
    assert script.result()["results"][0]["output"] == "done"


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        pytest.param("/v1/messages", b"{", "not JSON", id="half"),
        pytest.param("/v1/messages", b"\xff\xfe", "not JSON", id="bytes"),
        pytest.param("/v1/messages", b"[" * 200_000, "not JSON", id="deep"),
        pytest.param("/v1/messages", [], "the body is list", id="list"),
        pytest.param("/v1/messages", {"model": "any"}, "messages is NoneType", id="no messages"),
        pytest.param("/v1/responses", {"model": "any"}, "input is NoneType", id="no input"),
        pytest.param("/v1/responses", {"input": "go"}, "model is NoneType", id="no model"),
        pytest.param("/v1/chat/completions", {"model": "any", "messages": [1]}, "messages[] is int", id="message"),
        pytest.param("/v1/chat/completions", {"messages": [], "tools": 5}, "tools is int", id="tools"),
        pytest.param("/v1/messages/count_tokens", [], "the body is list", id="count"),
    ],
)
def test_a_malformed_request_is_refused_and_recorded(
    endpoint: Endpoint, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], path: str, body: t.Any, word: str
) -> None:
    status, text = Messages(endpoint.port).post(body, path)
    assert status == 400
    assert word in json.loads(text)["error"]["message"]
    last = record(tmp_path)["requests"][-1]
    assert (last["method"], last["path"], last["status"]) == ("POST", path, 400)
    assert word in last["error"]
    assert capfd.readouterr().err == ""
    assert isinstance(Messages(endpoint.port).ask(), tuple)


@pytest.mark.parametrize(
    ("sent", "status", "method"),
    [
        pytest.param(b"nonsense\r\n\r\n", b"400", "", id="no request"),
        pytest.param(b"POST /v1/messages HTTP/1.1\r\n\r\n", b"400", "POST", id="no length"),
        pytest.param(b"POST /v1/messages HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"400", "POST", id="negative"),
        pytest.param(b"POST /v1/messages HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n", b"400", "POST", id="huge"),
        pytest.param(
            b"POST / HTTP/1.1\r\nContent-Encoding: zstd\r\nContent-Length: 0\r\n\r\n", b"400", "POST", id="compressed"
        ),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"404", "POST", id="elsewhere"),
        pytest.param(b"BREW /pot HTTP/1.1\r\n\r\n", b"501", "BREW", id="method"),
        pytest.param(b"GET //[ HTTP/1.1\r\n\r\n", b"404", "GET", id="bad address"),
        pytest.param(b"GET /v1/responses HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", b"426", "GET", id="websocket"),
        pytest.param(b"CONNECT github.com:443 HTTP/1.1\r\n\r\n", b"502", "CONNECT", id="proxy"),
        pytest.param(b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n", b"200", "HEAD", id="probe"),
    ],
)
def test_whatever_else_arrives_gets_a_status_and_an_entry(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str], sent: bytes, status: bytes, method: str
) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as connection:
        connection.sendall(sent)
        received = connection.makefile("rb").read()
    # Who speaks no HTTP gets the body of the answer alone.
    assert (status if method else b"Bad request") in received.split(b"\r\n", 1)[0]
    last = endpoint.script.result()["requests"][-1]
    assert (last["method"], last["status"]) == (method, int(status))
    assert capfd.readouterr().err == ""


def test_a_client_that_hangs_up_leaves_no_traceback(endpoint: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
        # Closed with unread data and no lingering, the peer gets a reset.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
    assert isinstance(Messages(endpoint.port).ask(), tuple)
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(60)
    assert capfd.readouterr().err == ""


def test_tokens_can_be_counted(endpoint: Endpoint) -> None:
    status, text = Messages(endpoint.port).post({"messages": []}, "/v1/messages/count_tokens?beta=true")
    assert (status, list(json.loads(text))) == (200, ["input_tokens"])


VALID: list[tuple[t.Any, dict[str, t.Any]]] = [
    (
        anthropic_messages,
        {
            "model": "any",
            "tools": [Messages.tool],
            "messages": [{"content": [{"type": "tool_result", "tool_use_id": "id", "content": [{"text": "out"}]}]}],
        },
    ),
    (
        openai_responses,
        {
            "model": "any",
            "tools": [Responses.tool, {"type": "namespace", "name": "functions", "tools": [{"type": "custom"}]}],
            "input": [{"type": "function_call_output", "call_id": "id", "output": [{"text": "out"}]}],
        },
    ),
    (
        openai_chat,
        {
            "model": "any",
            "tools": [Chat.tool],
            "messages": [{"role": "tool", "tool_call_id": "id", "content": [{"text": "out"}]}],
        },
    ),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def places(value: t.Any, path: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """Yield where in a JSON value something stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.parametrize(("protocol", "body"), VALID)
@given(data=st.data())
def test_whatever_stands_in_a_request_it_is_answered_or_malformed(
    protocol: t.Any, body: dict[str, t.Any], data: st.DataObject
) -> None:
    body = json.loads(json.dumps(body))
    *path, last = data.draw(st.sampled_from(list(places(body))))
    place: t.Any = body
    for key in path:
        place = place[key]
    place[last] = data.draw(ANYTHING)
    script = Script(["id"])
    try:
        asked = protocol.read(body)
        answer = script.answer(asked)
    except Malformed:
        return
    json.dumps([protocol.plain(asked, answer), *protocol.stream(asked, answer)]).encode("ascii")


@pytest.mark.parametrize(
    ("header", "value", "bare"),
    [
        pytest.param("Authorization", "Bearer sk-secret", b"sk-secret", id="bearer"),
        pytest.param("X-Api-Key", "sk-secret", b"sk-secret", id="key"),
        pytest.param("X-Api-Key", "sk-secr\xe9t", b"sk-secr\xe9t", id="not ascii"),
    ],
)
def test_a_credential_is_recorded_by_its_digest_alone(
    endpoint: Endpoint, tmp_path: pathlib.Path, header: str, value: str, bare: bytes
) -> None:
    cli = Messages(endpoint.port)
    for _unused in range(2):
        cli.post(cli.body() | {"model": "any"}, "/v1/messages?key=sk-secret", **{header: value})
    assert record(tmp_path)["credentials"] == [
        {"header": header.lower(), "sha256": hashlib.sha256(bare).hexdigest()[:16]}
    ]
    assert "sk-secr" not in (tmp_path / "result.json").read_text()


def test_it_listens_on_loopback_alone(endpoint: Endpoint) -> None:
    assert endpoint.server_address[0] == "127.0.0.1"


def test_ids_of_two_runs_differ() -> None:
    assert Script([]).run != Script([]).run


# --- the program ------------------------------------------------------------------------------------------------------


def start(tmp_path: pathlib.Path, script: str, **more: t.Any) -> subprocess.Popen[str]:
    (tmp_path / "script.json").write_text(script)
    options = [f"--{name}={tmp_path / file}" for name, file in FILES.items()]
    argv = [sys.executable, "-I", "-B", str(PROGRAM), *options]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env={}, cwd="/", **more)


FILES = {"script": "script.json", "result": "result.json", "port-file": "port"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_serves_until_it_is_told_to_end(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    with start(tmp_path, json.dumps(COMMANDS)) as program:
        while not (tmp_path / "port").exists():
            assert program.poll() is None
            time.sleep(0.01)
        assert record(tmp_path)["requests"] == []
        call = Messages(int((tmp_path / "port").read_text())).ask()
        assert isinstance(call, tuple)
        assert call[1] == COMMANDS[0]
        program.send_signal(number)
        assert program.communicate(timeout=30)[1] == ""
    assert program.returncode == 0
    assert record(tmp_path)["requests"] == [{"method": "POST", "path": "/v1/messages", "status": 200, "shell": "Bash"}]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES.values())


@pytest.mark.parametrize("script", ["", "{}", "[1]", '"id"'])
def test_the_program_refuses_what_is_no_script(tmp_path: pathlib.Path, script: str) -> None:
    with start(tmp_path, script) as program:
        error = program.communicate(timeout=30)[1]
    assert program.returncode == 1
    assert error.startswith("endpoint: ")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "port").exists()
