"""Memory for large tensors on a CPU."""

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors for the next ones, where its C library is glibc.

    By itself glibc gives blocks of 32 MiB and more back to the system, which clears every page of the next one: for
    convolutions on a batch of images up to half of the time. The process then holds its peak until it ends.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never
