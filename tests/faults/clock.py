"""A clock for some processes that can be set: a library that is loaded before all others (``LD_PRELOAD``).

It adds the number of seconds that a file holds to the time of day; the monotonic clock stays, as when
somebody sets a machine's clock.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

FILE = "BOUQUET_CLOCK_FILE"
SOURCE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long none, *shift = &none;
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("BOUQUET_CLOCK_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) shift = page;
  close(file);
}
int clock_gettime(clockid_t id, struct timespec *t) {
  int failed = syscall(SYS_clock_gettime, id, t);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += *shift;
  return failed;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  int failed = syscall(SYS_gettimeofday, t, zone);
  if (!failed && t) t->tv_sec += *shift;
  return failed;
}
time_t time(time_t *at) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (at) *at = t.tv_sec;
  return t.tv_sec;
}
"""


def possible() -> str:
    """Return why there can be no such clock here, "" if there can."""
    return "" if shutil.which("cc") else "it needs a C compiler, for a clock that can be set"


@dataclass(frozen=True)
class Clock:
    """A clock; it shows the right time at first.

    Args:
        folder: For the library and the file.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.set(0)
        source = self.folder / "clock.c"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, source], check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        """What processes that follow it need in their environment."""
        return {"LD_PRELOAD": str(self._library), FILE: str(self.folder / "seconds")}

    @property
    def _library(self) -> Path:
        return self.folder / "clock.so"

    def set(self, seconds: int) -> None:
        """Show another time from now on, so much ahead."""
        path = self.folder / "seconds"
        with path.open("r+b" if path.exists() else "wb") as file:  # in place: the file is mapped
            file.write(struct.pack("l", seconds))
