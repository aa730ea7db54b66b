"""From a shell to a guest: also without Python, with half a report, and with no answer at all."""

from __future__ import annotations

import ast
import sys

import pytest

from recover.core.read.bare import read_bare
from recover.edge.probe import GuestProbe, ProbeSettings, _modules, command, for_acts, payload, slim, sources
from recover.edge.shell.local import LocalShell
from recover.guest import system
from recover.model.contact import Broken, Failure, Ran
from recover.model.gpu import Condition
from recover.model.guest import Guest, Mute
from recover.model.process import Process
from recover.model.reading import Known, Unknown


class Told:
    """Answers each command with the next of the given values, and remembers what it was asked."""

    where = "told"

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def run(self, argv, *, stdin=b"", deadline, cap=0):
        self.asked.append((list(argv), stdin, deadline))
        return self.answers.pop(0)


class CutShell(LocalShell):
    """A connection that dies after some bytes of the answer."""

    def __init__(self, keep):
        self.keep = keep

    def run(self, argv, **how):
        ran = super().run(argv, **how)
        return Broken(Failure.DIED, "the connection was closed", ran.stdout[: self.keep], b"", True)


def test_one_exec_gives_a_guest():
    guest = GuestProbe(LocalShell()).look(health=False)
    assert isinstance(guest, Guest) and guest.complete and guest.root
    assert isinstance(guest.processes, Known) and isinstance(guest.kernel, Known)


def test_a_report_that_breaks_off_is_still_a_guest():
    guest = GuestProbe(CutShell(1500)).look(health=False)
    assert isinstance(guest, Guest) and not guest.complete
    assert isinstance(guest.gpus, Unknown)


@pytest.mark.parametrize("failure", [Failure.BANNER_SILENCE, Failure.REFUSED, Failure.UNKNOWN_KEY, Failure.TIMEOUT])
def test_no_answer_is_a_value(failure):
    mute = GuestProbe(Told(Broken(failure, "because"))).look()
    assert mute == Mute(failure, "because", 0.0)


def test_without_python_there_is_a_read_only_view():
    guest = GuestProbe(LocalShell(), ProbeSettings(pythons=("no-such-python",))).look()
    assert isinstance(guest, Guest) and guest.complete
    assert isinstance(guest.ram, Known) and isinstance(guest.processes, Known)
    assert any("no Python" in gap for gap in guest.gaps)
    assert not any(p.holds_known for p in guest.processes.value)


def test_a_python_that_can_not_run_the_agent_is_no_dead_end():
    guest = GuestProbe(LocalShell(), ProbeSettings(pythons=("true",))).look()
    assert isinstance(guest, Guest) and any("said nothing" in gap for gap in guest.gaps)


def test_neither_python_nor_a_shell():
    mute = GuestProbe(Told(Ran(86, b"", b"no-python\n", 0.1), Ran(1, b"", b"fork: out of memory\n", 0.1))).look()
    assert isinstance(mute, Mute) and "out of memory" in mute.detail


def test_the_payload_tells_its_length():
    length, _, packed = payload("look").partition(b"\n")
    assert int(length) == len(packed) and len(packed) < 36_000
    assert payload() is payload()
    assert command()[:2] == ["sh", "-c"]


SLIM = {name.removeprefix("recover.guest.") for name in sources("look") | for_acts()}


@pytest.mark.parametrize("name", sorted(SLIM & _modules().keys()))
def test_what_travels_is_the_same_program(name):
    """Nothing but docstrings, comments, annotations and the blocks of type checkers is left behind."""

    class Bare(ast.NodeTransformer):
        def visit(self, node):
            self.generic_visit(node)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                node.body = [part for part in node.body if not self._for_people(part)]
            if isinstance(node, ast.FunctionDef):
                node.returns = None
            if isinstance(node, ast.arg):
                node.annotation = None
            return node

        @staticmethod
        def _for_people(part):
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                return isinstance(part.value.value, str)
            return isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"

    whole, sent = (ast.parse(text) for text in (_modules()[name], slim(_modules()[name])))
    compile(sent, name, "exec")
    assert ast.dump(Bare().visit(whole)) == ast.dump(Bare().visit(sent))


def test_the_agent_imports_nothing_of_the_package():
    from importlib.resources import files

    for item in files("recover.guest").iterdir():
        if item.name.endswith(".py"):
            tree = ast.parse(item.read_text(), feature_version=(3, 6))
            for node in ast.walk(tree):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                for name in names:
                    top = name.split(".")[0]
                    known = name.startswith("recover.guest") or top == "pynvml" or top in sys.stdlib_module_names
                    assert known, (item.name, name)


def test_kmsg_records_from_a_device_or_a_plain_file():
    text = "6,1,2500000,-;NVRM: a\n SUBSYSTEM=pci\n4,2,3500001,c,caller=T1;NVRM: b; c\nnonsense\n"
    assert system.parse_kmsg(text) == [[2500000, "NVRM: a"], [3500001, "NVRM: b; c"]]


BARE = """=== boot
0b5e6f7a-1111-2222-3333-444455556666
=== uptime
100.5 3.0
=== hostname
node-174
=== meminfo
MemTotal: 2097152 kB
MemAvailable: 1048576 kB
=== stat
42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 3 0 777 1000 256 18446744073709551615 1
43 (dead) Z 42 42 42 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 778 0 0 18446744073709551615 1
44 (leader) Z 42 42 42 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 2 0 779 0 0 18446744073709551615 1
=== cmdline
   42 vllm serve --api-key hush
   43 [dead] <defunct>
"""


def test_the_read_only_view_in_detail():
    failed = "Failed to initialize NVML: Driver/library version mismatch"
    guest = read_bare(f"{BARE}=== smi\n{failed}\n=== smi-exit\n18\n=== end\n".encode(), "no Python")
    assert guest is not None and guest.complete
    assert isinstance(guest.processes, Known)
    one, dead, leader = guest.processes.value
    assert isinstance(one, Process) and (one.id.start, one.threads, one.cpu_ticks, one.rss_mib) == (777, 3, 11, 1)
    assert one.comm == "a) b" and one.title == "vllm serve --api-key ***"
    assert dead.plain_zombie and leader.dead_leader
    assert isinstance(guest.driver, Known) and guest.driver.value.nvml_code == 18
    assert guest.driver.value.condition is Condition.FAILS and isinstance(guest.gpus, Unknown)


def test_a_tool_that_hangs_in_the_read_only_view():
    guest = read_bare((BARE + "=== smi\n=== smi-exit\n124\n=== end\n").encode(), "no Python")
    assert guest is not None and isinstance(guest.driver, Known)
    assert guest.driver.value.condition is Condition.HANGS


def test_half_a_read_only_view():
    guest = read_bare(BARE.encode(), "no Python")
    assert guest is not None and not guest.complete and isinstance(guest.gpus, Unknown)
    assert read_bare(b"=== boot\nnot a boot id\n", "x") is None
