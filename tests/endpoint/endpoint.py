# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP server: loopback only, any number of connections, each request one entry in the script's record."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import sys
import threading
import typing as t

import anthropic_messages
import openai_chat
import openai_responses
from script import Script
from wire import TOKENS, Asked, Malformed, Protocol, mapping

PROTOCOLS = {
    f"/{end}": Protocol(module.read, module.plain, module.stream)
    for end, module in (
        ("messages", anthropic_messages),
        ("responses", openai_responses),
        ("chat/completions", openai_chat),
    )
}

CREDENTIALS = ("authorization", "x-api-key", "proxy-authorization")
DIGITS = 16
POLL_SECONDS = 0.05
LARGEST_BODY = 64 * 1024 * 1024


class Endpoint(http.server.ThreadingHTTPServer):
    """A model endpoint that follows a script, on a port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, script: Script, port: int = 0) -> None:
        """Listen, on a free port unless one is given; OSError if it is taken."""
        super().__init__(("127.0.0.1", port), Handler)
        self.script = script
        self.port: int = self.server_address[1]

    @contextlib.contextmanager
    def serving(self) -> t.Iterator[Endpoint]:
        """Answer in a thread as long as the context lasts."""
        thread = threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), name="endpoint")
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """Say nothing of a CLI that hung up, as one does whose run is over."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one connection's requests."""

    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        """Answer a turn in the protocol that the path names."""
        path = self._path()
        try:
            body = self._body()
            if path.endswith("/messages/count_tokens"):
                self._json({"input_tokens": TOKENS})
                return
            protocol = next((PROTOCOLS[end] for end in PROTOCOLS if path.endswith(end)), None)
            if protocol is None:
                self.send_error(404, f"nothing is served at {path}")
                return
            asked = protocol.read(body)
            answer = self.server.script.answer(asked)
        except Malformed as error:
            self.send_error(400, str(error))
            return
        if asked.stream:
            self._events(protocol.stream(asked, answer), asked)
        else:
            self._json(protocol.plain(asked, answer), asked)

    def do_GET(self) -> None:
        """Refuse a WebSocket, upon which Codex goes on with POST; there is nothing else to get."""
        if self._path().endswith("/responses"):
            self.send_error(426, "no WebSocket here")
        else:
            self.send_error(404, f"nothing is served at {self._path()}")

    def do_HEAD(self) -> None:
        """Tell Claude Code that somebody is here."""
        self._note(200)
        self._send(200, "text/plain", "")

    def do_CONNECT(self) -> None:
        """Refuse to be a proxy: with HTTPS_PROXY set to this endpoint, the record names the hosts that were dialled."""
        self.send_error(502, "this is no proxy")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request as all protocols do, also one that the base class finds malformed."""
        self._note(code, error=message or "")
        self.close_connection = True
        self._send(code, "application/json", json.dumps({"error": {"type": "invalid_request", "message": message}}))

    def log_message(self, format: str, *args: t.Any) -> None:
        """Print nothing: the record has it all."""

    def _path(self) -> str:
        # The query may hold anything, so it goes into no record.
        return self.path.partition("?")[0]

    def _body(self) -> dict[str, t.Any]:
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise Malformed("the body is compressed")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= LARGEST_BODY):
            raise Malformed(f"Content-Length is {length!r}")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (RecursionError, ValueError) as error:
            raise Malformed(f"the body is not JSON: {error}") from None
        return mapping(body, "the body")

    def _json(self, body: dict[str, t.Any], asked: Asked | None = None) -> None:
        self._note(200, asked)
        self._send(200, "application/json", json.dumps(body))

    def _events(self, events: t.Iterable[tuple[str | None, t.Any]], asked: Asked) -> None:
        self._note(200, asked)
        text = ""
        for name, data in events:
            text += f"event: {name}\n" if name else ""
            text += f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
        self._send(200, "text/event-stream", text)

    def _send(self, status: int, kind: str, text: str) -> None:
        content = text.encode("ascii")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def _note(self, status: int, asked: Asked | None = None, **more: str | None) -> None:
        """Put the request into the record, before it is answered: whoever has the answer finds it there."""
        request: dict[str, t.Any] = {"method": "", "path": ""}
        # The base class leaves it empty where it could not even read the first line, and the rest as it was before.
        if self.command:
            request = {"method": self.command, "path": self._path()}
        if asked:
            more |= {"shell": asked.shell.name if asked.shell else None}
        self.server.script.note(request | {"status": status} | more, self._credentials())

    def _credentials(self) -> t.Iterator[tuple[str, str]]:
        for name in CREDENTIALS if hasattr(self, "headers") else ():
            if value := self.headers.get(name):
                # Of the bare token, so that a test can compare it with one it knows.
                token = value.removeprefix("Bearer ").encode("latin-1")
                yield name, hashlib.sha256(token).hexdigest()[:DIGITS]
