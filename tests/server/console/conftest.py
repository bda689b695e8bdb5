"""Debian's Chromium, headless, over a real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--window-size=1280,900",
)  # fmt: skip
PATIENCE = 60


class Browser:
    """What a user does and sees. `errors` and `hosts` are of the time since they were asked last."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, view: str = "chat") -> None:
        """The page anew, without what an earlier test left; its views have heard from the server."""
        self.driver.get("about:blank")
        self.driver.get(f"{url}/console/#{view}")
        self.wait("document.getElementById('server').dataset.state !== 'starting'")

    def js(self, expression: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {expression}", *arguments)

    def module(self, name: str, expression: str, *arguments: Any) -> Any:
        """The value of `expression`, in which the module of that name is `m` and the arguments are `a`."""
        script = (
            "const [...a] = arguments, done = a.pop();"
            f"import('/console/{name}').then((m) => {expression}).then(done, (error) => done(String(error)));"
        )
        return self.driver.execute_async_script(script, *arguments)

    def wait(self, expression: str, *arguments: Any) -> Any:
        """The value of the expression once it is true."""
        wait = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1)
        return wait.until(lambda driver: self.js(expression, *arguments), f"never true: {expression}")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def choose(self, selector: str, name: str) -> None:
        """An option, as soon as the server has told that it exists."""
        condition = "[...document.querySelector(arguments[0]).options].some((o) => o.value === arguments[1])"
        self.wait(condition, selector, name)
        Select(self.find(selector)).select_by_value(name)

    def set_range(self, selector: str, value: float) -> None:
        self.js(
            "(() => { const e = document.querySelector(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('input', {bubbles: true})); })()",
            selector,
            str(value),
        )

    def add_pictures(self, *paths: Path) -> None:
        self.find("#files").send_keys("\n".join(map(str, paths)))

    def errors(self) -> list[str]:
        """What the browser's console complains about."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def hosts(self) -> set[str]:
        """Every host that anything was asked of."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in sent if urlsplit(url).scheme not in ("about", "data", "blob")}


@pytest.fixture(scope="session")
def session_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(PATIENCE)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture
def browser(session_browser: Browser) -> Browser:
    """A browser with an empty log, in which no test has typed a key."""
    session_browser.driver.get("about:blank")
    session_browser.errors()
    session_browser.hosts()
    return session_browser
