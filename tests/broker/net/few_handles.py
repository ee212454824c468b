"""Runs a real broker with `BALLAST_TEST_HANDLES` ("soft" or "soft hard") as its limit of open files."""

from __future__ import annotations

import os
import resource
import sys

from ballast_broker import __main__

if __name__ == "__main__":
    soft, *hard = map(int, os.environ["BALLAST_TEST_HANDLES"].split())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, *(hard or resource.getrlimit(resource.RLIMIT_NOFILE)[1:])))
    sys.exit(__main__.main())
