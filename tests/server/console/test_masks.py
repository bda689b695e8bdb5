"""A promptable model in the page: what is asked for, and its masks where the server found them."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.keys import Keys

from vtk.postprocess.rle import pack_counts, unpack_counts

if TYPE_CHECKING:
    from .conftest import Browser

Running = Any
CENTER = """((c, x, y) => {
  const copy = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  copy.drawImage(c, -Math.floor(x * c.width), -Math.floor(y * c.height));
  return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
})(document.querySelector('.picture canvas'), arguments[0], arguments[1])"""


@pytest.fixture
def sam_server(start_server: Callable[..., Running], prompted_bundle: Path, tmp_path: Path) -> Running:
    shutil.copytree(prompted_bundle, tmp_path / "models" / "sam")
    return start_server("--no-verify-on-load", "--vision", models=tmp_path / "models")


def test_run_lengths_are_read_as_they_are_written(browser: Browser, sam_server: Running) -> None:
    browser.open(sam_server.url)
    rng = np.random.default_rng(3)
    counts = [rng.integers(0, 10 ** rng.integers(1, 7), rng.integers(1, 40)) for _ in range(20)]
    for values in counts:
        packed = pack_counts(values.astype(np.int64)).decode()
        assert browser.module("masks.js", "m.runLengths(a[0])", packed) == values.tolist()


def test_masks_are_drawn_where_the_server_found_them(browser: Browser, sam_server: Running, tmp_path: Path) -> None:
    """The left half is bright: the first mask of the model is where the picture is brighter than gray."""
    pixels = np.full((48, 96, 3), 40, np.uint8)
    pixels[:, :48] = 220
    path = tmp_path / "half.png"
    Image.fromarray(pixels).save(path)
    browser.open(sam_server.url, "vision")
    browser.choose("#vision-model", "sam")
    assert not browser.js("document.getElementById('prompts-field').hidden")
    browser.add_pictures(path)
    browser.wait("document.getElementById('vision-status').textContent === 'Say what to look for.'")
    browser.find("#prompts").send_keys("yellow bus, cat", Keys.ENTER)
    browser.wait("document.getElementById('vision-status').textContent.startsWith('1 of 1')")
    assert set(browser.text(".picture .facts").split("\n")[::2]) == {"yellow bus", "cat"}
    body = {"images": [base64.b64encode(path.read_bytes()).decode()], "prompts": ["yellow bus", "cat"]}
    request = urllib.request.Request(
        f"{sam_server.url}/v1/vision/segment", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        best = json.load(response)["results"][0]["detections"][0]
    covered = unpack_counts(best["segmentation"]["counts"].encode())
    assert covered[1] > 0
    browser.set_range("#threshold", best["score"] - 0.001)
    inside, outside = browser.js(CENTER, 0.42, 0.8), browser.js(CENTER, 0.9, 0.9)
    assert outside == [40, 40, 40]
    assert inside != [220, 220, 220]
    browser.set_range("#threshold", 1)
    assert browser.js(CENTER, 0.42, 0.8) == [220, 220, 220]
    assert browser.errors() == []
