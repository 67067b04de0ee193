"""Freed memory stays with the process, and only then."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
from lbdn.memory import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024

if sys.argv[1] == "kept":
    keep_freed_memory()
before = resident()
images = torch.ones(2**25)
del images
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is the one that is told")
@pytest.mark.parametrize(("mode", "kept"), [("kept", True), ("default", False)])
def test_a_process_keeps_what_a_large_tensor_took(mode: str, kept: bool) -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    assert (int(result.stdout) > 100) == kept  # of the tensor's 128 MiB
