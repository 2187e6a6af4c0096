# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a slot's Docker daemon is made of, and the steps to it."""

from __future__ import annotations

import pathlib
import socket
import threading
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _docker, _layout
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid, Slot, parse
from ansible_collections.confined.slots.plugins.module_utils._docker import Found, Prune
from ansible_collections.confined.slots.plugins.module_utils._files import ROOT_DIRECTORY, Owned
from ansible_collections.confined.slots.plugins.module_utils._host import Account

NUMBERS = (Account(20000, 20000), (200_000_000, 200_065_536))
UNIT, TIMER = "confined-slots-docker@a-b.service", "confined-slots-prune@a-b.timer"
ON = frozenset({"enabled", "active"})
NEVER = Prune()
OK = b"HTTP/1.0 200 OK\r\nApi-Version: 1.45\r\nContent-Length: 2\r\n\r\nOK"


def slot(**more: t.Any) -> Slot:
    (found,) = parse([{"name": "a-b", "network": "private", "docker": True, **more}])
    return found


def converged(declared: Slot, prune: Prune = NEVER) -> Found:
    files = _docker.shared_files(prune) | _docker.files_of(declared, *NUMBERS)
    etc, conf = _layout.docker_etc("a-b"), _docker.drop_in("a-b").rpartition("/")[0]
    units = dict.fromkeys(_docker.units_of(declared, prune), ON)
    return Found(files, {etc: Owned(0, 20000, 0o750), conf: ROOT_DIRECTORY}, units, frozenset({"a-b"}))


def steps(declared: Slot, found: Found, prune: Prune = NEVER, **more: t.Any) -> list[tuple[str, str]]:
    changes = list(_docker.plan([declared], {"a-b": NUMBERS}, found, prune, **more))
    changes += _docker.to_start([declared], found, changes, prune)
    return [(change.step.action, change.step.subject.rpartition("/")[2]) for change in changes]


def test_docker_without_a_network_is_refused() -> None:
    with pytest.raises(Invalid, match="slot 'a-b': docker is true and network is none, but containers reach"):
        slot(network="none")


def test_a_daemon_is_written_and_switched_on_once() -> None:
    made = steps(slot(), Found({}, {}, {}))
    assert made[0] == ("keep directory", "docker")
    assert ("write", "confined-slots-docker@.service") in made
    assert made[-1] == ("switch on", UNIT)
    assert steps(slot(), converged(slot())) == []


def test_the_view_has_the_open_workspaces_and_none_that_is_narrower() -> None:
    declared = slot(workspaces=["main", {"name": "tight", "read_only": True}, {"name": "off", "network": "none"}])
    text = _docker.files_of(declared, *NUMBERS)[_docker.drop_in("a-b")].content.decode()
    assert [line for line in text.split("\n") if "workspaces" in line] == [
        "BindPaths=/var/lib/confined-slots/slots/a-b/workspaces/main"
    ]
    assert r"Slice=confined-slots-a\x2db.slice" in text


def test_no_line_of_the_unit_is_empty_as_that_would_clear_others() -> None:
    files = _docker.shared_files(Prune("Sun 04:00")) | _docker.files_of(slot(), *NUMBERS)
    for path, file in files.items():
        assert not [line for line in file.content.decode().split("\n") if line.endswith("=")], path


def test_the_daemon_knows_its_own_account_and_no_other() -> None:
    files = _docker.files_of(slot(), *NUMBERS)
    etc = _layout.docker_etc("a-b")
    assert files[f"{etc}/subuid"].content == b"slot-a-b:200000000:65536\n"
    names = [line.partition(":")[0] for line in files[f"{etc}/passwd"].content.decode().splitlines()]
    assert names == ["root", "slot-a-b"]


@pytest.mark.parametrize("what", ["drop-in", "etc", "template"])
def test_a_daemon_whose_view_changed_is_started_anew(what: str) -> None:
    found = converged(slot())
    passwd = f"{_layout.docker_etc('a-b')}/passwd"
    path = {"drop-in": _docker.drop_in("a-b"), "etc": passwd, "template": _docker.TEMPLATE}
    files = {**found.files, path[what]: _docker.File(b"old\n", found.files[path[what]].owned)}
    made = steps(slot(), Found(files, found.directories, found.units))
    assert made == [("write", path[what].rpartition("/")[2]), ("restart", UNIT)]


def test_a_daemon_older_than_its_files_is_started_anew() -> None:
    found = converged(slot())
    assert steps(slot(), Found(found.files, found.directories, {UNIT: ON | {"outdated"}})) == [("restart", UNIT)]


def test_the_daemon_of_a_slot_that_is_off_is_off_and_ready() -> None:
    assert steps(slot(enabled=False), converged(slot())) == [("switch off", UNIT)]


def test_a_withdrawn_daemon_keeps_its_data_unless_they_are_to_go() -> None:
    gone = slot(docker=False, network="none")
    made = steps(gone, converged(slot()))
    assert made[0] == ("switch off", UNIT)
    assert ("remove", "confined-slots-docker@.service") in made
    assert {action for action, _unused in made} == {"switch off", "remove", "remove directory"}
    assert ("remove data", "docker") in steps(gone, converged(slot()), delete=True)
    assert steps(gone, Found({}, {}, {}, frozenset({"a-b"}))) == []


def test_what_daemons_share_stays_while_a_slot_that_is_not_declared_has_one() -> None:
    found = converged(slot())
    other = Found(found.files, found.directories, found.units, others=True)
    assert ("remove", "confined-slots-docker@.service") not in steps(slot(docker=False), other)


def test_pruning_is_off_until_asked_for() -> None:
    prune = Prune("Sun 04:00", "24h")
    made = steps(slot(), converged(slot()), prune)
    assert made == [
        ("write", "confined-slots-prune@.service"),
        ("write", "confined-slots-prune@.timer"),
        ("switch on", TIMER),
    ]
    assert steps(slot(), converged(slot(), prune), prune) == []
    assert steps(slot(), converged(slot(), prune))[0] == ("switch off", TIMER)


@pytest.mark.parametrize(
    ("prune", "said"),
    [
        pytest.param(Prune("03:00\nUser=root"), "prune_calendar is", id="two lines"),
        pytest.param(Prune("", "1h --all"), "prune_until is '1h --all'", id="another option"),
        pytest.param(Prune("", "infinity"), "prune_until", id="no time"),
    ],
)
def test_times_that_cannot_be_are_refused(prune: Prune, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        _docker.check_prune(prune)


def test_only_a_rootful_unit_that_the_host_has_not_is_held_and_only_a_held_one_left_off() -> None:
    held = [change.step.subject for change in _docker.held({"containerd.service"}) if change.file]
    assert held == [_docker.hold("docker.socket"), _docker.hold("docker.service")]
    present = {"docker.service", "containerd.service"}
    released = [change.step for change in _docker.released({"docker.service": True}, present)]
    assert [(step.action, step.subject) for step in released][:2] == [
        ("leave off", "docker.service"),
        ("remove", _docker.hold("docker.service")),
    ]
    crowded = [change.step.action for change in _docker.released({"docker.service": False}, present)]
    assert crowded == ["leave off", "remove"]
    assert list(_docker.released({}, set(_docker.ROOTFUL))) == []


def test_rd_10_what_is_missing_is_named_with_its_package() -> None:
    present = {path for path, _package in _docker.PROGRAMS}
    assert _docker.missing(present, restricted=False, profiles="") == []
    (said,) = _docker.missing(present - {"/usr/bin/slirp4netns"}, restricted=False, profiles="")
    assert said == "/usr/bin/slirp4netns is not there [install the package slirp4netns]"


@pytest.mark.parametrize(
    ("restricted", "profiles", "found"),
    [
        pytest.param(True, ["rootlesskit"], 0, id="its profile is loaded"),
        pytest.param(True, ["my-rootlesskit"], 1, id="another of that ending"),
        pytest.param(True, [], 1, id="none"),
        pytest.param(False, [], 0, id="not restricted"),
    ],
)
def test_rd_04_a_kernel_that_restricts_namespaces_needs_rootlesskits_profile(
    restricted: bool, profiles: list[str], found: int
) -> None:
    present = {path for path, _package in _docker.PROGRAMS}
    said = _docker.missing(present, restricted=restricted, profiles=profiles)
    assert len([each for each in said if each.startswith("rootlesskit-not-permitted")]) == found
    assert all(path.startswith(("/usr/bin/", "/usr/sbin/", "/usr/share/")) for path in present)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 500 no\r\nApi-Version: 1.45\r\n\r\n", id="an error"),
        pytest.param(b"HTTP/1.1 200 OK\r\nServer: other\r\n\r\nApi-Version: 1", id="another server"),
        pytest.param(b"200 OK\r\nApi-Version: 1.45\r\n\r\n", id="no HTTP"),
    ],
)
def test_what_is_no_daemon_is_not_taken_for_one(answer: bytes) -> None:
    assert not _docker.says_ok(answer)


def test_a_daemon_is_asked_at_its_socket(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            connection, _address = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(OK)

        thread = threading.Thread(target=serve)
        thread.start()
        assert _docker.says_ok(_docker.ping(path))
        thread.join()
