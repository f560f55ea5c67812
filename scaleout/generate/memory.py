"""How much memory this process may still take: the machine's, or what its container leaves it."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes. The smaller of what the kernel calls available and what the control group has left."""
    return min(_machine(), *_control_groups())


def _machine() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _control_groups() -> list[int]:
    """Limit less use, for versions 2 and 1 of Linux control groups. Version 1 writes a huge number for "no limit", 2 says `max`."""
    left = [1 << 62]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        files = [Path("/sys/fs/cgroup") / name for name in (limit, used)]
        if all(file.exists() for file in files):
            words = [file.read_text().strip() for file in files]
            if all(word.isdigit() for word in words):
                left.append(int(words[0]) - int(words[1]))
    return left
