"""`python -m tests.bench.side ours|libssh2 FOLDER PORT WIDTH`: one side of the fleet's transport measure, as a process.

Each logs in at every address of FOLDER/hosts and runs `true`; exit 1 unless all of them ended with 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def ours(folder: Path, port: int, width: int) -> int:
    """The tool's own transport: host keys checked, one total deadline."""
    from recover.edge.fleet import at_once
    from recover.edge.shell import SshSettings, SshShell
    from recover.model.contact import Broken, Ran

    def job(host: str) -> Callable[[float], Ran | Broken]:
        shell = SshShell(
            SshSettings(
                host, port, "root", str(folder / "user"), str(folder / "known_hosts"), ssh_config="/nonexistent"
            )
        )

        def run(left: float) -> Ran | Broken:
            try:
                return shell.run(["true"], deadline=left)
            finally:
                shell.close()

        return run

    answers = at_once([job(host) for host in _hosts(folder)], width, 300.0, 60.0)
    return sum(not (isinstance(answer, Ran) and answer.code == 0) for answer in answers)


def libssh2(folder: Path, port: int, width: int) -> int:
    """parallel-ssh as its documentation has it; it checks no host keys."""
    from pssh.clients import ParallelSSHClient

    client = ParallelSSHClient(
        _hosts(folder), user="root", port=port, pkey=str(folder / "user"), pool_size=width, allow_agent=False,
        identity_auth=False,
    )  # fmt: skip
    output = client.run_command("true")
    client.join(output)
    return sum(one.exit_code != 0 for one in output)


def _hosts(folder: Path) -> list[str]:
    return (folder / "hosts").read_text().split()


if __name__ == "__main__":
    side = {"ours": ours, "libssh2": libssh2}[sys.argv[1]]
    failed = side(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    if failed:
        print(f"{failed} nodes failed", file=sys.stderr)
    sys.exit(bool(failed))
