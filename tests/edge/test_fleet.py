"""How many files a fleet may open: the soft limit is raised as far as it is needed, and what does not fit is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import resource, sys
from recover.edge.fleet import descriptors
soft, hard, targets, jobs = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
room = descriptors(targets, jobs)
print(room.jobs, room.keeps, resource.getrlimit(resource.RLIMIT_NOFILE)[0], room.says)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "targets", "jobs", "told"),
    [
        (256, 4096, 10, 32, "32 True 256 "),
        (256, 4096, 400, 32, "32 True 3264 "),
        (256, 4096, 5000, 32, "32 False 4096 5000 targets need up to 40064 open files and the limit is 4096"),
        (128, 128, 100, 32, "8 False 128 100 targets need up to 864 open files and the limit is 128"),
    ],
)
def test_open_files(soft: int, hard: int, targets: int, jobs: int, told: str) -> None:
    words = [sys.executable, "-c", ASK, *map(str, (soft, hard, targets, jobs))]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(told)
