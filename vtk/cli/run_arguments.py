"""The options of `vtk run`, group by group."""

from __future__ import annotations

import argparse
from pathlib import Path

from vtk.cli.values import count, fraction, positive, seconds
from vtk.engines.open import ALL_BACKENDS


def add_result_arguments(group: argparse._ArgumentGroup) -> None:
    """What is kept of the results, and in which files."""
    group.add_argument(
        "--format",
        metavar="NAME,…",
        default="",
        help="boxes: jsonl (default), coco, yolo, csv, parquet, crops, annotated, video, html; with masks also masks; "
        "classes: jsonl (default), csv, parquet, html; embeddings: parquet (default), npz, html",
    )
    group.add_argument(
        "--prompt",
        metavar="TEXT",
        action="append",
        default=[],
        help="promptable models: find all that is so called, as in --prompt 'yellow bus' (repeatable)",
    )
    group.add_argument(
        "--boxes", metavar="FILE", type=Path, help="promptable models: JSON with boxes around examples, by picture"
    )
    group.add_argument(
        "--points", metavar="FILE", type=Path, help="SAM3 with its tracker: JSON with points on objects, by picture"
    )
    group.add_argument("--score", metavar="X", type=fraction, help="keep detections with a score above X")
    group.add_argument("--classes", metavar="NAME|INDEX,…", help="keep these classes, by name or class index")
    group.add_argument(
        "--max-detections", metavar="N", type=positive, help="at most N detections per picture, or per prompt"
    )
    group.add_argument("--top-k", metavar="N", type=positive, help="classification: the N best classes")
    group.add_argument("--patches", action="store_true", help="embedding: also store dense features")
    group.add_argument("--coco-images", metavar="FILE", type=Path, help="take image ids from this COCO file")


def add_picture_arguments(group: argparse._ArgumentGroup) -> None:
    """How pictures are decoded."""
    group.add_argument("--allow-truncated", action="store_true", help="use what there is of a cut-off file")
    group.add_argument(
        "--alpha", metavar="COLOR", default="drop", help="lay transparent pictures on COLOR (default: drop alpha)"
    )
    group.add_argument(
        "--fast-decode",
        action="store_true",
        help="decode JPEG at 1/2, 1/4 or 1/8 where the input size is left: a level of 255 off on average, 20 at most",
    )
    group.add_argument(
        "--decode",
        choices=("cpu", "gpu"),
        default="cpu",
        help="gpu: the usual JPEG files by nvJPEG, other and broken ones on the CPU; pixels differ slightly from the "
        "CPU's. Not yet tried on a GPU (default: cpu)",
    )
    group.add_argument("--max-pixels", metavar="N", type=positive, help="refuse pictures with more pixels")


def add_engine_arguments(group: argparse._ArgumentGroup) -> None:
    """What runs the model."""
    group.add_argument(
        "--batch",
        metavar="N",
        type=positive,
        help="one of the bundle's batch sizes (default: on a GPU the largest, else 1)",
    )
    group.add_argument("--backend", choices=ALL_BACKENDS, default="auto", help="engine (default: auto)")
    group.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu, cuda, … (default: auto)")
    group.add_argument(
        "--workers", metavar="N", type=positive, help="threads that load pictures (default: half more than cores)"
    )
    group.add_argument(
        "--engine-threads",
        metavar="N",
        type=positive,
        help="threads per batch; cores / N batches run at once (default: 1, more beyond 8 cores)",
    )
    group.add_argument("--profile", action="store_true", help="print the time of every stage and what bounds the run")
    group.add_argument("--cpu-affinity", metavar="CPUS", help="cores to use: 0-3,8, or node0 for those of a NUMA node")


def add_job_arguments(group: argparse._ArgumentGroup) -> None:
    """Which part is done here, and when it ends."""
    group.add_argument("--shard", metavar="I/N", help="do part I of N, then 'vtk merge' the folders of all parts")
    group.add_argument("--dedupe", action="store_true", help="compute pictures of equal bytes once")
    group.add_argument("--max-errors", metavar="N", type=count, help="stop after more than N failed (default: never)")
    group.add_argument("--keep-going", action="store_true", help="exit 0 although pictures failed")
    group.add_argument("--overwrite", action="store_true", help="delete the results of the job in OUT and start again")
    group.add_argument(
        "--watch", metavar="DIR", type=Path, help="instead of INPUT: take pictures as they come into DIR, until stopped"
    )
    group.add_argument(
        "--settle",
        metavar="SECONDS",
        type=seconds,
        help="--watch: a file unchanged for so long is whole (default: 2)",
    )
    group.add_argument(
        "--idle-timeout", metavar="SECONDS", type=seconds, help="--watch: end when nothing came for that long"
    )
