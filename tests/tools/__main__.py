# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The work behind `make`: each command is a list of steps. Standard library only: it makes the environment itself."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import types
import typing as t

from machine import BROWSER_PROGRAMS, GUEST_PROGRAMS, HOST_PROGRAMS, PROGRAMS, SYSTEM_PATH, Machine
from steps import Failed, Log, Missing, Step, Workbench, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
COLLECTIONS = BUILD / "collections"
RESULTS = BUILD / "results"
FOUND = BUILD / "certification" / "found"
REQUIREMENTS = ROOT / "requirements" / "tests.txt"
AXE = BUILD / "axe"
AXE_VERSION = "4.14.1"
HOSTS = ("python3", str(ROOT / "tests" / "hosts" / "hosts.py"))
GUEST = ("python3", str(ROOT / "tests" / "hosts" / "guest.py"))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "confined-slots")

machine = Machine(ROOT, BUILD)

SUITES = ("trixie", "bookworm")

# What a step is called where another one needs it.
PACKAGES = "packages of this machine"
VENV = "virtual environment"
DOCKER = "docker"
IMAGES = "images of the test hosts"
BROWSER = "a browser and axe-core"
DISK = "disk of the test guest"
VM = "vm"  # the scenario that has a guest of its own, and a memory of its own, since it runs beside the others
MEMORY, VM_MEMORY = BUILD / "molecule", BUILD / "molecule-vm"


def environment() -> dict[str, str]:
    """Return the environment of every step: this checkout's tools first, nothing of the user's Ansible or Python."""
    foreign = ("ANSIBLE_", "MOLECULE_", "PYTEST_", "PYTHON", "MYPY", "VIRTUAL_ENV", "RUFF_", "LC_", "LANG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {
        "PATH": f"{machine.venv / 'bin'}:{os.environ.get('PATH', '')}:{SYSTEM_PATH}",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
        "ANSIBLE_CONFIG": str(ROOT / "tests" / "ansible.cfg"),
        "ANSIBLE_HOME": str(BUILD / "ansible"),
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(MEMORY),
        "MOLECULE_COMMAND_BORDERS": "0",
    }


def command(*argv: str, cwd: pathlib.Path = ROOT, **environment: str) -> t.Callable[[Log], None]:
    """Return the action that runs one program in the checkout."""
    return lambda log: log.run(*argv, cwd=cwd, **environment)


def output(*argv: str) -> str:
    """Return what a program prints, run in the checkout; raise Failed with its own words when it fails."""
    done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(argv[:3])} … ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


# --- setup ------------------------------------------------------------------------------------------------------------


def link_collection(log: Log) -> None:
    """Show the checkout under the path by which Ansible and Python know a collection."""
    link = COLLECTIONS / "ansible_collections" / "confined" / "slots"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(ROOT)
    elif link.readlink() != ROOT:
        raise Failed(f"{link} points to {link.readlink()} [make clean]")


def setup() -> list[Step]:
    """Return the steps that everything else needs."""
    return [
        Step(PACKAGES, lambda log: machine.install(log, PROGRAMS)),
        Step(VENV, lambda log: machine.make_venv(log, REQUIREMENTS)),
        Step("path of the collection", link_collection),
    ]


def hosts(*suites: str) -> list[Step]:
    """Return the steps after which test hosts of the suites can be booted."""
    needs = "packages of test hosts"
    return [
        Step(needs, lambda log: machine.install(log, HOST_PROGRAMS)),
        Step(DOCKER, machine.start_docker, needs=(needs,)),
        Step(IMAGES, command(*HOSTS, "image", *suites), needs=(DOCKER,)),
    ]


def guest() -> list[Step]:
    """Return the steps after which the test guest can be booted."""
    packages = "packages of the test guest"
    return [
        Step(packages, lambda log: machine.install(log, GUEST_PROGRAMS)),
        Step(DISK, guest_disk, needs=(packages,)),
    ]


def guest_disk(log: Log) -> None:
    """Build the guest's disk, where this machine can run a guest."""
    if platform.machine() != "x86_64":
        raise Missing(f"this machine is a {platform.machine()}; the guest is made for x86_64")
    if os.geteuid() != 0:
        raise Missing("only root can make the guest's disk [run as root]")
    log.run(*GUEST, "image", cwd=ROOT)


# --- linters ----------------------------------------------------------------------------------------------------------


def listed_files() -> list[pathlib.Path]:
    """Return the checkout's files: those that git has and those that it would add."""
    listing = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    paths = sorted({pathlib.Path(name) for name in listing.split("\0") if name})
    return [path for path in paths if os.path.lexists(ROOT / path)]


def scripts(interpreter: str) -> list[str]:
    """Return the listed files without a suffix whose first line names the interpreter."""
    found = []
    for path in listed_files():
        if path.suffix or not (ROOT / path).is_file():
            continue
        with (ROOT / path).open("rb") as file:
            first = file.readline(200)
        if re.match(rb"#!\S*(/| )" + interpreter.encode() + rb"[0-9.]*\b", first):
            found.append(str(path))
    return found


def mypy_core(log: Log) -> None:
    """Check the core under the names it has on a host, and the tools of the tests."""
    library = ROOT / "roles" / "launcher" / "files" / "release" / "lib"
    packages = [f"--package={name}" for name in ("confined_slots", "slotctl") if (library / name).exists()]
    if packages:
        log.run("mypy", *packages, cwd=ROOT, MYPYPATH=str(library))
    for script in scripts("python"):
        log.run("mypy", "--scripts-are-modules", script, cwd=ROOT, MYPYPATH=str(library))
    for tool in ("tools", "hosts", "endpoint", "certify", "operating"):
        # what runs on a test host has the endpoint beside it, and the release
        path = f"tests/{tool}:tests/endpoint:{library}"
        log.run("mypy", *map(str, sorted((ROOT / "tests" / tool).glob("*.py"))), cwd=ROOT, MYPYPATH=path)


def mypy_collection(log: Log) -> None:
    """Check the plugins under the names that Ansible gives them."""
    package = "--package=ansible_collections.confined.slots.plugins"
    log.run("mypy", "--namespace-packages", "--explicit-package-bases", package, cwd=ROOT, MYPYPATH=str(COLLECTIONS))


def shellcheck(log: Log) -> None:
    """Check every shell script."""
    found = [str(path) for path in listed_files() if path.suffix == ".sh"] + scripts("bash") + scripts("sh")
    log.run("shellcheck", *sorted(set(found)), cwd=ROOT)


def lint() -> list[Step]:
    """Return one step for each linter."""
    docs = ("antsibull-docs", "lint-collection-docs", "--plugin-docs", "--skip-rstcheck")
    linters: dict[str, t.Callable[[Log], None]] = {
        "ruff": lambda log: log.run("ruff", "check", "--no-cache", *scripts("python"), ".", cwd=ROOT),
        "mypy, as installed on a host": mypy_core,
        "mypy, as a collection": mypy_collection,
        "yamllint": command("yamllint", "--strict", "."),
        "ansible-lint": command("ansible-lint", "--offline"),
        "shellcheck": shellcheck,
        "antsibull-docs": command(*docs, "--validate-collection-refs", "self", "."),
        "antsibull-changelog": command("antsibull-changelog", "lint"),
    }
    return [Step(title, action, needs=(VENV,), counted=True) for title, action in linters.items()]


# --- tests ------------------------------------------------------------------------------------------------------------


def unit() -> list[Step]:
    """Return the step of the unit tests."""
    junit = RESULTS / "unit.xml"
    pytest = command("python", "-m", "pytest", "tests/unit", f"--junitxml={junit}")
    return [Step("unit tests", pytest, needs=(VENV,), junit=junit)]


def fetch_browser(log: Log) -> None:
    """Install Debian's Chromium, and fetch the accessibility rules, of which nothing is executed but by the browser."""
    machine.install(log, BROWSER_PROGRAMS)
    if (AXE / "node_modules" / "axe-core" / "axe.min.js").exists():
        return
    if not shutil.which("npm"):
        raise Missing("npm is not installed [install it: axe-core comes from npm]")
    AXE.mkdir(parents=True, exist_ok=True)
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    log.run("npm", "install", *options, "--prefix", str(AXE), f"axe-core@{AXE_VERSION}")


def browser() -> list[Step]:
    """Return the steps that open the fleet's report in a browser; its screenshots stay among the results."""
    junit = RESULTS / "browser.xml"
    pytest = command("python", "-m", "pytest", "tests/browser", f"--junitxml={junit}")
    return [
        Step(BROWSER, fetch_browser, needs=(VENV,)),
        Step("the report in a browser", pytest, needs=(BROWSER,), junit=junit),
    ]


GET_PIP = """\
# ansible-test wants get-pip.py from a server of its own; the pip that Python brings along does the same.
import ensurepip, os, subprocess, sys
ensurepip.bootstrap()
os.environ.pop("PIP_CONFIG_FILE", None)  # ensurepip hides all configuration, the mirror's address among it
arguments = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", *arguments]))
"""


def sanity_home() -> pathlib.Path:
    """Return a home for ansible-test, kept for other clones: the environments that it makes there take minutes.

    It lets neither pip's variables nor the user's home through, so pip's effective settings are written there.
    """
    home = CACHE / "ansible-test"
    downloads = home / ".ansible" / "test" / "cache"
    settings = home / ".config" / "pip" / "pip.conf"
    for directory in (downloads, settings.parent):
        directory.mkdir(parents=True, exist_ok=True)
    for version in ("24_2", "25_2", "26_0"):
        (downloads / f"get_pip_{version}.py").write_text(GET_PIP, encoding="ascii")
    listing = output(str(machine.venv / "bin" / "python"), "-m", "pip", "config", "list")
    # One line each, the strongest last: global.cert='…', then :env:.cert='…'
    found = dict(re.findall(r"^(?:global|:env:)\.([a-z-]+)='(.*)'$", listing, re.MULTILINE))
    settings.touch(mode=0o600)
    settings.write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in found.items())]) + "\n", "utf-8")
    return home


def ansible_test_sanity(log: Log) -> None:
    """Run ansible-test over a copy of the checkout's files, as it refuses links and what git ignores."""
    copy = BUILD / "sanity" / "ansible_collections" / "confined" / "slots"
    shutil.rmtree(copy, ignore_errors=True)
    for path in listed_files():
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target, follow_symlinks=False)
    # Else it asks the checkout's git, which knows nothing of build/: all targets skipped, and all is well.
    log.run("git", "init", "--quiet", cwd=copy)
    python = f"--python={sys.version_info.major}.{sys.version_info.minor}"
    log.run("ansible-test", "sanity", "--color=no", python, cwd=copy, HOME=str(sanity_home()))
    if not re.search(r"^Running sanity test ", log.text(), re.MULTILINE) or "All targets skipped" in log.text():
        raise Failed("ansible-test found nothing to test")


def sanity() -> list[Step]:
    """Return the step of Ansible's own sanity tests."""
    return [Step("ansible-test sanity", ansible_test_sanity, needs=(VENV,), counted=True)]


def scenarios() -> list[str]:
    """Return the molecule scenarios, the one that owns the hosts first."""
    found = sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))
    return sorted(found, key=lambda name: name != "default")


def molecule() -> list[Step]:
    """Return one step for each scenario, all on the same hosts."""
    boot = "boot of the test hosts"
    steps = [Step(boot, command("molecule", "create"), needs=(VENV, IMAGES))]
    return steps + [scenario(name, (boot,), "--destroy=never") for name in scenarios() if name != VM]


def vm() -> list[Step]:
    """Return the step of the scenario with a guest of its own, which it boots and removes."""
    return [scenario(VM, (DISK,), "--destroy=always", memory=VM_MEMORY)]


def scenario(name: str, needs: tuple[str, ...], *options: str, memory: pathlib.Path = MEMORY) -> Step:
    """Return the step of one scenario."""
    words = ("molecule", "test", f"--scenario-name={name}", *options, "--no-report")
    test = command(*words, MOLECULE_EPHEMERAL_DIRECTORY=str(memory))
    return Step(f"molecule {name}", test, needs=(VENV, *needs), counted=True, junit=RESULTS / f"molecule-{name}.xml")


# --- demo and bench ---------------------------------------------------------------------------------------------------


def playbook(name: str, state: pathlib.Path, *more: str) -> t.Callable[[Log], None]:
    """Return the action that runs one of the collection's playbooks on the demo's hosts."""
    inventories = [f"--inventory={ROOT / 'inventories' / 'demo'}", f"--inventory={state / 'inventory.json'}"]
    return command("ansible-playbook", *inventories, *more, f"confined.slots.{name}")


def unchanged(action: t.Callable[[Log], None]) -> t.Callable[[Log], None]:
    """Return the action, failing when its recap speaks of changes."""

    def check(log: Log) -> None:
        action(log)
        if changed := re.search(r"^\S+ +: ok=\d+ +changed=([1-9]\d*)", log.text(), re.MULTILINE):
            raise Failed(f"{changed[1]} tasks changed something")

    return check


def demo() -> list[Step]:
    """Return the steps of the demonstration on one throwaway host."""
    state = BUILD / "demo"
    report = f"--extra-vars=demo_report={RESULTS / 'demo.txt'}"
    boot = "boot of the demo host"
    first, again = "provision the host with three slots", "provision it again: nothing changes"
    return [
        Step(boot, command(*HOSTS, "boot", "--state", str(state), "trixie"), needs=(VENV, IMAGES)),
        Step(first, playbook("site", state), needs=(boot,)),
        Step(again, unchanged(playbook("site", state)), needs=(first,)),
        Step("confined sessions: attacks and work", playbook("demo", state, report), needs=(first,)),
    ]


def bench() -> list[Step]:
    """Return the steps that measure, on hosts of their own."""
    state = BUILD / "bench"
    boot = "boot of the bench host"
    inventory, report = state / "inventory.json", RESULTS / "bench.txt"
    measure = command("python", "tests/bench", f"--inventory={inventory}", f"--report={report}")
    return [
        Step(boot, command(*HOSTS, "boot", "--state", str(state), "trixie"), needs=(VENV, IMAGES)),
        Step("measurements", measure, needs=(boot,)),
    ]


def forget_findings(log: Log) -> None:
    """Remove what an earlier run of the CLIs has found."""
    shutil.rmtree(FOUND, ignore_errors=True)


def certify() -> list[Step]:
    """Return the steps that run the real CLIs and write the evidence of it."""
    *boot, run = [step for step in molecule() if "boot" in step.title or step.title == "molecule providers"]
    write = command("python", "tests/certify", str(FOUND), str(ROOT / "profiles"))
    forget = Step("findings of an earlier run", forget_findings)
    return [*boot, forget, run, Step("evidence beside the profiles", write, needs=(run.title,))]


# --- commands ---------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[str, t.Callable[[], list[Step]]]] = {
    "setup": ("make the virtual environment and install what is missing", lambda: setup() + hosts(*SUITES)),
    "demo": ("provision a throwaway host and run confined sessions on it", lambda: setup() + hosts("trixie") + demo()),
    "test": (
        "run every test",
        lambda: (
            setup()
            + guest()
            # emulated, it takes one processor's time and much patience
            + [dataclasses.replace(step, beside=True) for step in vm()]
            + lint()
            + unit()
            + sanity()
            + browser()
            + hosts(*SUITES)
            + molecule()
        ),
    ),
    "test-vm": ("run the tests that need a kernel of their own, in a guest", lambda: setup() + guest() + vm()),
    "lint": ("run the linters", lambda: setup() + lint()),
    "unit": ("run the unit tests", lambda: setup() + unit()),
    "sanity": ("run ansible-test sanity", lambda: setup() + sanity()),
    "browser": ("open the fleet's report in a browser", lambda: setup() + browser()),
    "molecule": ("run the molecule scenarios on booted test hosts", lambda: setup() + hosts(*SUITES) + molecule()),
    "certify": ("run the real CLIs and write the evidence of it", lambda: setup() + hosts(*SUITES) + certify()),
    "bench": ("measure, on a booted test host", lambda: setup() + hosts("trixie") + bench()),
}
REPORTS = {"demo": RESULTS / "demo.txt", "bench": RESULTS / "bench.txt"}


def remove_hosts(environment: dict[str, str]) -> None:
    """Remove the hosts of every command, also those that a killed run left."""
    for name in ("hosts", "demo", "bench"):
        if (BUILD / name).exists():
            remove = [*HOSTS, "remove", "--state", str(BUILD / name)]
            subprocess.run(remove, stdin=subprocess.DEVNULL, env=environment, check=False)
    if (BUILD / "guest").exists():
        remove = [*GUEST, "remove", "--state", str(BUILD / "guest")]
        subprocess.run(remove, stdin=subprocess.DEVNULL, env=environment, check=False)
    # Molecule's memory of having created them.
    for memory in (MEMORY, VM_MEMORY):
        shutil.rmtree(memory, ignore_errors=True)


def clean() -> int:
    """Remove all that was made in this checkout: hosts, the virtual environment, build/."""
    remove_hosts(environment())
    for path in (BUILD, machine.venv):
        shutil.rmtree(path, ignore_errors=True)
    return 0


def perform(name: str) -> int:
    """Run a command's steps, clean up whatever happens, and return the exit status."""
    logs = BUILD / "log" / name
    for directory in (logs, RESULTS):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    # Only by hand may a part of the tests be left out; each is named then.
    bench = Workbench(f"make {name}", logs, environment(), strict=name != "test" or "CI" in os.environ)
    try:
        remove_hosts(bench.environment)
        fine = bench.perform(COMMANDS[name][1]())
    finally:
        remove_hosts(bench.environment)
        if note := machine.stop_docker(bench.environment):
            say(note)
    report = REPORTS.get(name)
    if report and report.exists():
        say(f"\n{report.read_text(encoding='utf-8')}")
    (RESULTS / "summary.txt").write_text(f"{bench.summary()}\n", encoding="utf-8")
    return 0 if fine else 1


def interrupted(number: int, _frame: types.FrameType | None) -> t.NoReturn:
    """Leave by way of every `finally`."""
    raise SystemExit(128 + number)


def main(argv: list[str]) -> int:
    """Run one command and return the exit status."""
    if len(argv) != 1 or argv[0] not in {*COMMANDS, "clean"}:
        for name, (words, _steps) in COMMANDS.items():
            say(f"  make {name:9} {words}")
        say(f"  make {'clean':9} remove the hosts, .venv and build/")
        return 0 if argv == ["help"] else 2
    BUILD.mkdir(exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interrupted)
    with contextlib.ExitStack() as held:
        lock = held.enter_context((BUILD / "lock").open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another make runs in this checkout [wait for it, or use another clone]")
            return 1
        return clean() if argv[0] == "clean" else perform(argv[0])


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        sys.exit(f"Python {sys.version.split()[0]} is too old: the control node needs 3.11 or newer.")
    sys.exit(main(sys.argv[1:]))
