"""A headless Chromium that opens pages from files. Tests are skipped if Chromium or selenium is missing."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage",
    "--window-size=1300,900",
)  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Yield a browser with an empty profile in the folder. Skips the test if Chromium, its driver or selenium is
    missing."""
    pytest.importorskip("selenium", reason="selenium is not installed: pages are not tried in a browser")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("Chromium and chromedriver are not installed: pages are not tried in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (*ARGUMENTS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(found, folder)
    finally:
        found.quit()


class Browser:
    """One page at a time, its console messages, and its network requests."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self._folder = folder
        self.requests: list[str] = []

    def open(self, text: str) -> None:
        """Write a page to a file, open it, and wait until its scripts have drawn it."""
        from selenium.webdriver.support.wait import WebDriverWait

        path = self._folder / "page.html"
        path.write_text(text, "ascii")
        self.console()
        self._listen()
        self.requests.clear()
        self.driver.get(path.as_uri())
        WebDriverWait(self.driver, 60).until(lambda _: self.ask("return 'ready' in document.documentElement.dataset"))
        self._listen()

    def _listen(self) -> None:
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            # Chromium's initial tab may still be loading its own page.
            if not message["params"]["documentURL"].startswith("chrome://"):
                self.requests.append(message["params"]["request"]["url"])

    def console(self) -> list[str]:
        """Return the new console messages: script errors and violations of the content security policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def ask(self, script: str, *arguments: Any) -> Any:
        """Run a script and return the value of its ``return``."""
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        """Return the text of all matching elements, visible or not."""
        found: list[str] = self.ask(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector
        )
        return found

    def count(self, selector: str) -> int:
        return int(self.ask("return document.querySelectorAll(arguments[0]).length", selector))

    def attribute(self, selector: str, name: str) -> str | None:
        value: str | None = self.ask(
            "return document.querySelector(arguments[0]).getAttribute(arguments[1])", selector, name
        )
        return value

    def find(self, selector: str) -> Any:
        """Return an element that can be clicked and typed into."""
        from selenium.webdriver.common.by import By

        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, selector: str, *keys: str) -> None:
        """Focus an element and type. Keys are names from ``Keys`` or single characters."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        self.ask("document.querySelector(arguments[0]).focus()", selector)
        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def press_tab(self) -> None:
        """Move the focus to the next element."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.driver).send_keys(Keys.TAB).perform()

    def click(self, selector: str) -> None:
        """Scroll an element into view and click its middle with the mouse."""
        from selenium.webdriver.common.action_chains import ActionChains

        self.ask("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        ActionChains(self.driver).move_to_element(self.find(selector)).click().perform()

    def emulate(self, *, media: str = "", colours: str = "light") -> None:
        """Emulate print or screen, with dark or light colours."""
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def style(self, selector: str, name: str) -> str:
        """Return a computed style property."""
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        return str(self.ask(script, selector, name))
