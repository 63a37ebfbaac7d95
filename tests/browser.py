"""A headless Chromium without a network, for tests of pages; None where there is none on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name has an address
    "--window-size=1400,1000",
)
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = (
    ""
    if CHROMIUM and DRIVER and importlib.util.find_spec("selenium")
    else "needs Chromium and its driver, which scripts/browser installs, and selenium"
)


@contextmanager
def browser(folder: Path) -> Iterator[Any]:
    """A browser with a new profile in a folder, which logs what pages print and ask for."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with mock.patch.dict(os.environ, SE_OFFLINE="true"):  # selenium fetches no drivers
        driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()
