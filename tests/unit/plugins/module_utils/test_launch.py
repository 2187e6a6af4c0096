# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the launcher checks before it becomes anything."""

from __future__ import annotations

import ast
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _launch, _plan
from ansible_collections.confined.slots.plugins.module_utils._refusals import Refusal

UID = 64000
RECORDS: list[_plan.Record] = [
    ("slot", "coder"),
    ("enabled", "yes"),
    ("fingerprint", "sha256:00"),
    ("ids", str(UID), str(UID)),
    ("home", "/h"),
    ("policy", "{}"),
]


def refused(code: str, function: t.Callable[..., object], *arguments: object) -> Refusal:
    """Return the refusal that the call ends in."""
    with pytest.raises(Refusal) as caught:
        function(*arguments)
    assert caught.value.code == code
    assert caught.value.cure
    return caught.value


@pytest.fixture
def root_owned(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a directory that only root can write."""
    if os.geteuid() != 0:
        pytest.skip("root is missing: files of root's cannot be made")
    tmp_path.chmod(0o755)
    return tmp_path


def test_a_plan_that_only_root_could_write_is_read(root_owned: pathlib.Path) -> None:
    plan = root_owned / "plan"
    plan.write_bytes(_plan.dump(RECORDS))
    assert _launch.read_plan(str(plan)) == RECORDS


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o602])
def test_a_plan_that_others_can_write_is_refused(root_owned: pathlib.Path, mode: int) -> None:
    plan = root_owned / "plan"
    plan.write_bytes(_plan.dump(RECORDS))
    plan.chmod(mode)
    assert str(plan) in refused("policy-tampered", _launch.read_plan, str(plan)).what


def test_a_plan_of_another_owner_is_refused(root_owned: pathlib.Path) -> None:
    plan = root_owned / "plan"
    plan.write_bytes(_plan.dump(RECORDS))
    os.chown(plan, UID, UID)
    refused("policy-tampered", _launch.read_plan, str(plan))


def test_a_link_is_not_followed_to_a_plan(root_owned: pathlib.Path) -> None:
    (root_owned / "real").write_bytes(_plan.dump(RECORDS))
    (root_owned / "plan").symlink_to("real")
    refused("policy-tampered", _launch.read_plan, str(root_owned / "plan"))


def test_a_pipe_in_the_place_of_a_plan_does_not_keep_the_launcher_waiting(root_owned: pathlib.Path) -> None:
    os.mkfifo(root_owned / "plan", 0o644)
    refused("policy-tampered", _launch.read_plan, str(root_owned / "plan"))


def test_a_missing_plan_is_told_from_a_changed_one(root_owned: pathlib.Path) -> None:
    refused("policy-missing", _launch.read_plan, str(root_owned / "plan"))
    (root_owned / "plan").write_bytes(_plan.dump(RECORDS)[:-1] + b"!")
    refused("policy-tampered", _launch.read_plan, str(root_owned / "plan"))
    (root_owned / "plan").write_bytes(b"confined-slots-plan 99\0")
    refused("policy-invalid", _launch.read_plan, str(root_owned / "plan"))


@pytest.mark.parametrize("session", ["", ".", "..", "../other", "a/b", ".hidden"])
def test_a_session_that_is_no_name_is_refused(session: str) -> None:
    refused("audit-unavailable", _launch.open_session, "coder", session)


def test_a_session_that_slotctl_did_not_record_does_not_start() -> None:
    refused("audit-unavailable", _launch.open_session, "coder", "20260101t000000-00000000")


def test_a_slot_that_is_switched_off_is_refused() -> None:
    refused("slot-disabled", _launch.check_enabled, [("slot", "coder"), ("enabled", "no")])
    refused("slot-disabled", _launch.check_enabled, [("slot", "coder"), ("enabled", "")])


def test_another_account_than_the_slots_is_refused() -> None:
    refused("sandbox-unavailable", _launch.check_account, RECORDS)


def test_a_supplementary_group_is_refused() -> None:
    """It is hidden by the sandbox and opens files all the same."""
    own = [("slot", "coder"), ("ids", str(os.getuid()), str(os.getgid()))]
    saved = os.getgroups()
    if os.geteuid() != 0:
        pytest.skip("root is missing: groups cannot be set")
    try:
        os.setgroups([4])
        assert "[4]" in refused("sandbox-unavailable", _launch.check_account, own).what
        os.setgroups([])
        _launch.check_account(own)
    finally:
        os.setgroups(saved)


@pytest.mark.parametrize("name", ["", "Main", "main/../x", "review\n"])
def test_an_unknown_workspace_is_refused_with_those_there_are(name: str) -> None:
    records = [("slot", "coder"), ("workspace", "main", "/w/main"), ("workspace", "review", "/w/review")]
    assert "main, review" in refused("workspace-unknown", _launch.workspace_path, records, name).what


def mounts(root: pathlib.Path, source: pathlib.Path) -> list[_plan.Record]:
    """Return records with one bind; workspace and home are the slot's own directories below root."""
    for name in ("workspace", "home"):
        (root / name).mkdir(exist_ok=True)
        os.chown(root / name, UID, UID)
    return [("ids", str(UID), str(UID)), ("home", str(root / "home")), ("bind", "ro", str(source), "/x")]


@pytest.fixture
def base() -> t.Iterator[pathlib.Path]:
    """Return a directory that only root can reach by root's own directories; pytest's lies below the sticky /tmp."""
    if os.geteuid() != 0:
        pytest.skip("root is missing: files of root's cannot be made")
    with tempfile.TemporaryDirectory(prefix="confined-slots-test-", dir="/var/lib") as directory:
        path = pathlib.Path(directory)
        path.chmod(0o755)
        for name in ("workspace", "home", "good"):
            (path / name).mkdir()
        for name in ("workspace", "home"):
            os.chown(path / name, UID, UID)
        yield path


def check(base: pathlib.Path, source: str) -> None:
    """Check the mounts of a plan with one bind below base."""
    records = [("ids", str(UID), str(UID)), ("home", str(base / "home")), ("bind", "ro", str(base / source), "/x")]
    _launch.check_mounts(records, str(base / "workspace"))


@pytest.mark.parametrize(
    ("owner", "group", "mode"),
    [(UID, 0, 0o755), (0, UID, 0o775), (0, 0, 0o777), (0, 0, 0o1777)],
    ids=["own", "group", "all", "sticky"],
)
def test_es_10_a_source_in_a_directory_that_the_slot_can_write_is_refused(
    base: pathlib.Path, owner: int, group: int, mode: int
) -> None:
    check(base, "good")
    os.chown(base, owner, group)
    base.chmod(mode)
    assert str(base) in refused("policy-invalid", check, base, "good").what


@pytest.mark.parametrize("name", ["workspace", "home"])
def test_es_10_a_link_in_the_place_of_a_directory_of_the_slot_is_refused(base: pathlib.Path, name: str) -> None:
    (base / name).rmdir()
    (base / name).symlink_to("/etc")
    refused("policy-invalid", check, base, "good")


def test_bw_10_a_source_that_is_gone_is_named_with_its_links(base: pathlib.Path) -> None:
    (base / "link").symlink_to("nowhere")
    assert f"{base}/link -> {base}/nowhere" in refused("policy-invalid", check, base, "link").what


def test_lr_01_an_executable_with_other_bytes_is_refused(root_owned: pathlib.Path) -> None:
    cli = root_owned / "cli"
    cli.write_bytes(b"one")
    stamp, digest = _launch.stamp_of(cli.stat()), _plan.sha256(b"one")
    _launch.check_identity([("identity", str(cli), digest, stamp)])
    _launch.check_identity([("identity", str(cli), digest, "restored from a backup")])
    cli.write_bytes(b"two")
    os.utime(cli, ns=(0, int(stamp.split(":")[3])))
    refused("provider-changed", _launch.check_identity, [("identity", str(cli), digest, stamp)])
    refused("provider-changed", _launch.check_identity, [("identity", str(cli), "", "")])


@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_an_executable_that_others_can_write_is_refused(root_owned: pathlib.Path, mode: int) -> None:
    cli = root_owned / "cli"
    cli.write_bytes(b"one")
    cli.chmod(mode)
    refused("provider-changed", _launch.check_identity, [("identity", str(cli), "distribution", "")])


def test_a_missing_executable_is_a_refusal_of_its_own(root_owned: pathlib.Path) -> None:
    refused("provider-missing", _launch.check_identity, [("identity", str(root_owned / "cli"), "distribution", "")])


@pytest.mark.parametrize("environ", [{}, {"KEY": ""}])
def test_a_credential_that_is_not_there_is_refused_by_name(environ: dict[str, str]) -> None:
    records = [*RECORDS, ("credential", "KEY")]
    assert "KEY" in refused("credential-missing", _launch.bwrap_options, records, "/w", "s", environ).what


def run_python(code: str, **more: t.Any) -> str:
    """Return what a Python of its own prints, with the launcher's module at hand as _launch."""
    core = pathlib.Path(_launch.__file__).parents[1]
    head = f"import sys; sys.path.insert(0, '{core}'); from module_utils import _launch; import os, signal\n"
    return subprocess.run(
        [sys.executable, "-c", head + code], check=True, capture_output=True, text=True, **more
    ).stdout


def test_es_13_every_descriptor_is_closed_but_those_named() -> None:
    code = (
        "[os.dup2(0, n) for n in (7, 8, 900)]; _launch.close_all_but({8}); "
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:5])"
    )
    assert run_python(code, stdin=subprocess.DEVNULL).strip() == "[0, 1, 2, 3, 8]"


def test_signals_are_at_their_defaults_again_but_those_that_bwrap_leaves_to_the_cli() -> None:
    # glibc keeps 32 and 33 to itself: make's posix_spawn leaves them ignored, and nobody can set them.
    code = (
        "signal.signal(2, signal.SIG_IGN); signal.pthread_sigmask(0, [15]); _launch.reset_signals(); "
        "lines = [line for line in open('/proc/self/status') if line[:6] in ('SigIgn', 'SigBlk')]; "
        "print([f'{int(line.split()[1], 16) & ~(3 << 31):016x}' for line in lines])"
    )
    left = sum(1 << getattr(signal, f"SIG{name}") - 1 for name in _launch.FOR_THE_CLI)
    assert run_python(code).strip() == f"['0000000000000000', '{left:016x}']"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_directory_as_a_standard_stream_is_refused(number: int) -> None:
    code = f"saved = os.dup(1); os.dup2(os.open('/', os.O_RDONLY), {number})\n"
    code += "try: _launch.check_standard_streams()\nexcept Exception as error: os.write(saved, error.code.encode())"
    assert run_python(code) == "sandbox-unavailable"


def test_the_launcher_has_no_traceback_for_any_number_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["a"], ["a", "b", "c", "d", "e"], ["--json"]):
        assert _launch.main("/nonexistent", words) == 125
    assert _launch.main("/nonexistent/release-000000000000", ["plan", "main", "s"]) == 125
    assert "launcher-tampered" in capsys.readouterr().err


def test_a_launch_verifies_every_module_that_it_executes() -> None:
    core = pathlib.Path(_launch.__file__).parent
    listing = "print(sorted(name.rpartition('.')[2] for name in sys.modules if name.startswith('module_utils.')))"
    script = f"import sys; sys.path.insert(0, '{core.parent}'); from module_utils import _launch; {listing}"
    loaded = subprocess.run([sys.executable, "-IS", "-c", script], check=True, capture_output=True, text=True).stdout
    assert set(ast.literal_eval(loaded)) | {"__init__"} == _launch.HOT


def test_the_hot_path_stays_poor() -> None:
    """Each import costs every session: what is heavy must not come in unnoticed."""
    heavy = {"json", "re", "typing", "dataclasses", "subprocess", "argparse", "pathlib", "hashlib", "tempfile"}
    code = f"import sys; print(sorted({heavy} & set(sys.modules)))"
    core = pathlib.Path(_launch.__file__).parent
    script = f"import sys; sys.path.insert(0, '{core.parent}'); from module_utils import _launch; {code}"
    assert (
        subprocess.run([sys.executable, "-IS", "-c", script], check=True, capture_output=True, text=True).stdout.strip()
        == "[]"
    )


def test_a_plan_compiled_anew_while_a_session_begins_is_refused() -> None:
    records = [("fingerprint", "sha256:new")]
    _launch.check_recorded(records, "")
    _launch.check_recorded(records, "sha256:new")
    with pytest.raises(Refusal, match="start it again"):
        _launch.check_recorded(records, "sha256:old")
