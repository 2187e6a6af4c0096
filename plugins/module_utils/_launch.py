# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a launch plan to a confined process: everything is checked, nothing is decided.

On the launcher's hot path: imports posix and sys, `_signal` for the dispositions that Python itself changes, and
siblings of the same kind. Runs as the slot's account. Ends in execve of the release's own bwrap, or in a Refusal.
"""

from __future__ import annotations

import _signal
import posix as os  # os itself costs every session two milliseconds
import sys

from ._layout import approval, run_directory
from ._manifest import Untrusted, open_listed, read_checked, sha256_of, verify_release
from ._plan import APPROVAL, BadPlan, Record, decoded, encoded, load, value, values
from ._refusals import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

# The modules that a launch executes; slotctl has verified the whole release by then.
HOT = frozenset({"__init__", "_landlock", "_launch", "_layout", "_manifest", "_network", "_plan", "_refusals"})

ENDS_A_NAME = frozenset("/\0")
IS_DIRECTORY = 0o040000
IS_FORMAT = 0o170000

# Ctrl-C and systemd's SIGTERM reach every process of the session. Were bwrap to die of them, it would take the CLI with
# it at once, whatever the CLI does about them: so bwrap ignores them, and env(1) undoes that for the CLI.
FOR_THE_CLI = ("HUP", "INT", "QUIT", "TERM", "TSTP")
ENV = "/usr/bin/env"
APPARMOR = "apparmor/"  # its own place below /proc/self/attr, whatever other security modules there are
CREDENTIAL_DESCRIPTOR = 9  # the one that Claude Code takes an API key from


def launch(
    release: str, plan_path: str, workspace: str, session: str, environ: t.Mapping[str, str], recorded: str = ""
) -> t.NoReturn:
    """Become the slot's CLI inside its sandbox; Refusal if anything is not as it was compiled.

    recorded is the fingerprint of the policy that the session's record names, "" if there is none to compare.
    """
    close_all_but(set())  # what the caller left open must not stand at CREDENTIAL_DESCRIPTOR
    digests = verify_release(release, HOT)
    records = read_plan(plan_path)
    slot = value(records, "slot")
    opened = open_session(slot, session)
    try:
        check_recorded(records, recorded)
        check_enabled(records)
        check_approved(records)
        check_account(records)
        check_label(records)
        check_standard_streams()
        path = workspace_path(records, workspace)
        check_mounts(records, path)
        check_identity(records)
        words = [word for (word,) in values(records, "command")] + opened.arguments
        keep = [opened.status]
        options = [*bwrap_options(records, path, session, environ), *credential_options(records, environ, keep)]
        options += [
            "--json-status-fd",
            str(opened.status),
            "--seccomp",
            str(_keep(keep, _memory(read_checked(f"{release}/lib/seccomp.bpf")))),
        ]
        for content, target in values(records, "data"):
            options += ["--perms", "0444", "--ro-bind-data", str(_keep(keep, _memory(encoded(content)))), target]
        if values(records, "network"):
            from ._network import options as network_options

            options += network_options(keep, [port for (port,) in values(records, "forward")], close_all_but)
        options += seals(records)
        arguments = _keep(keep, _memory(b"".join(encoded(word) + b"\0" for word in options)))
        bwrap = open_listed(release, "bin/bwrap", f"0555 {digests['bin/bwrap']}")
        close_all_but({*keep, bwrap})
        change_profile(records)
        reset_signals()
        os.umask(0o077)
        os.execve(bwrap, ["bwrap", "--args", str(arguments), "--", *for_the_cli(records, words)], {})
    except Refusal as refusal:
        os.write(opened.status, f"{refusal.as_json()}\n".encode())
        raise


class Session:
    """What slotctl left for the launcher: the CLI's arguments, and a descriptor for what bwrap reports."""

    def __init__(self, arguments: list[str], status: int) -> None:
        self.arguments, self.status = arguments, status


def read_plan(path: str) -> list[Record]:
    """Return the records of the plan at path, once sure that only root could have written it."""
    cure = "converge the host with the playbook confined.slots.site"
    try:
        return load(read_checked(path))
    except FileNotFoundError:
        raise Refusal("policy-missing", f"{path} does not exist", cure) from None
    except Untrusted as error:
        raise Refusal("policy-tampered", str(error), cure) from None
    except BadPlan as error:
        raise Refusal("policy-tampered" if error.tampered else "policy-invalid", f"{path}: {error}", cure) from None
    except OSError as error:
        raise Refusal("policy-missing", f"{path} cannot be read: {error.strerror}", cure) from None


def open_session(slot: str, session: str) -> Session:
    """Return what slotctl left for this session; a launch that slotctl did not record is refused."""
    base = run_directory(slot, session)
    cure = f"start sessions with 'slotctl run {slot}'"
    if not session or ENDS_A_NAME.intersection(session) or session.startswith("."):
        raise Refusal("audit-unavailable", f"{session!r:.80} is no session", cure)
    try:
        words = read_checked(f"{base}.args").split(b"\0")[:-1]
        status = os.open(f"{base}.status", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    except (OSError, Untrusted) as error:
        raise Refusal("audit-unavailable", f"session {session} has no record: {error}", cure) from None
    if os.fstat(status).st_uid != 0:
        raise Refusal("audit-unavailable", f"{base}.status is not root's", cure)
    os.set_inheritable(status, True)
    return Session([decoded(word) for word in words], status)


def check_recorded(records: list[Record], recorded: str) -> None:
    """Refuse a plan that was compiled anew since slotctl put another on record."""
    if recorded not in ("", value(records, "fingerprint")):
        raise Refusal("policy-invalid", "the slot's plan was compiled anew while the session began", "start it again")


def check_enabled(records: list[Record]) -> None:
    """Refuse a slot that its operator has switched off."""
    if value(records, "enabled") != "yes":
        slot = value(records, "slot")
        raise Refusal(
            "slot-disabled", f"slot {slot} is declared with enabled: false", "enable it in the inventory and converge"
        )


def check_approved(records: list[Record]) -> None:
    """Refuse a policy that needs an approval and has none, or one of another policy."""
    for (wanted,) in values(records, "approved"):
        slot = value(records, "slot")
        path, cure = approval(slot), f"read 'slotctl policy {slot}', then 'slotctl approve {slot}'"
        try:
            found = load(read_checked(path), APPROVAL)
        except FileNotFoundError:
            raise Refusal("approval-missing", f"nobody has approved the policy of slot {slot}", cure) from None
        except (Untrusted, BadPlan) as error:
            raise Refusal("approval-missing", f"{path} is no approval: {error}", cure) from None
        except OSError as error:
            raise Refusal("approval-missing", f"{path}: {error.strerror}", cure) from None
        if (value(found, "slot"), value(found, "fingerprint")) != (slot, wanted):
            what = f"slot {value(found, 'slot')}: {value(found, 'by')} approved {value(found, 'fingerprint')}"
            raise Refusal("approval-missing", f"{what}, not {wanted}", cure)


def check_account(records: list[Record]) -> None:
    """Refuse to run as anybody but the slot's account with no other group.

    A group hidden by the sandbox still opens files.
    """
    ((uid, gid),) = values(records, "ids")
    cure = f"start sessions with 'slotctl run {value(records, 'slot')}'"
    if set(os.getresuid()) != {int(uid)} or set(os.getresgid()) != {int(gid)}:
        raise Refusal(
            "sandbox-unavailable", f"running as uid {os.getuid()} and gid {os.getgid()}, not as {uid} and {gid}", cure
        )
    extra = sorted(set(os.getgroups()) - {int(gid)})
    if extra:
        raise Refusal(
            "sandbox-unavailable",
            f"the process is in other groups: {extra}",
            f"{cure}; converge if the account is in them",
        )


def check_label(records: list[Record]) -> None:
    """Refuse to run in another AppArmor profile than the launcher's, if the plan was compiled where that is loaded."""
    for (wanted,) in values(records, "label"):
        with_label = f"/proc/self/attr/{APPARMOR}current"
        try:
            found = _first_line(with_label)
        except OSError as error:
            found = f"{with_label}: {error.strerror}"
        if found != f"{wanted} (enforce)":
            what = f"the launcher runs as {found!r:.80}, not in {wanted}, the AppArmor profile for its path"
            raise Refusal("sandbox-unavailable", what, "converge the host with the playbook confined.slots.site")


def change_profile(records: list[Record]) -> None:
    """Have the next exec change to the plan's AppArmor profile, if it names one."""
    for (wanted,) in values(records, "onexec"):
        try:
            descriptor = os.open(f"/proc/self/attr/{APPARMOR}exec", os.O_WRONLY | os.O_CLOEXEC)
            os.write(descriptor, f"exec {wanted}".encode())
            os.close(descriptor)
        except OSError as error:
            cure = "converge the host with the playbook confined.slots.site"
            raise Refusal("sandbox-unavailable", f"AppArmor profile {wanted}: {error.strerror}", cure) from None


def check_standard_streams() -> None:
    """Refuse a directory as standard stream: through it the CLI would walk the host."""
    for descriptor, name in enumerate(("input", "output", "error")):
        try:
            kind = os.fstat(descriptor).st_mode & IS_FORMAT
        except OSError:
            raise Refusal("sandbox-unavailable", f"standard {name} is closed", "give it /dev/null") from None
        if kind == IS_DIRECTORY:
            raise Refusal(
                "sandbox-unavailable", f"standard {name} is a directory", "give it a file, a pipe or /dev/null"
            )


def workspace_path(records: list[Record], name: str) -> str:
    """Return the directory of the workspace called name."""
    known = {words[0]: words[1] for words in values(records, "workspace")}
    if name not in known:
        raise unknown_workspace(value(records, "slot"), name, known)
    return known[name]


def unknown_workspace(slot: str, name: str, known: t.Iterable[str]) -> Refusal:
    """Return the refusal of a workspace that is none of those known."""
    what = f"slot {slot} has no workspace {name!r:.80}; it has {', '.join(sorted(known))}"
    return Refusal("workspace-unknown", what, f"see 'slotctl status {slot}'")


def check_mounts(records: list[Record], workspace: str) -> None:
    """Refuse if the source of a bind is gone, or if the slot could have put another in its place."""
    ((uid, gid),) = values(records, "ids")
    cure = "mend it, or converge the host with the playbook confined.slots.site"
    seen: set[str] = set()
    for source in [workspace, *(bind[1] for bind in values(records, "bind"))]:
        try:
            path = real(source)
        except OSError as error:
            raise Refusal("policy-invalid", f"bind source {_chain(source)}: {error.strerror}", cure) from None
        parent = above(path)
        while parent not in seen:
            seen.add(parent)
            found = os.stat(parent)
            writable = (
                found.st_mode & 0o002
                or found.st_uid == int(uid)
                or (found.st_gid == int(gid) and found.st_mode & 0o020)
            )
            if writable:
                raise Refusal(
                    "policy-invalid", f"bind source {source}: the slot can replace what stands in {parent}", cure
                )
            parent = above(parent)
    for source in [workspace, *(path for (path,) in values(records, "own"))]:
        found = os.lstat(source)
        if found.st_mode & IS_FORMAT != IS_DIRECTORY or found.st_uid != int(uid):
            raise Refusal("policy-invalid", f"{source} is no directory of the slot's own", cure)
    for inode, path in [*values(records, "hold"), *(mask[1:] for mask in values(records, "mask") if mask[1])]:
        try:
            found = os.lstat(path)
        except OSError as error:
            raise Refusal("policy-invalid", f"{path}, which is masked: {error.strerror}", cure) from None
        if inode != f"{found.st_dev}:{found.st_ino}":
            raise Refusal("policy-invalid", f"{path}, which is masked, is not what it was when it was compiled", cure)


def check_identity(records: list[Record]) -> None:
    """Refuse an executable that is missing, that others than root can write, or whose bytes are not those compiled."""
    cure = "converge the host with the playbook confined.slots.site"
    for path, wanted, stamp in values(records, "identity"):
        try:
            descriptor = os.open(real(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Refusal("provider-missing", f"{_chain(path)}: {error.strerror}", cure) from None
        try:
            found = os.fstat(descriptor)
            if found.st_uid != 0 or found.st_mode & 0o022:
                raise Refusal("provider-changed", f"{path} can be written by others than root", cure)
            if wanted != "distribution" and stamp_of(found) != stamp and sha256_of(descriptor) != wanted:
                raise Refusal("provider-changed", f"{path} has not the bytes that were approved", cure)
        finally:
            os.close(descriptor)


def stamp_of(found: os.stat_result) -> str:
    """Return what changes whenever a file's bytes do.

    Nobody but the kernel sets a ctime, so equal stamps spare the hashing.
    """
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def bwrap_options(records: list[Record], workspace: str, session: str, environ: t.Mapping[str, str]) -> list[str]:
    """Return bwrap's options for the plan, in the plan's order; the command itself is not among them."""
    run = run_directory(value(records, "slot"), session)
    options = ["--clearenv", "--die-with-parent", "--chdir", workspace]
    for keyword, *words in records:
        if keyword == "flag":
            options += words
        elif keyword == "bind":
            options += ["--bind" if words[0] == "rw" else "--ro-bind", words[1], words[2]]
        elif keyword == "bind-workspace":
            options += ["--bind" if words[0] == "rw" else "--ro-bind", workspace, workspace]
        elif keyword == "hold":
            options += ["--bind", words[1], words[1]]
        elif keyword == "mask" and words[0] == "directory":
            options += ["--perms", "0555", "--size", "4096", "--tmpfs", words[2]]
        elif keyword == "mask":
            options += ["--ro-bind", "/dev/null", words[2]]
        elif keyword == "run":
            options += ["--perms", "0700", "--size", words[0], "--tmpfs", run]
        elif keyword == "tmpfs":
            options += ["--perms", words[0], "--size", words[1], "--tmpfs", words[2]]
        elif keyword in ("symlink", "proc", "dev", "hostname"):
            options += [f"--{keyword}", *words]
        elif keyword == "set":
            options += ["--setenv", *words]
        elif keyword == "pass" and words[0] in environ:
            options += ["--setenv", words[0], environ[words[0]]]
    options += ["--setenv", "XDG_RUNTIME_DIR", run, "--setenv", "CONFINED_SESSION", session]
    return options


def credential_options(records: list[Record], environ: t.Mapping[str, str], keep: list[int]) -> list[str]:
    """Return the options that give the CLI its credential: in its environment, or better by a pipe that it reads."""
    options = []
    for name, variable in values(records, "credential"):
        secret = _credential(value(records, "slot"), name, environ)
        if variable:
            name, secret = variable, str(_keep(keep, _pipe(secret.encode())))
        options += ["--setenv", name, secret]
    return options


def seals(records: list[Record]) -> list[str]:
    """Return the options that make mounts read-only once everything stands."""
    return [word for (target,) in values(records, "seal") for word in ("--remount-ro", target)]


def close_all_but(keep: set[int]) -> None:
    """Close what the caller left open: a descriptor walks past every rule about paths. A missing /proc is a refusal."""
    try:
        found = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError as error:
        raise Refusal(
            "sandbox-unavailable", f"/proc/self/fd cannot be listed: {error.strerror}", "mount /proc"
        ) from None
    for descriptor in found:
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the listing's own descriptor, closed by now


def reset_signals() -> None:
    """Undo what Python and systemd changed, SIGPIPE for one, and have bwrap ignore what is meant for the CLI."""
    for number in _signal.valid_signals():
        if _signal.getsignal(number) == _signal.SIG_IGN:
            _signal.signal(number, _signal.SIG_DFL)
    for name in FOR_THE_CLI:
        _signal.signal(getattr(_signal, f"SIG{name}"), _signal.SIG_IGN)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])


def for_the_cli(records: list[Record], words: list[str]) -> list[str]:
    """Return the command line that gives the CLI the default dispositions back, inside.

    All of it but bwrap sees signals.
    """
    if "=" in words[0]:
        raise Refusal(
            "policy-invalid", f"the executable {words[0]} has '=' in its path", "install the provider elsewhere"
        )
    for (scope,) in values(records, "landlock"):
        from ._landlock import scoped

        return scoped(scope, FOR_THE_CLI, words)
    return [ENV, f"--default-signal={','.join(FOR_THE_CLI)}", "--", *words]


def main(release: str, argv: list[str]) -> int:
    """Run the launcher's command line; returns only with a refusal."""
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # an early Ctrl-C is no traceback
    json = argv[:1] == ["--json"]
    words = argv[1:] if json else argv
    try:
        if len(words) not in (3, 4):
            raise Refusal(
                "slot-unknown",
                f"{len(words)} words given",
                "usage: slot-launcher [--json] PLAN WORKSPACE SESSION [POLICY]; start sessions with 'slotctl run SLOT'",
            )
        environ = {decoded(name): decoded(text) for name, text in os.environ.items()}
        launch(release, words[0], words[1], words[2], environ, *words[3:])
    except Refusal as refusal:
        sys.stderr.write(f"{refusal.as_json()}\n" if json else f"slot-launcher: {refusal}\n")
        return 125


def _credential(slot: str, name: str, environ: t.Mapping[str, str]) -> str:
    if not environ.get(name):
        raise Refusal(
            "credential-missing",
            f"{name} is not set or empty",
            f"declare the credential of slot {slot} in the inventory and converge",
        )
    for offset, character in enumerate(environ[name]):
        if not "!" <= character <= "~":
            raise Refusal(
                "credential-malformed",
                f"{name} has a character at offset {offset} that is no printable ASCII",
                "paste it again, on one line, and converge",
            )
    return environ[name]


def _pipe(data: bytes) -> int:
    """Return where data can be read once; it stays in the kernel until then, at most 64 KiB."""
    # a pipe, not a file in memory: what was read once is gone, though the CLI keeps the descriptor open
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.write(write_end, data) != len(data):
            raise Refusal("credential-malformed", "the credential is longer than 64 KiB", "declare another")
    finally:
        os.close(write_end)
    os.set_blocking(read_end, True)
    return os.dup2(read_end, CREDENTIAL_DESCRIPTOR)


def _memory(data: bytes) -> int:
    descriptor = os.memfd_create("confined-slots", 0)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, 0)
    return descriptor


def _keep(keep: list[int], descriptor: int) -> int:
    keep.append(descriptor)
    return descriptor


def _chain(path: str) -> str:
    """Return the path with each link it goes through, as people need it to find the broken one."""
    hops = [path]
    while len(hops) < 8:
        try:
            target = os.readlink(hops[-1])
        except OSError:
            break
        hops.append(target if target.startswith("/") else f"{above(hops[-1])}/{target}".replace("//", "/"))
    return " -> ".join(hops)


def _first_line(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return decoded(os.read(descriptor, 4096)).split("\n")[0].rstrip("\0")
    finally:
        os.close(descriptor)


def real(path: str) -> str:
    """Return where a path leads, in the kernel's own words; OSError if it leads nowhere."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def above(path: str) -> str:
    """Return the directory that holds an absolute path."""
    return path.rpartition("/")[0] or "/"
