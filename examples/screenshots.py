"""The pictures of the console in the README, taken from a running server with Debian's Chromium.

vtk pull-demo && vtk serve --port 8000
python examples/screenshots.py http://127.0.0.1:8000 examples/images
"""

from __future__ import annotations

import base64
import io
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

ROOT = Path(__file__).resolve().parents[1]
DIGITS = [ROOT / f"tests/data/golden/toy_images/{name}" for name in ("000.jpg", "002.jpg", "003.png")]
PHOTOS = [ROOT / f"vtk/assets/pictures/{name}" for name in ("chelsea.png", "coffee.jpg", "rocket.jpg")]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SYSTEM = "You are a helpful assistant who answers in a few short sentences and never makes things up."
MAX_BYTES = 150_000
TALKERS = 4
QUESTIONS = ("What is a prefix cache of a language model?", "Name three animals that live in the sea.")


class Tour:
    def __init__(self, driver: webdriver.Chrome, url: str, out: Path) -> None:
        self.driver, self.url, self.out = driver, url, out

    def show(self, view: str) -> None:
        self.driver.find_element(By.ID, f"tab-{view}").click()

    def wait(self, expression: str) -> None:
        WebDriverWait(self.driver, 120).until(lambda driver: driver.execute_script(f"return {expression}"))

    def pick(self, select: str, part: str) -> None:
        self.wait(f"[...document.querySelectorAll('#{select} option')].some((o) => o.value.includes('{part}'))")
        options = Select(self.driver.find_element(By.ID, select))
        options.select_by_value(next(o.text for o in options.options if part in o.text))

    def save(self, name: str) -> None:
        """With 256 colors where more would be too large for a README."""
        shot = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"console_{name}.png"
        shot.save(path, optimize=True)
        if path.stat().st_size > MAX_BYTES:
            shot.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")

    def ask(self, question: str) -> None:
        self.driver.find_element(By.ID, "question").send_keys(question + "\n")
        self.wait("document.getElementById('stop').hidden")

    def chat(self) -> None:
        self.pick("chat-model", "smollm2")
        self.driver.find_element(By.ID, "system").send_keys(SYSTEM)
        self.driver.execute_script("document.getElementById('max-tokens').value = 80")
        for question in QUESTIONS:
            self.ask(question)
        self.save("chat")

    def pictures(self, model: str, paths: list[Path], name: str) -> None:
        self.show("vision")
        self.driver.find_element(By.ID, "clear-pictures").click()
        self.pick("vision-model", model)
        self.driver.find_element(By.ID, "files").send_keys("\n".join(map(str, paths)))
        self.wait(f"document.getElementById('vision-status').textContent.startsWith('{len(paths)} of')")
        self.driver.execute_script("window.scrollTo(0, 0)")
        time.sleep(1)
        self.save(name)

    def metrics(self) -> None:
        """Three minutes of mixed work, and the charts that it drew."""
        self.show("metrics")
        end = time.monotonic() + 180
        with ThreadPoolExecutor(TALKERS + 1) as pool:
            for worker in range(TALKERS):
                pool.submit(self.talk, end, worker)
            pool.submit(self.look, end)
            time.sleep(end - time.monotonic())
            self.save("metrics")

    def talk(self, end: float, worker: int) -> None:
        """Conversations that begin alike, now and then."""
        chance = random.Random(worker)
        while time.monotonic() < end:
            messages = [{"role": "system", "content": SYSTEM}]
            for question in chance.sample(QUESTIONS, len(QUESTIONS)):
                messages.append({"role": "user", "content": question})
                body = {"model": "smollm2", "messages": messages, "max_tokens": chance.randint(16, 96)}
                answer = self.post("/v1/chat/completions", body)
                messages.append(answer["choices"][0]["message"])
                time.sleep(chance.uniform(0, 12))

    def look(self, end: float) -> None:
        """Bursts of pictures."""
        pictures = [base64.b64encode(path.read_bytes()).decode() for path in DIGITS]
        while time.monotonic() < end:
            for _ in range(random.randint(1, 8)):
                self.post("/v1/vision/detect", {"model": "toy-deim", "images": pictures})
            time.sleep(random.uniform(1, 8))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as response:
            return json.load(response)


def main(url: str, out: Path) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,1000"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            driver.get(f"{url}/console/")
            tour = Tour(driver, url, out)
            tour.chat()
            tour.pictures("dinov2", PHOTOS, "features")
            tour.pictures("toy", DIGITS, "vision")
            tour.metrics()
        finally:
            driver.quit()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: screenshots.py URL OUT")
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
