"""Attempts to get out of the root: by paths, by links, by shell commands.

None of them reads, changes or lists what is outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.toolkit import Toolkit
from tests.toolkit.places import CANARY, UNMENTIONED, Places, make_places, use

PATHS = (
    # out by dots
    "../outside/canary.txt",
    "./../outside/canary.txt",
    "sub/../../outside/canary.txt",
    "sub/./.././../outside/canary.txt",
    "sub//..//..//outside//canary.txt",
    "sub/deep/../../../outside/inner/../canary.txt",
    "../root-evil/canary.txt",
    "../root/../outside/canary.txt",
    "nothing/../../outside/canary.txt",
    "inside.txt/../../outside/canary.txt",
    "../outside",
    "../outside/",
    "../outside/inner/canary.txt",
    "..",
    "../",
    "../.",
    "../..",
    "sub/../..",
    "../" * 60 + "etc/passwd",
    "../outside/new.txt",
    "../new.txt",
    "../outside/new/folder/file.txt",
    # out by being absolute
    "{out}/canary.txt",
    "/{out}/canary.txt",
    "//{out}/canary.txt",
    "{out}",
    "{out}/new.txt",
    "{root}/../outside/canary.txt",
    "{root}/sub/../../outside/canary.txt",
    "{root}//..//outside/canary.txt",
    "{root}/./../outside/canary.txt",
    "{root}-evil/canary.txt",
    "{root}-evil",
    "/",
    "//",
    "/.",
    "/..",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/hostname",
    "/proc/self/environ",
    "/proc/self/root{out}/canary.txt",
    "/proc/self/cwd",
    "/proc/{pid}/root{out}/canary.txt",
    "/proc/self/fd/0",
    "/dev/stdin",
    "/dev/fd/0",
    "/dev/zero",
    "/dev/random",
    "/dev/tty",
    "/dev/null",
    "/tmp",
    # out by other ways to write a place
    "~",
    "~/canary.txt",
    "~root/.profile",
    "~+/../outside/canary.txt",
    "$HOME/canary.txt",
    "${{HOME}}/canary.txt",
    "file://{out}/canary.txt",
    "file:{out}/canary.txt",
    "FILE:///etc/passwd",
    "http://127.0.0.1/canary.txt",
    "C:\\Windows\\win.ini",
    "C:/Windows/win.ini",
    "c:",
    "\\\\server\\share\\canary.txt",
    "//server/share/canary.txt",
    "\\\\?\\C:\\canary.txt",
    "..\\outside\\canary.txt",
    "sub\\..\\..\\outside\\canary.txt",
    "..%2foutside%2fcanary.txt",
    "%2e%2e/outside/canary.txt",
    "..%c0%af..%c0%afoutside/canary.txt",
    "．．/outside/canary.txt",
    "‥/outside/canary.txt",
    "..／outside／canary.txt",
    "....//outside/canary.txt",
    "..;/outside/canary.txt",
    " ../outside/canary.txt",
    "../outside/canary.txt ",
    # odd names
    "",
    ".",
    "./.",
    "sub/..",
    "../outside/canary.txt\0",
    "inside.txt\0../outside/canary.txt",
    "\0",
    "sub/\0/x",
    "../outside/canary.txt\n",
    "a\nb",
    "a\rb",
    "\x1b[2J",
    "\x7f",
    "a\u0085b",
    "\u2028",
    "\ud800",
    "\udcff",
    "a" * 300,
    "ä" * 200,
    "a/" * 3000,
    "a" * 70_000,
    "-rf",
    "|cat ../outside/canary.txt",
    "`cat ../outside/canary.txt`",
    "$(cat ../outside/canary.txt)",
    "x;cat ../outside/canary.txt",
    "*",
    "../*/canary.txt",
    "../outside/*",
    "CON",
)

LINKS: dict[str, tuple[str, str]] = {
    # name in the root: (where it points to, a path that goes through it)
    "file": ("{out}/canary.txt", "file"),
    "relative": ("../outside/canary.txt", "relative"),
    "folder": ("{out}", "folder/canary.txt"),
    "folder-itself": ("{out}", "folder-itself"),
    "folder-slash": ("{out}/", "folder-slash/"),
    "relative-folder": ("../outside", "relative-folder/inner/canary.txt"),
    "parent": ("..", "parent/outside/canary.txt"),
    "parent-of-parent": ("../..", "parent-of-parent"),
    "through-the-root": ("{root}/../outside", "through-the-root/canary.txt"),
    "twin": ("{root}-evil", "twin/canary.txt"),
    "first": ("second", "first/canary.txt"),
    "second": ("third", "second/canary.txt"),
    "third": ("../outside", "third/canary.txt"),
    "sub/up": ("../..", "sub/up/outside/canary.txt"),
    "sub/deep/up": ("../../../outside", "sub/deep/up/canary.txt"),
    "down-and-up": ("sub/deep/../../../outside", "down-and-up/canary.txt"),
    "via-a-link": ("sub/up/outside", "via-a-link/canary.txt"),
    "top": ("/", "top/etc/passwd"),
    "process": ("/proc/self/root", "process{out}/canary.txt"),
    "descriptor": ("/proc/self/fd/0", "descriptor"),
    "endless": ("/dev/zero", "endless"),
    "here": ("here", "here"),
    "ping": ("pong", "ping"),
    "pong": ("ping", "pong/canary.txt"),
    "not-there-yet": ("{out}/new.txt", "not-there-yet"),
    "not-there-at-all": ("../outside/new/deep.txt", "not-there-at-all"),
    "new-folder": ("{out}/inner", "new-folder/new/file.txt"),
    "dots-after": ("sub", "dots-after/../../outside/canary.txt"),
    "out-and-in": ("{out}", "out-and-in/../root/inside.txt"),
}

SHELL: dict[str, bool] = {
    # command: whether it reads or changes what is outside when nothing holds it
    "cat {out}/canary.txt": True,
    "cat ../outside/canary.txt": True,
    "cd .. && cat outside/canary.txt": True,
    "cd {out} && cat *": True,
    "cat /proc/self/root{out}/canary.txt": True,
    "cat /proc/self/cwd/../outside/canary.txt": True,
    "cat /proc/$$/root{out}/canary.txt": True,
    "cat /proc/1/root{out}/canary.txt": False,
    "ln -s {out}/canary.txt link; cat link": True,
    "ln -s {out} link; cat link/canary.txt": True,
    "ln {out}/canary.txt hard; cat hard": True,
    "cp {out}/canary.txt ./copy; cat copy": True,
    "cp -r {out} ./copied": True,
    "mv {out}/canary.txt ./moved": True,
    "mv {out} ./moved": True,
    "tar cf - -C {out} . | tar xf - && cat canary.txt": True,
    "read -r line < {out}/canary.txt; echo $line": True,
    "while read -r line; do echo $line; done < {out}/canary.txt": True,
    "echo $(<{out}/canary.txt)": True,
    "source {out}/canary.txt": True,
    "exec 9<{out}/canary.txt; cat <&9": True,
    "head -c 100 {out}/canary.txt | base64 -d 2>/dev/null; grep -r sings {out}": True,
    "find {out} -type f -exec cat {{}} +": True,
    "dd if={out}/canary.txt 2>/dev/null": True,
    "python3 -c 'print(open(\"{out}/canary.txt\").read())'": True,
    "env -i /bin/cat {out}/canary.txt": True,
    "/bin/sh -c 'cat {out}/canary.txt'": True,
    "(cat {out}/canary.txt) & wait": True,
    "setsid cat {out}/canary.txt; nohup cat {out}/canary.txt 2>&1": True,
    "ls {out}": True,
    "ls -R ..": True,
    "echo {out}/*": True,
    "ls /proc; ls /root; ls /home; ls /": False,
    "echo changed > {out}/canary.txt": True,
    "echo changed >> ../outside/canary.txt": True,
    "ln -s {out} link; echo changed > link/canary.txt": True,
    "echo new > {out}/new.txt": True,
    "touch {out}/new.txt": True,
    "mkdir {out}/new": True,
    "mkfifo {out}/pipe": True,
    "ln -s . {out}/link": True,
    "cp inside.txt {out}/canary.txt": True,
    "mv inside.txt {out}/": True,
    "ln inside.txt {out}/hard": True,
    "tee {out}/canary.txt < inside.txt": True,
    "sed -i s/canary/bird/ {out}/canary.txt": True,
    "truncate -s 0 {out}/canary.txt": True,
    "rm {out}/canary.txt": True,
    "rm -rf {out}": True,
    "rmdir {out}/inner; rm -r {out}/inner": True,
    "chmod 777 {out}/canary.txt": True,
    "chmod -R a+w {out}": True,
    "touch -d 2001-01-01 {out}/canary.txt": True,
    "touch {out}/canary.txt": True,
    "python3 -c 'import os; os.truncate(\"{out}/canary.txt\", 0)'": True,
    "python3 -c 'import os; os.chmod(\"{out}/canary.txt\", 0)'": True,
    "python3 -c 'import os; os.utime(\"{out}/canary.txt\", (1, 1))'": True,
    'python3 -c \'import os; os.setxattr("{out}/canary.txt", "user.x", b"x")\'': False,
    'python3 -c \'import os; os.rename("{out}/canary.txt", "{out}/other")\'': True,
    'python3 -c \'import os; f = os.open("{out}", os.O_PATH); print(os.listdir("/proc/self/fd/%d" % f))\'': True,
    'python3 -c \'import os; os.chroot(".."); print(open("/outside/canary.txt").read())\'': False,
    "mknod disk b 254 0 && head -c 1000000 disk": False,
    "mount --bind {out} sub && cat sub/canary.txt": False,
    "unshare -rm cat {out}/canary.txt": False,
    "nsenter -t 1 -m cat {out}/canary.txt": False,
    "cat ~/../outside/canary.txt": True,
    "cat $HOME/../outside/canary.txt": True,
    "cat $OLDPWD/canary.txt; cat $PWD/../outside/canary.txt": True,
    "pushd .. >/dev/null; cat outside/canary.txt": True,
    "cat {{..,sub}}/outside/canary.txt": True,
    "cat $'\\x2e\\x2e/outside/canary.txt'": True,
    "eval \"$(printf 'cat %s' ../outside/canary.txt)\"": True,
    "awk '{{print}}' {out}/canary.txt; perl -pe 1 {out}/canary.txt": True,
    "git -C {out} init -q": False,
    "git clone -q {out} cloned": False,
    "exec 3<>/dev/tcp/127.0.0.1/22": False,
    "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"/run/dbus/system_bus_socket\")'": False,
}


def write_text(template: str, places: Places) -> str:
    if "{" not in template:
        return template
    return template.format(out=places.outside, root=places.root, pid=os.getpid())


def attempts(kit: Toolkit) -> dict[str, Callable[[str], str]]:
    """Every tool that takes a path or a pattern of paths."""
    return {
        "Read": lambda path: use(kit.read, file_path=path),
        "Stat": lambda path: use(kit.stat, file_path=path),
        "Glob a path": lambda path: use(kit.glob, pattern="**", path=path),
        "Glob a pattern": lambda path: use(kit.glob, pattern=path),
        "Grep a path": lambda path: use(kit.grep, pattern="", path=path),
        "Grep a glob": lambda path: use(kit.grep, pattern="", glob=path),
        "Edit": lambda path: use(kit.edit, file_path=path, old_string="canary", new_string="bird"),
        "Write": lambda path: use(kit.write, file_path=path, content="written"),
    }


def test_there_are_enough_attempts() -> None:
    assert len(PATHS) + len(LINKS) + len(SHELL) >= 200
    assert len(SHELL) >= 60


@pytest.mark.parametrize("tool", ["Read", "Stat", "Glob a path", "Glob a pattern", "Edit", "Write"])
def test_no_path_leads_out(kit: Toolkit, places: Places, tool: str) -> None:
    before = places.outside_as_it_is()
    attempt = attempts(kit)[tool]
    for template in PATHS:
        path = write_text(template, places)
        answer = attempt(path)
        assert CANARY not in answer, path
        assert "root:x:" not in answer, path
        assert str(places.root) not in answer.replace(path, ""), path  # the path of the model may be repeated
        assert UNMENTIONED not in answer, path
        assert places.outside_as_it_is() == before, path
    assert places.holds_the_canary() == []


@pytest.mark.parametrize("tool", ["Grep a path", "Grep a glob"])
def test_no_path_leads_a_search_out(kit: Toolkit, places: Places, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matching happens elsewhere and opens no files: here, everything that it is handed."""
    monkeypatch.setattr("agent.toolkit.search.Matcher", EverythingMatches)
    before = places.outside_as_it_is()
    attempt = attempts(kit)[tool]
    for template in PATHS:
        path = write_text(template, places)
        answer = attempt(path)
        assert CANARY not in answer, path
        assert "root:x:" not in answer, path
        assert str(places.root) not in answer.replace(path, ""), path
    assert places.outside_as_it_is() == before


class EverythingMatches:
    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> EverythingMatches:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def search(self, data: bytes, most: int) -> list[tuple[int, str]]:
        return [(1, data.decode("utf-8", "replace"))]


def test_the_paths_lead_out_where_nothing_holds_them(places: Places) -> None:
    """Or the tests above would prove nothing."""
    found = 0
    for template in PATHS:
        path = write_text(template, places)
        try:
            reached = Path(places.root, path)
            found += reached.is_file() and CANARY in reached.read_text()
        except (OSError, ValueError):
            continue
    assert found >= 15


def put_links(places: Places) -> None:
    for name, (target, _) in LINKS.items():
        (places.root / name).symlink_to(write_text(target, places))


@pytest.mark.parametrize("tool", ["Read", "Stat", "Glob a path", "Glob a pattern", "Grep a path", "Edit", "Write"])
def test_no_link_leads_out(kit: Toolkit, places: Places, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.toolkit.search.Matcher", EverythingMatches)
    put_links(places)
    before = places.outside_as_it_is()
    attempt = attempts(kit)[tool]
    for _, template in LINKS.values():
        path = write_text(template, places)
        for tried in (path, f"./{path}", f"sub/../{path}", f"{places.root}/{path}"):
            answer = attempt(tried)
            assert CANARY not in answer, tried
            assert "root:x:" not in answer, tried
            assert str(places.root) not in answer, tried
            assert str(places.outside) not in answer.replace(path, ""), (tried, answer)
            assert places.outside_as_it_is() == before, tried
    assert places.holds_the_canary() == []


def test_the_links_lead_out_where_nothing_holds_them(places: Places) -> None:
    put_links(places)
    found = 0
    for _, template in LINKS.values():
        path = places.root / write_text(template, places)
        if path.is_file():
            found += CANARY in path.read_text()
    assert found >= 15


def test_a_walk_enters_no_link(kit: Toolkit, places: Places) -> None:
    put_links(places)
    assert CANARY not in use(kit.grep, pattern="canary")
    listed = use(kit.glob, pattern="**/*").splitlines()
    assert "folder" in listed
    assert not [path for path in listed if path.startswith("folder/")]


# ProgramRunner


def run_sequentially(commands: Iterable[str], places: Places) -> str:
    """One shell for several commands, since starting one takes a while."""
    return "\n".join([*(f"( {write_text(command, places)} )" for command in commands), "echo to the end"])


@pytest.mark.parametrize("first", range(0, len(SHELL), 6))
def test_no_command_leads_out(confined: Toolkit, places: Places, first: int) -> None:
    commands = list(SHELL)[first : first + 6]
    before = places.outside_as_it_is()
    answer = use(confined.bash, command=run_sequentially(commands, places), timeout=60)
    assert answer.endswith("to the end")
    assert_nothing_happened(places, before, answer, str(commands))


def assert_nothing_happened(places: Places, before: Any, answer: str, command: str) -> None:
    assert "could not be confined" not in answer
    assert CANARY not in answer, command
    assert UNMENTIONED not in answer, command
    assert places.outside_as_it_is() == before, command
    assert places.holds_the_canary() == [], command


def test_no_command_leads_out_where_there_are_no_namespaces(confined: Toolkit, places: Places) -> None:
    """In many containers there are none."""
    confined.bash.programs = replace(confined.bash.programs, namespaces=False)
    before = places.outside_as_it_is()
    answer = use(confined.bash, command=run_sequentially(SHELL, places), timeout=60)
    assert answer.endswith("to the end")
    assert_nothing_happened(places, before, answer, "all of them")


def test_no_script_leads_out(confined: Toolkit, places: Places) -> None:
    before = places.outside_as_it_is()
    script = f"""
import os, pathlib, shutil, socket, subprocess
outside = pathlib.Path({str(places.outside)!r})
attempts = [
    lambda: print((outside / "canary.txt").read_text()),
    lambda: print(os.listdir(outside)),
    lambda: print(list(os.walk("..", onerror=print))),
    lambda: (outside / "new.txt").write_text("new"),
    lambda: shutil.rmtree(outside),
    lambda: shutil.copytree(outside, "copied"),
    lambda: os.link(outside / "canary.txt", "hard"),
    lambda: os.symlink(outside, "link"),
    lambda: print(open("link/canary.txt").read()),
    lambda: os.chmod(outside, 0),
    lambda: print(subprocess.run(["cat", str(outside / "canary.txt")], capture_output=True).stdout),
    lambda: print(os.open(outside, os.O_RDONLY)),
    lambda: print(socket.socket()),
    lambda: print(socket.socket(socket.AF_UNIX)),
    lambda: print(dict(os.environ)),
    lambda: print(open(f"/proc/{{os.getppid()}}/environ").read()),
]
for attempt in attempts:
    try:
        attempt()
    except (OSError, shutil.Error) as error:
        print(type(error).__name__)
print("to the end")
"""
    made = use(confined.python, action="create", content=script)
    answer = use(confined.python, action="run", file_id=made.split()[1].rstrip(":"))
    assert answer.endswith("to the end")
    assert answer.count("PermissionError") >= 9
    assert "<socket.socket" not in answer
    assert CANARY not in answer
    assert places.outside_as_it_is() == before
    assert places.holds_the_canary() == []


def test_the_commands_lead_out_where_nothing_holds_them(tmp_path: Path) -> None:
    """Or the tests above would prove nothing. Only commands that touch this test's own folders are run."""
    held = []
    for number, (command, _) in enumerate((command, leads) for command, leads in SHELL.items() if leads):
        places = make_places(tmp_path / str(number))
        before = places.outside_as_it_is()
        with Toolkit(places.root, allow_exec="unconfined") as kit:
            answer = use(kit.bash, command=write_text(command, places), timeout=20)
        seen = CANARY in answer or UNMENTIONED in answer or places.holds_the_canary()
        try:
            changed = places.outside_as_it_is() != before
        except OSError:  # there is no outside any more
            changed = True
        if not (seen or changed):
            held.append(command)
    assert held == []


def test_keys_of_the_environment_reach_no_program(
    places: Places, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("SOME_API_KEY", CANARY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    for fixture in ("unconfined", "confined"):
        kit: Toolkit = request.getfixturevalue(fixture)
        answer = use(kit.bash, command="env; export -p; set; cat /proc/self/environ | tr '\\0' '\\n'")
        assert CANARY not in answer
        assert f"HOME={places.root}" in answer
    answer = use(kit.bash, command="for pid in $PPID $(seq 1 400); do cat /proc/$pid/environ; done 2>/dev/null")
    assert CANARY not in answer
