"""A user's way through the page, in a real browser against a real server."""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from .conftest import Browser

Running = Any
TOY_IMAGES = Path(__file__).parents[2] / "data/golden/toy_images"
DIGITS = [TOY_IMAGES / name for name in ("000.jpg", "002.jpg", "003.png")]
MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>&amp;'
LAST_ANSWER = "document.querySelector('.turn.assistant:last-of-type"
STOP_AT_ONCE = """new MutationObserver(() => document.getElementById('stop').click())
  .observe(document.getElementById('turns'), {subtree: true, characterData: true})"""
DROP = """(() => {
  const transfer = new DataTransfer();
  for (const [name, data] of arguments[0])
    transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
  document.getElementById('drop').dispatchEvent(
    new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true}));
})()"""


def drop(browser: Browser, *pictures: tuple[str, bytes]) -> None:
    browser.js(DROP, [[name, base64.b64encode(data).decode()] for name, data in pictures])


def answered(browser: Browser, count: int) -> None:
    browser.wait("document.getElementById('vision-status').textContent.startsWith(arguments[0])", f"{count} of {count}")


def say(browser: Browser, text: str, *, max_tokens: int = 24) -> None:
    """Greedy, since a random model may end a sampled answer at any token."""
    browser.set_range("#temperature", 0)
    browser.js("document.getElementById('max-tokens').value = arguments[0]", max_tokens)
    browser.find("#question").send_keys(text, Keys.ENTER)
    browser.wait("document.getElementById('stop').hidden")


def last_figures(browser: Browser) -> dict[str, str]:
    names = browser.js(f"[...{LAST_ANSWER} .figures').children].map((e) => [...e.children].map((c) => c.textContent))")
    return dict(names)


def last_note(browser: Browser) -> str:
    return str(browser.js(f"{LAST_ANSWER} .note').textContent"))


def chart(browser: Browser, title: str) -> dict[str, Any]:
    script = """[...document.querySelectorAll('.chart')]
      .filter((c) => c.querySelector('h2').textContent === arguments[0])
      .map((c) => ({values: [...c.querySelectorAll('output')].map((o) => o.value),
                    paths: [...c.querySelectorAll('.line')].map((l) => l.getAttribute('d'))}))[0]"""
    found: dict[str, Any] = browser.js(script, title)
    return found


def heights(path: str) -> list[float]:
    """Of the points of a line, downwards from the top of the chart; 100 is the axis."""
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def pixel(browser: Browser, canvas: str, x: float, y: float) -> list[int]:
    """RGB at a place given in shares of the canvas."""
    script = """((c) => {
      const copy = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
      copy.drawImage(c, -Math.floor(arguments[1] * c.width), -Math.floor(arguments[2] * c.height));
      return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
    })(document.querySelector(arguments[0]))"""
    return list(browser.js(script, canvas, x, y))


def color_of(browser: Browser, class_id: int) -> list[int]:
    script = """((c) => { c.fillStyle = m.colorOf(a[0]); c.fillRect(0, 0, 1, 1);
      return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3); })(document.createElement('canvas').getContext('2d'))"""
    return list(browser.module("drawing.js", f"(async () => {script})()", class_id))


def near(a: list[int], b: list[int], tolerance: int = 2) -> bool:
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) <= tolerance


def press(browser: Browser, key: str) -> None:
    """Whatever has the focus gets it; sent to a file field by itself it would be the name of a file."""
    ActionChains(browser.driver).send_keys(key).perform()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("open-sesame\n")
    path.chmod(0o600)
    return path


def test_the_whole_tour(browser: Browser, start_server: Callable[..., Running], key_file: Path) -> None:
    server = start_server("--api-key", str(key_file))
    browser.open(server.url)
    ask_for_the_key(browser)
    browser.errors()  # those of the requests without a key
    talk(browser)
    look(browser)
    compare(browser)
    watch(browser)
    unload_and_load(browser)
    assert browser.errors() == []
    assert browser.hosts() == {server.url.removeprefix("http://")}


def ask_for_the_key(browser: Browser) -> None:
    browser.wait("document.getElementById('key-form').classList.contains('needed')")
    browser.find("#key").send_keys("open-sesame", Keys.ENTER)
    browser.choose("#chat-model", "tiny-llama")
    assert not browser.js("document.getElementById('key-form').classList.contains('needed')")
    assert browser.js("[Object.keys(localStorage).length, document.cookie]") == [0, ""]


def talk(browser: Browser) -> None:
    browser.wait("document.getElementById('metrics-status').textContent.startsWith('The last')")
    say(browser, "Hello there, this is the first message of a long conversation.")
    figures = last_figures(browser)
    assert figures["tokens"] == "24"
    assert figures["cached"].startswith("0 of ")
    assert last_note(browser) == "Ended at the limit of tokens."
    say(browser, "And a second one.")
    figures = last_figures(browser)
    cached, _, prompt = figures["cached"].partition(" of ")
    assert 0 < int(cached) < int(prompt)
    for name in ("TTFT", "ITL", "p95"):
        assert figures[name].endswith("s")
    assert len(browser.all(".turn.user")) == len(browser.all(".turn.assistant")) == 2


def look(browser: Browser) -> None:
    browser.find("#tab-vision").click()
    browser.choose("#vision-model", "toy-deim")
    drop(browser, *((path.name, path.read_bytes()) for path in DIGITS))
    answered(browser, 3)
    assert [element.text for element in browser.all(".picture strong")] == [path.name for path in DIGITS]
    assert "three" in browser.text(".picture .facts")


def compare(browser: Browser) -> None:
    browser.choose("#vision-model", "tiny-dino")
    browser.wait("[...document.querySelectorAll('.colors')].length === 3 && !document.querySelector('.colors[hidden]')")
    assert len(browser.all(".similarity tbody td")) == 9
    assert browser.js("document.getElementById('threshold-field').hidden")


def watch(browser: Browser) -> None:
    browser.find("#tab-metrics").click()
    browser.wait("document.querySelectorAll('.chart .line[d]').length === 13")
    before = chart(browser, "Requests")["paths"]
    browser.wait("document.querySelector('.chart .line').getAttribute('d') !== arguments[0]", before[0])
    for title in ("Time to first token", "Inter-token latency", "Prefix cache hits"):
        assert all(chart(browser, title)["paths"]), title
    for title in ("Tokens per second", "Pictures per second", "Device busy"):
        assert any(height < 100 for path in chart(browser, title)["paths"] for height in heights(path)), title


def unload_and_load(browser: Browser) -> None:
    browser.find("#tab-models").click()
    state = "document.querySelector('[data-model=\"tiny-dino\"] .state').textContent === arguments[0]"
    browser.wait("document.querySelectorAll('.model').length === 3")
    assert "Tensor digest" in browser.text('[data-model="toy-deim"]')
    browser.find('[aria-label="Unload tiny-dino"]').click()
    browser.wait(state, "unloaded")
    assert "tiny-dino" not in browser.text("#vision-model")
    browser.find('[aria-label="Load tiny-dino"]').click()
    browser.wait(state, "ready")
    browser.wait("document.getElementById('models-status').textContent === 'Load tiny-dino: done.'")
    browser.wait("document.activeElement.ariaLabel === 'Reload tiny-dino'")
    assert "prompts were in the cache" in browser.find("#doctor").text


def test_stop_ends_the_answer_here_and_on_the_server(browser: Browser, server: Running) -> None:
    browser.open(server.url)
    browser.choose("#chat-model", "tiny-llama")
    browser.js(STOP_AT_ONCE)
    say(browser, "Write until you are stopped.", max_tokens=1900)
    assert last_note(browser) == "Stopped."
    assert 0 < int(last_figures(browser)["tokens"]) < 1900
    aborted = 'm.increase(new Map(), m.parse(a[0]), "vllm:request_success_total", {finished_reason: "abort"})'
    with urllib.request.urlopen(f"{server.url}/metrics") as response:
        assert browser.module("prometheus.js", aborted, response.read().decode()) >= 1
    # The partial answer stays part of the conversation, which goes on.
    browser.open(server.url)
    say(browser, "Again.")
    assert last_figures(browser)["tokens"] == "24"
    assert browser.errors() == []


def test_boxes_are_drawn_where_the_server_found_them(browser: Browser, server: Running) -> None:
    browser.open(server.url, "vision")
    browser.choose("#vision-model", "toy-deim")
    browser.add_pictures(DIGITS[0])
    answered(browser, 1)
    data = base64.b64encode(DIGITS[0].read_bytes()).decode()
    answer = post(f"{server.url}/v1/vision/detect", {"images": [data], "model": "toy-deim"})["results"][0]
    best = answer["detections"][0]
    left, top, right, bottom = best["bbox_xyxy"]
    edges = [(left, (top + bottom) / 2), (right, (top + bottom) / 2), ((left + right) / 2, bottom)]
    color = color_of(browser, best["class_id"])

    def drawn() -> list[bool]:
        shares = [(x / answer["width"], y / answer["height"]) for x, y in edges]
        return [near(pixel(browser, ".picture canvas", x, y), color, 12) for x, y in shares]

    assert drawn() == [True] * 3
    assert browser.text(".picture .facts").startswith(f"{best['name']}\n")
    browser.set_range("#threshold", 1)
    assert drawn() == [False] * 3
    assert browser.text(".picture .facts") == ""
    assert browser.text("#threshold-value") == "1.00"
    browser.set_range("#threshold", 0.05)
    assert drawn() == [True] * 3
    assert browser.errors() == []


def test_the_picture_on_the_canvas_is_upright(browser: Browser, server: Running, tmp_path: Path) -> None:
    """Orientation 6: stored lying, shown standing, as the server reads it."""
    picture = Image.new("RGB", (80, 40), (250, 10, 10))
    picture.paste((10, 10, 250), (40, 0, 80, 40))
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "lying.png"
    picture.save(path, exif=exif)
    browser.open(server.url, "vision")
    browser.choose("#vision-model", "toy-deim")
    browser.add_pictures(path)
    answered(browser, 1)
    browser.set_range("#threshold", 1)
    assert browser.js("((c) => c.height / c.width)(document.querySelector('.picture canvas'))") == 2
    assert pixel(browser, ".picture canvas", 0.5, 0.1) == [250, 10, 10]
    assert pixel(browser, ".picture canvas", 0.5, 0.9) == [10, 10, 250]
    assert browser.text(".picture .note").startswith("40 × 80")


def test_patches_have_the_colors_of_the_route(browser: Browser, server: Running) -> None:
    browser.open(server.url, "vision")
    browser.choose("#vision-model", "tiny-dino")
    browser.add_pictures(*DIGITS[:2])
    browser.wait("document.querySelectorAll('.colors').length === 2 && !document.querySelector('.colors[hidden]')")
    images = [base64.b64encode(path.read_bytes()).decode() for path in DIGITS[:2]]
    script = """(async () => {
      const answer = await m.request('/console/api/pca', {body: {images: a[0], model: 'tiny-dino'}});
      const bitmap = await createImageBitmap(await answer.blob());
      const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
      canvas.drawImage(bitmap, 0, 0);
      return [...canvas.getImageData(0, 0, bitmap.width, bitmap.height).data];
    })()"""
    pixels = browser.module("api.js", script, images)
    assert len(pixels) == 4 * 8 * 4
    for row in range(8):
        for column in range(4):
            expected = pixels[4 * (4 * row + column) :][:3]
            canvas = f".picture:nth-child({1 + row // 4}) .colors"
            assert near(pixel(browser, canvas, (column + 0.5) / 4, (row % 4 + 0.5) / 4), expected)


def test_cosines_are_those_of_the_embeddings(browser: Browser, server: Running) -> None:
    browser.open(server.url, "vision")
    browser.choose("#vision-model", "tiny-dino")
    browser.add_pictures(*DIGITS[:2])
    browser.wait("document.querySelectorAll('.similarity tbody td').length === 4")
    images = [base64.b64encode(path.read_bytes()).decode() for path in DIGITS[:2]]
    a, b = (item["embedding"] for item in post(f"{server.url}/v1/vision/embed", {"images": images})["results"])
    dot, aa, bb = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, b), (a, a), (b, b)))
    shown = [float(cell.text) for cell in browser.all(".similarity tbody td")]
    assert shown == pytest.approx([1, dot / (aa * bb) ** 0.5, dot / (aa * bb) ** 0.5, 1], abs=6e-4)


def test_a_picture_that_cannot_be_used_is_told_and_the_others_are_answered(
    browser: Browser, server: Running, tmp_path: Path
) -> None:
    """Icons are pictures to the browser and not to the server."""
    icon, text = tmp_path / "icon.ico", tmp_path / "text.png"
    Image.new("RGB", (32, 32), (9, 200, 9)).save(icon)
    text.write_text("no picture")
    browser.open(server.url, "vision")
    browser.choose("#vision-model", "toy-deim")
    browser.add_pictures(icon, DIGITS[1])
    browser.wait("document.getElementById('vision-status').textContent.startsWith('1 of 2')")
    assert browser.all(".picture .note")[0].get_attribute("class") == "note error"
    assert "four" in browser.all(".picture .facts")[1].text
    browser.find("#clear-pictures").click()
    browser.add_pictures(icon)
    browser.wait("document.getElementById('vision-status').textContent.startsWith('0 of 1')")
    browser.add_pictures(text)
    browser.wait("document.getElementById('vision-status').textContent === 'The browser cannot show text.png.'")


def test_the_server_s_words_are_shown_when_it_refuses(browser: Browser, server: Running) -> None:
    browser.open(server.url)
    browser.choose("#chat-model", "tiny-llama")
    say(browser, "x", max_tokens=5000)
    assert "2048" in last_note(browser)
    assert last_figures(browser) == {}
    say(browser, "A turn that was refused is no part of the conversation.")
    assert last_figures(browser)["tokens"] == "24"


@pytest.fixture
def crafted(browser: Browser, server: Running) -> Iterator[Browser]:
    """A page whose server answers with markup everywhere that it can."""
    event = json.dumps({"choices": [{"delta": {"content": MARKUP}, "finish_reason": "stop"}], "usage": None})
    models = [{"id": MARKUP, "kind": kind, "task": "detect", "version": "1"} for kind in ("llm", "vision")]
    rows = [{"name": MARKUP, "version": "1", "state": "failed", "kind": "llm", "task": MARKUP, "reason": MARKUP}]
    split = {"prompts": 3, "character": 4, "kind": MARKUP, "hint": MARKUP, "before": MARKUP, "values": [MARKUP]}
    doctor = {"model": MARKUP, "prompts": 3, "hit_rate": 0.1, "divergences": [split]}
    found = {"name": MARKUP, "class_id": 0, "score": 0.9, "bbox_xyxy": [0, 0, 9, 9]}
    seconds = dict.fromkeys(("decode", "preprocess", "queue", "infer", "postprocess"), 0.001)
    result = {"index": 0, "width": 20, "height": 20, "detections": [found], "seconds": seconds}
    answers = {
        "/health": json.dumps({"status": MARKUP, "version": MARKUP, "models": rows}),
        "/v1/models": json.dumps({"data": models}),
        "/v1/chat/completions": f"data: {event}\n\ndata: [DONE]\n\n",
        "/v1/vision/detect": json.dumps({"results": [result], "seconds": 0.1}),
        "/debug/prefix": json.dumps([doctor]),
        "/metrics": f'vtk:model_bytes{{model_name="{MARKUP}"}} 1\n'.replace('"window.hacked=1"', ""),
    }
    script = f"const told = {json.dumps(answers)}; window.fetch = async (path) => new Response(told[path]);"
    added = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    browser.driver.get(f"{server.url}/console/#models")
    try:
        yield browser
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_markup_from_models_names_and_pictures_stays_text(crafted: Browser) -> None:
    crafted.choose("#chat-model", MARKUP)
    crafted.wait("document.querySelectorAll('#models .model').length === 1")
    assert MARKUP in crafted.text("#model-list")
    assert MARKUP in crafted.text("#doctor")
    crafted.find("#tab-chat").click()
    say(crafted, MARKUP)
    assert crafted.text(".turn.user .text") == crafted.text(".turn.assistant .text") == MARKUP
    crafted.find("#tab-vision").click()
    drop(crafted, (f"{MARKUP}.jpg", DIGITS[0].read_bytes()))
    answered(crafted, 1)
    assert crafted.text(".picture strong") == f"{MARKUP}.jpg"
    assert crafted.text(".picture .facts").startswith(MARKUP)
    assert crafted.all("main img, main script") == []
    assert crafted.js("window.hacked === undefined")
    assert crafted.errors() == []


def test_inline_scripts_and_markup_are_refused_by_the_browser(browser: Browser, server: Running) -> None:
    """What stops a mistake in the page: each of these fails without the policy."""
    browser.open(server.url)
    inject = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch (e) { return e.name; } })()"
    assert browser.js(inject) == "TypeError"
    script = "const s = document.createElement('script'); s.append('window.hacked = 1'); document.head.append(s)"
    browser.js(f"(() => {{ try {{ {script} }} catch {{}} }})()")
    assert browser.js("window.hacked === undefined")
    elsewhere = "fetch('http://127.0.0.2:9/').then(() => 'sent', (error) => error.name)"
    assert browser.module("format.js", elsewhere) == "TypeError"
    assert any("Content Security Policy" in message for message in browser.errors())


def test_a_keyboard_is_enough(browser: Browser, server: Running) -> None:
    browser.open(server.url, "vision")
    browser.choose("#vision-model", "toy-deim")
    browser.js("document.getElementById('tab-chat').focus()")
    order = []
    for _ in range(5):
        press(browser, Keys.ARROW_RIGHT)
        order.append(browser.js("document.activeElement.textContent"))
    assert order == ["Vision", "Metrics", "Models", "Chat", "Vision"]
    visible = browser.js("[...document.querySelectorAll('main > section')].filter((s) => !s.hidden).map((s) => s.id)")
    assert visible == ["vision"]
    reached = set()
    for _ in range(12):
        press(browser, Keys.TAB)
        reached.add(browser.js("document.activeElement.id"))
    assert {"key", "vision-model", "threshold", "clear-pictures", "files"} <= reached


def emulate(browser: Browser, command: str, **parameters: Any) -> None:
    browser.driver.execute_cdp_cmd(f"Emulation.{command}", parameters)


@pytest.mark.parametrize("view", ["chat", "vision", "metrics", "models"])
def test_a_telephone_is_wide_enough(browser: Browser, server: Running, view: str) -> None:
    emulate(browser, "setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    try:
        browser.open(server.url, view)
        if view == "vision":
            browser.choose("#vision-model", "tiny-dino")
            browser.add_pictures(*DIGITS)
            browser.wait("document.querySelector('.similarity')")
        elif view == "models":
            browser.wait("document.querySelectorAll('.model').length === 3")
        assert browser.js("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    finally:
        emulate(browser, "clearDeviceMetricsOverride")


CONTRAST = """(() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    const part = (i) => { const v = parseInt(hex.slice(i, i + 2), 16) / 255;
                          return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4);
  };
  return arguments[0].map(([a, b]) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  });
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_color_schemes(browser: Browser, server: Running, scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.3: at least 4.5 to 1."""
    emulate(browser, "setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        browser.open(server.url)
        page = browser.js("getComputedStyle(document.body).backgroundColor")
        assert page == {"light": "rgb(245, 246, 250)", "dark": "rgb(15, 17, 24)"}[scheme]
        pairs = [(text, ground) for text in ("--text", "--dim") for ground in ("--page", "--card", "--sunken")]
        pairs += [(text, "--card") for text in ("--good", "--warn", "--bad")] + [("--accent-text", "--accent")]
        assert min(browser.js(CONTRAST, pairs)) >= 4.5
    finally:
        emulate(browser, "setEmulatedMedia", features=[])


def test_every_control_has_a_name(browser: Browser, server: Running) -> None:
    browser.open(server.url, "models")
    browser.wait("document.querySelectorAll('.model').length === 3")
    nameless = [
        element.get_attribute("outerHTML")
        for element in browser.driver.find_elements(By.CSS_SELECTOR, "button, input, select, textarea")
        if element.is_displayed() and not element.accessible_name
    ]
    assert nameless == []
