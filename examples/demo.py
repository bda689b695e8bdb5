"""What `make demo` runs: two real checkpoints to verified bundles, bundles over pictures, and a language model. CPU, no
network.

1. A trained detector (DEIM, official training layout, in this repository) finds digits and is scored against ground
   truth. 2. DINOv2-S (from a package) embeds the same pictures; similar ones find each other. 3. SmolLM2-135M (from a
   package, 4-bit GGUF) answers questions; what their prompts have in common is computed once.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from rich.console import Console
from rich.table import Table

from vtk import LLM, SamplingParams
from vtk.assets import sample_pictures
from vtk.cli.main import main as vtk
from vtk.demo_weights import dinov2_small, smollm2
from vtk.errors import VtkError
from vtk.preprocess.decode import decode

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden"
OUT = ROOT / "demo"
MATCH_IOU = 0.5
MIN_SCORE = 0.5
NOTES = """Here are the notes about our office.
The office opens at 8 in the morning and closes at 6 in the evening. The kitchen is on the second floor, next to the
stairs. Coffee is free and lunch costs 5 dollars. The printer is in room 12. The meeting room is room 31 and must be
booked with Anna. The key of the bicycle cellar hangs behind the front door. The wireless network is called Heron.
Parking is behind the house, and visitors park on the street. On Friday the team has breakfast together at 9."""
QUESTIONS = (
    "When does the office open?",
    "What does lunch cost?",
    "Where is the printer?",
    "What is the name of the wireless network?",
)
console = Console()


def run(command: str) -> None:
    """One command as a user would type it, in this process."""
    console.print(f"\n[bold cyan]$ vtk {command}[/]", highlight=False)
    code = vtk(shlex.split(command))
    if code:
        sys.exit(code)


def shown(path: Path) -> str:
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def detect() -> Path:
    """Export the trained detector, verify, run it; returns the job's folder."""
    bundle, job = OUT / "toy-deim", OUT / "digits"
    run(f"inspect {shown(GOLDEN / 'toy_deim.pth')} --family deim --labels {shown(GOLDEN / 'toy_labels.json')}")
    run(
        f"export {shown(GOLDEN / 'toy_deim.pth')} -o {shown(bundle)} --onnx --batch 1,8 --family deim "
        f"--labels {shown(GOLDEN / 'toy_labels.json')}"
    )
    run(f"verify {shown(bundle)}")
    run(f"run {shown(bundle)} {shown(GOLDEN / 'toy_images')} -o {shown(job)} --format jsonl,coco,annotated")
    return job


def score(job: Path) -> Table:
    """Found and missed digits per picture, against the ground truth: class and IoU of 0.5, one box to one digit."""
    truth = json.loads((GOLDEN / "toy_annotations.json").read_text())
    names = {image["id"]: Path(image["file_name"]).name for image in truth["images"]}
    boxes: dict[str, list[tuple[int, list[float]]]] = {name: [] for name in names.values()}
    for item in truth["annotations"]:
        x, y, w, h = item["bbox"]
        boxes[names[item["image_id"]]].append((item["category_id"], [x, y, x + w, y + h]))
    title = f"Detections with a score above {MIN_SCORE} against ground truth, IoU {MATCH_IOU}"
    table = Table("picture", "digits", "found", "found twice", "false", "best score", title=title)
    totals = [0, 0, 0, 0]
    for line in (job / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        name = Path(row["path"]).name
        confident = [item for item in row["detections"] if item["score"] > MIN_SCORE]
        counts = (len(boxes[name]), *tally(confident, boxes[name]))
        table.add_row(name, *map(str, counts), f"{max((item['score'] for item in confident), default=0.0):.2f}")
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    table.add_section()
    table.add_row("all", *map(str, totals), "")
    return table


def tally(items: list[dict[str, object]], truth: list[tuple[int, list[float]]]) -> tuple[int, int, int]:
    """Digits found, boxes on a digit that was found already, boxes on none; the surest box of a digit counts first."""
    found: set[int] = set()
    twice = false = 0
    for item in items:
        on = [index for index, (label, box) in enumerate(truth) if hits(item, label, box)]
        new = [index for index in on if index not in found]
        found.update(new[:1])
        twice += bool(on and not new)
        false += not on
    return len(found), twice, false


def hits(item: dict[str, object], label: int, box: list[float]) -> bool:
    """Same class and IoU of at least 0.5."""
    one, other = np.array(item["bbox_xyxy"], float), np.array(box)
    inside = np.clip(np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2]), 0, None).prod()
    union = (one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - inside
    return item["class_id"] == label and bool(inside / union >= MATCH_IOU)


def embed() -> Table:
    """DINOv2 over four photographs and a mirrored detail of each: every view should find its other view."""
    views = OUT / "views"
    views.mkdir(parents=True)
    for path in sample_pictures():
        picture = decode(path)
        h, w = picture.shape[0] // 8, picture.shape[1] // 8
        for name, view in (("whole", picture), ("detail_mirrored", picture[h:-h, -w:w:-1])):
            Image.fromarray(view).save(views / f"{path.stem}_{name}.png")
    weights = dinov2_small(OUT / "dinov2_s.safetensors")
    bundle, job = OUT / "dinov2-s", OUT / "embeddings"
    run(f"export {shown(weights)} -o {shown(bundle)} --onnx --batch 1,8")
    run(f"run {shown(bundle)} {shown(views)} -o {shown(job)} --format parquet")
    rows = pq.read_table(next(job.glob("*.parquet"))).to_pylist()
    vectors = np.array([row["pooled"] for row in rows])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T - 2 * np.eye(len(rows))
    table = Table("picture", "most similar", "cosine", title="DINOv2-S: the most similar other view")
    for row, best, cosine in zip(rows, similarity.argmax(1), similarity.max(1), strict=True):
        table.add_row(Path(row["path"]).name, Path(rows[best]["path"]).name, f"{cosine:.3f}")
    return table


def talk() -> Table:
    """A question from the command line, then four about one text: only the first computes the text."""
    model = smollm2()
    run(f"generate {shown(model)} --chat --temperature 0 --prompt 'What is the capital of France?'")
    params = SamplingParams(temperature=0, max_tokens=32, stop=(".",), include_stop_str_in_output=True)
    title = "SmolLM2-135M: questions about one text"
    table = Table("question", "prompt tokens", "from cache", "TTFT", "tokens/s", "answer", title=title)
    with LLM(model, max_model_len=2048) as llm:
        for question in QUESTIONS:
            (result,) = llm.chat([{"role": "user", "content": f"{NOTES}\n\n{question} Answer briefly."}], params)
            times = result.timings
            counts = (str(result.num_prompt_tokens), str(result.num_cached_tokens))
            speed = (f"{times.ttft:.2f} s", f"{times.tokens_per_second:.1f}")
            table.add_row(question, *counts, *speed, result.outputs[0].text)
    return table


def contact_sheet(job: Path, out: Path, columns: int = 6, cell: int = 200) -> None:
    """All annotated pictures on one page."""
    paths = sorted((job / "annotated").iterdir())
    sheet = Image.new("RGB", (columns * cell, -(-len(paths) // columns) * cell), "white")
    for i, path in enumerate(paths):
        with Image.open(path) as picture:
            picture.thumbnail((cell - 6, cell - 6))
            sheet.paste(picture, ((i % columns) * cell + 3, (i // columns) * cell + 3))
    sheet.save(out, quality=85)


def main() -> None:
    started = time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    job = detect()
    detections, neighbors, answers = score(job), embed(), talk()
    contact_sheet(job, OUT / "contact_sheet.jpg")
    console.print("", detections, neighbors, answers, sep="\n")
    console.print(
        f"annotated pictures  {shown(job / 'annotated')}\ncontact sheet       {shown(OUT / 'contact_sheet.jpg')}"
    )
    console.print(f"bundles             {shown(OUT / 'toy-deim')}, {shown(OUT / 'dinov2-s')}")
    console.print(f"done in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except VtkError as error:
        sys.exit(str(error))
