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
    ("policy", "{}"),
]
CREDENTIAL = ("credential", "KEY", "")


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
    records = [("ids", str(UID), str(UID)), ("own", str(base / "home")), ("bind", "ro", str(base / source), "/x")]
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
    records = [*RECORDS, ("credential", "KEY", "")]
    assert "KEY" in refused("credential-missing", _launch.credential_options, records, environ, []).what


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        pytest.param("sk-SECRET\n", 9, id="LF"),
        pytest.param("sk-SEC\nRET", 6, id="inner-break"),
        pytest.param("\ufeffsk-SECRET", 0, id="BOM"),
        pytest.param("sk-SECRET ", 9, id="space"),
        pytest.param("export X=sk-SECRET", 6, id="shell-line"),
        pytest.param("sk-SECRET\udcff", 9, id="no-UTF-8"),
    ],
)
def test_cr_05_a_credential_that_root_wrote_by_hand_is_refused_by_offset_and_never_shown(
    text: str, offset: int
) -> None:
    found = refused("credential-malformed", _launch.credential_options, [*RECORDS, CREDENTIAL], {"KEY": text}, [])
    assert f"KEY has a character at offset {offset} " in found.what
    assert "SECRET" not in str(found) + found.as_json()


def test_a_credential_stands_in_the_environment_of_the_cli_where_it_takes_it_no_other_way() -> None:
    assert _launch.credential_options([*RECORDS, CREDENTIAL], {"KEY": "k"}, []) == ["--setenv", "KEY", "k"]
    assert _launch.credential_options(RECORDS, {"KEY": "k"}, []) == []


def test_by_descriptor_no_environment_has_the_credential_and_the_pipe_gives_it_once() -> None:
    code = (
        "keep = []; records = [('slot', 'coder'), ('credential', 'KEY', 'KEY_FILE_DESCRIPTOR')]; "
        "print(_launch.credential_options(records, {'KEY': 'sk-SECRET'}, keep), keep, os.read(keep[0], 99), "
        "os.read(keep[0], 99))"
    )
    assert run_python(code).strip() == "['--setenv', 'KEY_FILE_DESCRIPTOR', '9'] [9] b'sk-SECRET' b''"


def test_cr_05_a_credential_that_no_pipe_holds_is_refused_and_does_not_hang() -> None:
    refused("credential-malformed", _launch._pipe, b"x" * (65536 + 1))


def head() -> str:
    """Return the beginning of a program that has the launcher's module at hand as _launch."""
    core = pathlib.Path(_launch.__file__).parents[1]
    return f"import sys; sys.path.insert(0, '{core}'); from module_utils import _launch; import os, signal\n"


def run_python(code: str, **more: t.Any) -> str:
    """Return what a Python of its own prints, with the launcher's module at hand as _launch."""
    words = [sys.executable, "-c", head() + code]
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


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


@pytest.mark.parametrize("words", [[], ["a"], ["a", "b"], ["a", "b", "c", "d", "e"], ["--json"]], ids=len)
def test_the_launcher_has_no_traceback_for_any_number_of_words(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _launch.main("/nonexistent", words) == 125
    assert "words given" in capsys.readouterr().err


def test_a_release_that_is_not_there_is_refused_before_a_plan_is_read() -> None:
    """In a process of its own: the first thing that a launch does is to close what it inherited."""
    code = "os.dup2(2, 1); print(_launch.main('/nonexistent/release-000000000000', ['plan', 'main', 's']))"
    found = subprocess.run([sys.executable, "-c", head() + code], capture_output=True, text=True, check=True)
    assert "launcher-tampered" in found.stderr and "125" in found.stderr


def test_a_launch_verifies_every_module_that_it_executes() -> None:
    core = pathlib.Path(_launch.__file__).parent
    listing = "print(sorted(name.rpartition('.')[2] for name in sys.modules if name.startswith('module_utils.')))"
    script = f"import sys; sys.path.insert(0, '{core.parent}'); from module_utils import _launch; {listing}"
    loaded = subprocess.run([sys.executable, "-IS", "-c", script], check=True, capture_output=True, text=True).stdout
    late = {"_network", "_landlock"}  # for private networks only, and where the kernel has it
    assert set(ast.literal_eval(loaded)) | {"__init__"} | late == _launch.HOT


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


def held(base: pathlib.Path, *records: _plan.Record) -> None:
    """Check the mounts of a plan with masks and holds below the slot's own home."""
    _launch.check_mounts([("ids", str(UID), str(UID)), *records], str(base / "workspace"))


def inode(path: pathlib.Path) -> str:
    """Return the stamp by which a plan knows what is masked."""
    found = path.lstat()
    return f"{found.st_dev}:{found.st_ino}"


def test_what_is_masked_in_the_slots_own_home_must_be_what_was_compiled(base: pathlib.Path) -> None:
    way, secret = base / "home/.config", base / "home/.config/gcloud"
    secret.mkdir(parents=True)
    records = [("hold", inode(way), str(way)), ("mask", "directory", inode(secret), str(secret))]
    held(base, *records)
    way.rename(base / "home/.c2")
    assert f"{way}, which is masked" in refused("policy-invalid", held, base, *records).what
    secret.mkdir(parents=True)
    assert "not what it was" in refused("policy-invalid", held, base, *records).what
    way.rename(base / "home/.c3")
    way.symlink_to(".c2")
    refused("policy-invalid", held, base, *records)
    way.unlink()
    (base / "home/.c2").rename(way)
    held(base, *records)


def test_what_is_masked_of_the_host_is_roots_and_needs_no_stamp(base: pathlib.Path) -> None:
    held(base, ("mask", "directory", "", "/nonexistent"))


def options(*records: _plan.Record) -> list[str]:
    """Return bwrap's options for records alone, without what every plan gets."""
    return _launch.bwrap_options([*RECORDS, *records], "/w", "s", {})[4:-6]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (("bind", "ro", "/s", "/t"), ["--ro-bind", "/s", "/t"]),
        (("bind", "rw", "/s", "/t"), ["--bind", "/s", "/t"]),
        (("bind-workspace", "ro"), ["--ro-bind", "/w", "/w"]),
        (("bind-workspace", "rw"), ["--bind", "/w", "/w"]),
        (("hold", "1:2", "/h"), ["--bind", "/h", "/h"]),
        (("mask", "file", "", "/m"), ["--ro-bind", "/dev/null", "/m"]),
        (("mask", "directory", "1:2", "/m"), ["--perms", "0555", "--size", "4096", "--tmpfs", "/m"]),
        (("run", "9"), ["--perms", "0700", "--size", "9", "--tmpfs", "/run/confined-slots/coder/s"]),
        (("tmpfs", "0700", "9", "/t"), ["--perms", "0700", "--size", "9", "--tmpfs", "/t"]),
    ],
    ids=str,
)
def test_a_record_becomes_these_options(record: _plan.Record, words: list[str]) -> None:
    assert options(record) == words


@pytest.mark.parametrize("mode", ["", "RW", "rw ", "ro"])
def test_only_the_very_word_rw_makes_anything_writable(mode: str) -> None:
    assert "--bind" not in options(("bind", mode, "/s", "/t"), ("bind-workspace", mode))


@pytest.fixture
def approval(root_owned: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the place of the slot's approval, where there is one of the policy sha256:00."""
    path = root_owned / "approval"
    monkeypatch.setattr(_launch, "approval", lambda slot: str(path))
    path.write_bytes(approved("coder", "sha256:00"))
    return path


def approved(slot: str, fingerprint: str) -> bytes:
    """Return the bytes of an approval."""
    about = [("by", "alice"), ("on", "2026-11-29"), ("about", "{}")]
    return _plan.dump([("slot", slot), ("fingerprint", fingerprint), *about], _plan.APPROVAL)


NEEDS = [*RECORDS, ("approved", "sha256:00")]


def test_a_policy_with_its_approval_passes_and_one_that_needs_none_is_not_asked_for_it(approval: pathlib.Path) -> None:
    _launch.check_approved(NEEDS)
    approval.unlink()
    _launch.check_approved(RECORDS)
    assert "nobody has approved" in refused("approval-missing", _launch.check_approved, NEEDS).what


@pytest.mark.parametrize(
    "given", [("coder", "sha256:01"), ("other", "sha256:00"), ("coder", ""), ("", "sha256:00")], ids=str
)
def test_pl_03_an_approval_of_another_slot_or_of_another_policy_is_none(
    approval: pathlib.Path, given: tuple[str, str]
) -> None:
    approval.write_bytes(approved(*given))
    assert "not sha256:00" in refused("approval-missing", _launch.check_approved, NEEDS).what


def test_pl_03_each_changed_byte_of_an_approval_is_noticed(approval: pathlib.Path) -> None:
    good = approval.read_bytes()
    for position in range(len(good)):
        approval.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        refused("approval-missing", _launch.check_approved, NEEDS)
    for other in (b"", good[:-1], good + b"x\0", _plan.dump(RECORDS)):
        approval.write_bytes(other)
        refused("approval-missing", _launch.check_approved, NEEDS)


def test_pl_03_an_approval_that_the_slot_could_have_written_is_none(approval: pathlib.Path) -> None:
    approval.chmod(0o666)
    refused("approval-missing", _launch.check_approved, NEEDS)
    approval.chmod(0o644)
    os.chown(approval, UID, UID)
    refused("approval-missing", _launch.check_approved, NEEDS)
    os.chown(approval, 0, 0)
    _launch.check_approved(NEEDS)
    approval.rename(approval.with_name("real"))
    approval.symlink_to("real")
    refused("approval-missing", _launch.check_approved, NEEDS)
