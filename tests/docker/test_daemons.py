# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a slot with Docker can do, and what its operator can rely on."""

from __future__ import annotations

import collections.abc
import json
import shlex
import typing as t

import pytest
from slot_docker import OTHER, PLAIN, SLOT, Docker, module
from waiting import soon

if t.TYPE_CHECKING:
    Declared = collections.abc.Callable[..., list[dict[str, t.Any]]]

STATE = "/var/lib/confined-slots/slots"
COMPOSE = """
services:
  greets:
    image: box
    command: cat /x/note
    volumes: ["./:/x"]
"""


def test_a_workspace_is_at_the_same_path_inside_a_container_and_out(docker: Docker) -> None:
    script = 'echo from the session > note; docker run --rm -v "$PWD:$PWD" -w "$PWD" box sh -c "cat note; id -u > made"'
    assert docker.says(script) == "from the session\n"
    made = docker.host.file(f"{STATE}/{SLOT}/workspaces/main/made")
    assert (made.user, made.content_string) == (f"slot-{SLOT}", "0\n")
    assert docker.says("rm made; ls made 2>&1 | wc -l") == "1\n"


def test_every_mode_has_the_daemon_of_its_own_slot(docker: Docker, other: Docker) -> None:
    assert docker.says("docker volume create only-here >/dev/null; docker volume ls -q") == "only-here\n"
    assert "only-here" not in other.says("docker volume ls -q")
    docker.says("docker volume rm only-here")
    assert other.says('docker run --rm -v "$PWD:/x" box ls -d /x') == "/x\n"


def test_an_image_is_built_and_used(docker: Docker) -> None:
    script = r"printf 'FROM box\nRUN echo built > /word\n' | DOCKER_BUILDKIT=0 docker build -q -t built - >/dev/null"
    assert docker.says(f"{script} && docker run --rm built cat /word && docker rmi built >/dev/null") == "built\n"


def test_a_compose_project_runs(docker: Docker) -> None:
    script = f"""
    if docker compose version >/dev/null 2>&1; then compose='docker compose'; else compose=docker-compose; fi
    $compose version >/dev/null 2>&1 || exit 99
    rm -rf project; mkdir project; cd project; echo composed > note; echo {shlex.quote(COMPOSE)} > docker-compose.yml
    $compose up --no-color 2>&1; $compose down >/dev/null 2>&1
    """
    done = docker.session(script)
    if done.rc == 99:
        pytest.skip("docker-compose is missing")
    assert "composed" in done.stdout


def test_published_ports_are_on_the_hosts_loopback_only(docker: Docker) -> None:
    host, serve = docker.host, "while :; do echo hello | nc -l -p 80; done"
    docker.says(f"docker run -d --rm --name serving -p 18192:80 box sh -c {shlex.quote(serve)}")
    try:
        listening = host.check_output("ss -Hltn sport = :18192").split()[3]
        assert listening == "127.0.0.1:18192"
    finally:
        docker.says("docker rm -f serving")


def test_a_narrower_workspace_and_a_slot_without_docker_have_no_way_to_a_daemon(docker: Docker) -> None:
    for slot, options in ((SLOT, ["--workspace", "tight"]), (PLAIN, [])):
        script = "echo $DOCKER_HOST; ls -d /run/confined-slots-docker 2>&1; true"
        seen = Docker(docker.host, slot).says(script, *options)
        assert seen == "\nls: cannot access '/run/confined-slots-docker': No such file or directory\n"


def test_the_socket_stands_alone_and_a_session_can_put_nothing_beside_it(docker: Docker) -> None:
    seen = docker.says("d=${DOCKER_HOST#unix://}; ls -A ${d%/*}; touch ${d%/*}/x 2>/dev/null || echo refused")
    assert seen == "docker.sock\nrefused\n"
    found = docker.host.file("/run/confined-slots-docker")
    assert (found.user, docker.host.file(f"/run/confined-slots-docker/{SLOT}").mode) == ("root", 0o700)


def test_no_session_starts_while_the_daemon_is_away_and_a_bound_directory_serves_again_after_a_restart(
    docker: Docker,
) -> None:
    host = docker.host
    ask = "docker version >/dev/null && echo"
    going = f"{ask} before; while [ ! -e go ]; do sleep 0.2; done; {ask} after"
    start = f"slotctl run {SLOT} -- -c {shlex.quote(going)} > /tmp/going 2>&1"
    host.run(f"rm -f {STATE}/{SLOT}/workspaces/main/go /tmp/going")
    host.run(f"setsid -f sh -c {shlex.quote(start)} </dev/null >/dev/null 2>&1")
    soon(host, "grep -qx before /tmp/going")
    host.check_output(f"systemctl stop {docker.unit}")
    try:
        refused = docker.session("echo it ran")
        assert (refused.rc, refused.stdout) == (125, "")
        assert "docker-unavailable: the slot's Docker daemon does not answer" in refused.stderr
        found = json.loads(host.run(f"slotctl status {SLOT} --json").stdout)
        assert [check["check"] for check in found["checks"] if check["refusal"]] == ["docker"]
        assert Docker(host, OTHER).session("true").rc == 0
    finally:
        docker.restart()
        host.run(f"touch {STATE}/{SLOT}/workspaces/main/go")
    soon(host, "grep -qx after /tmp/going")


def test_something_else_at_the_socket_is_not_taken_for_a_daemon(docker: Docker) -> None:
    """The slot can write there, by way of a container: it may say nothing for ever, or lead elsewhere."""
    host, path = docker.host, f"/run/confined-slots-docker/{SLOT}/docker.sock"
    silent = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('{path}'); s.listen(); time.sleep(600)"
    host.check_output(f"systemctl stop {docker.unit}; rm -f {path}; ln -s /run/dbus/system_bus_socket {path}")
    try:
        assert docker.session("true").rc == 125
        pid = host.check_output(f"rm -f {path}; python3 -c {shlex.quote(silent)} >/dev/null 2>&1 & echo $!")
        soon(host, f"[ -S {path} ]")
        assert docker.session("true").rc == 125
        host.run(f"kill {pid}")
    finally:
        host.run(f"rm -f {path}")
        docker.restart()


def test_health_follows_no_link_that_stands_in_the_sockets_place(docker: Docker) -> None:
    """Root's own connection would be one that any service of the host answers."""
    host, path = docker.host, f"/run/confined-slots-docker/{SLOT}/docker.sock"
    listen = (
        "s = socket.socket(socket.AF_UNIX); s.bind('/run/seen.sock'); s.listen(); s.accept(); open('/run/seen', 'w')"
    )
    serve = f"python3 -c {shlex.quote(f'import socket; {listen}')} >/dev/null 2>&1 & echo $!"
    pid = host.check_output(f"rm -f /run/seen /run/seen.sock {path}; ln -s /run/seen.sock {path}; umask 077; {serve}")
    try:
        soon(host, "[ -S /run/seen.sock ]")
        assert host.run(f"slotctl health {SLOT} --check docker").rc == 1
        assert not host.file("/run/seen").exists
        assert host.run(f"kill -0 {pid}").rc == 0, "it ends after the first that connects"
    finally:
        host.run(f"kill {pid}; rm -f /run/seen.sock {path}")
        docker.restart()


def test_a_workspace_that_a_container_gives_away_comes_back_and_stops_no_converge(
    docker: Docker, declared: Declared
) -> None:
    docker.says("docker run --rm -v $PWD:/w box chown 1 /w")
    steps = module(docker.host, "permissions", slots=declared())["steps"]
    assert [step["subject"] for step in steps] == [f"{STATE}/{SLOT}/workspaces/main"]
    docker.says("touch works && rm works")


def test_containers_outlive_sessions_and_end_with_the_daemon(docker: Docker) -> None:
    docker.says("docker run -d --name stays --restart=always --stop-signal=KILL box sleep 1000")
    try:
        docker.host.check_output(f"slotctl stop {SLOT}")
        assert docker.says("docker ps -q --filter name=stays | wc -l") == "1\n"
        docker.restart()
        assert docker.says("docker ps -q --filter name=stays | wc -l") == "1\n"
        docker.host.check_output(f"systemctl stop {docker.unit}")
        assert docker.host.run(f"pgrep -u slot-{SLOT}").stdout == ""
    finally:
        docker.restart()
        docker.says("docker rm -f stays")


def test_the_daemon_and_its_containers_are_in_the_slots_slice(docker: Docker, other: Docker) -> None:
    for each, unit in ((docker, "confined-slots-shipper.slice"), (other, r"confined-slots-dock\x2der.slice")):
        each.says("docker run -d --name sleeps box sleep 1000")
        try:
            found = each.host.check_output(f"systemctl show -P ControlGroup -- {shlex.quote(unit)}")
            soon(each.host, "pgrep -xf 'sleep 1000'")
            groups = each.host.check_output("for p in $(pgrep -f 'sleep 1000'); do cat /proc/$p/cgroup; done")
            assert f"{found}/{each.unit}" in groups
        finally:
            each.says("docker rm -f sleeps")


def test_the_limits_of_the_slice_hold_for_containers(docker: Docker) -> None:
    if "memory" not in docker.host.check_output("cat /sys/fs/cgroup/cgroup.controllers"):
        pytest.skip("the control groups of memory and pids are missing: this host is a container itself")
    eats = "echo asked; docker run --rm box sh -c 'head -c 2000m /dev/zero | tail -c 1900m | wc -c'"
    ate = docker.session(eats)
    assert ate.rc != 0 and "asked" in ate.stdout
    forks = "docker run --rm box sh -c 'for i in $(seq 2000); do sleep 1000 & done 2>/dev/null; echo $(pgrep -c sleep)'"
    said = docker.session(f"echo asked; {forks}").stdout
    assert "asked" in said and "2000" not in said
    docker.restart()


def test_logs_of_containers_are_bounded_unless_they_ask_for_more(docker: Docker) -> None:
    inspect = "docker inspect -f '{{json .HostConfig.LogConfig}}' logs"
    asked = f"docker run -d --name logs box true; {inspect}; docker rm -f logs"
    found = json.loads(docker.says(asked).split("\n")[1])
    assert found == {"Type": "json-file", "Config": {"max-file": "3", "max-size": "10m"}}


def test_status_shows_the_daemon_and_what_it_takes(docker: Docker) -> None:
    known = """slotctl status %s --json | grep -Eq '"Data": "[0-9]+"'"""  # on a busy host it may say unknown once
    soon(docker.host, known % SLOT)
    found = json.loads(docker.host.check_output(f"slotctl status {SLOT} --json"))["docker"]
    assert (found["ActiveState"], found["UnitFileState"]) == ("active", "enabled")
    assert int(found["Data"]) > 1 << 20
    assert "docker" not in json.loads(docker.host.check_output(f"slotctl status {PLAIN} --json"))


def test_a_workspace_more_or_less_is_in_the_daemons_view_after_a_converge_that_says_so(
    docker: Docker, declared: Declared
) -> None:
    host, look = docker.host, f"docker run --rm -v /:/host box ls /host{STATE}/{SLOT}/workspaces"
    slots = declared(SLOT, workspaces=["main"])
    assert docker.says(look) == "main\nreview\n"
    predicted = module(host, "docker", check=True, slots=slots)
    try:
        done = module(host, "docker", slots=slots)
        assert done["steps"] == predicted["steps"]
        assert {"subject": docker.unit, "action": "restart"} in done["steps"]
        assert module(host, "docker", slots=slots)["changed"] is False
        assert docker.says(look) == "main\n"
    finally:
        module(host, "docker", slots=declared())


def test_a_converge_that_was_killed_before_the_restart_is_made_good_by_the_next(
    docker: Docker, declared: Declared
) -> None:
    docker.host.check_output(f"sleep 1.1; touch /etc/systemd/system/{docker.unit}.d/slot.conf; systemctl daemon-reload")
    done = module(docker.host, "docker", slots=declared())
    assert done["steps"] == [{"subject": docker.unit, "action": "restart"}]
    assert module(docker.host, "docker", slots=declared())["changed"] is False


def test_a_slot_that_is_off_has_no_daemon_and_keeps_its_data(docker: Docker, declared: Declared) -> None:
    host = docker.host
    module(host, "docker", slots=declared(SLOT, enabled=False))
    try:
        assert host.run(f"systemctl is-active {docker.unit}; systemctl is-enabled {docker.unit}").stdout.split() == [
            "inactive",
            "disabled",
        ]
        assert host.run(f"pgrep -u slot-{SLOT}").stdout == ""
        assert host.service(f"confined-slots-docker@{OTHER}").is_running
    finally:
        module(host, "docker", slots=declared())
    docker.wait()
    assert docker.says("docker image inspect -f found box") == "found\n"


def test_a_withdrawn_daemon_leaves_no_unit_and_its_data_until_they_are_to_go(
    docker: Docker, declared: Declared
) -> None:
    host, slots = docker.host, declared(SLOT, docker=False)
    module(host, "docker", slots=slots)
    try:
        units, policy = f"/etc/systemd/system/{docker.unit}.d", f"/etc/confined-slots/slots.d/{SLOT}/docker"
        assert host.run(f"ls -d {units} {policy}").stdout == ""
        assert host.file(f"{STATE}/{SLOT}/docker/data").exists
        assert module(host, "docker", slots=slots)["changed"] is False
        module(host, "docker", slots=slots, withdrawn_data="delete")
        assert not host.file(f"{STATE}/{SLOT}/docker").exists
        assert host.service(f"confined-slots-docker@{OTHER}").is_running
    finally:
        host.check_output(f"install -d -m 700 -o slot-{SLOT} -g slot-{SLOT} {STATE}/{SLOT}/docker")
        module(host, "docker", slots=declared())
    docker.with_image()


def test_what_nothing_uses_is_dropped_by_a_timer_that_is_off_until_asked_for(
    docker: Docker, declared: Declared
) -> None:
    host, unit = docker.host, f"confined-slots-prune@{SLOT}"
    assert not host.file("/etc/systemd/system/confined-slots-prune@.timer").exists
    module(host, "docker", slots=declared(), prune_calendar="Sun 04:00", prune_until="1m")
    try:
        assert host.run(f"systemctl is-active {unit}.timer").stdout.strip() == "active"
        host.check_output(f"systemctl start {unit}.service")
    finally:
        module(host, "docker", slots=declared())
    assert not host.file("/etc/systemd/system/confined-slots-prune@.timer").exists


@pytest.mark.parametrize("program", ["/usr/bin/slirp4netns", "/usr/bin/rootlesskit", "/usr/bin/newuidmap"])
def test_rd_10_what_is_missing_is_named_with_its_package(docker: Docker, declared: Declared, program: str) -> None:
    docker.host.check_output(f"mv {program} {program}.away")
    try:
        done = module(docker.host, "docker", fails=True, slots=declared())
    finally:
        docker.host.check_output(f"mv {program}.away {program}")
    assert f"docker-unavailable: {program} is not there [install the package" in done["msg"]


def test_rd_12_no_setting_of_the_kernel_is_changed_and_rd_05_rd_06_no_user_manager_runs(docker: Docker) -> None:
    assert docker.host.run("ls /etc/sysctl.d /var/lib/systemd/linger | grep -i -e confined -e slot").stdout == ""
    assert docker.host.run("systemctl list-units 'user@2*' --no-legend").stdout == ""


def test_rd_04_no_rootlesskit_but_the_packages_is_run_wherever_another_lies(docker: Docker) -> None:
    others = ["/usr/local/bin/rootlesskit", f"{STATE}/{docker.slot}/docker/rootlesskit"]
    for path in others:
        docker.host.check_output(f"printf '#!/bin/sh\\ntouch /tmp/hijacked\\n' > {path}; chmod 755 {path}")
    try:
        docker.restart()
        shown = docker.host.check_output(f"readlink /proc/$(systemctl show -P MainPID {docker.unit})/exe")
    finally:
        docker.host.check_output(f"rm -f {' '.join(others)}")
    assert shown == "/usr/bin/rootlesskit"


def test_removal_ends_containers_and_leaves_nothing_that_another_slot_could_inherit(
    docker: Docker, declared: Declared
) -> None:
    host, leaving = docker.host, {"name": "leaving", "docker": True, "network": "private"}
    slots = [*declared(), leaving]
    for name in ("accounts", "permissions", "docker"):
        module(host, name, slots=slots)
    span = host.check_output("grep ^slot-leaving: /etc/subuid").split(":")[1]
    path = f"{STATE}/leaving/docker"
    host.check_output(f"install -d -o {span} -g {span} {path}/data/of-a-container; ln -s /etc {path}/data/link")
    done = module(host, "removal", names=["leaving"], workspaces="delete")
    assert {"subject": "confined-slots-docker@leaving.service", "action": "switch off"} in done["steps"]
    left = host.run(
        "ls -d /etc/systemd/system/*leaving* /etc/systemd/system/*.wants/*leaving* /run/confined-slots-docker/leaving"
        f" {STATE}/leaving; pgrep -U {span}"
    )
    assert left.stdout == ""
    assert host.file("/etc/passwd").exists
    assert module(host, "removal", names=["leaving"])["changed"] is False
