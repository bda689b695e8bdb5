"""Put the shards of a job together: the folder that one run over all pictures would have left.

Every shard must be finished. Exit code: 0 all pictures done, 1 some had failed (0 with --keep-going), 2 the folders
are not all shards of one job.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "put the shards of a job together"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SHARD… -o OUT."""
    parser.add_argument(
        "shards", metavar="SHARD", nargs="+", type=Path, help="folder of 'vtk run --shard I/N', all of 1/N to N/N"
    )
    parser.add_argument("-o", "--out", metavar="OUT", type=Path, required=True, help="folder of the whole job")
    parser.add_argument("--keep-going", action="store_true", help="exit 0 although pictures failed")
    parser.add_argument("--overwrite", action="store_true", help="delete the results of the job in OUT and start again")


def run(args: argparse.Namespace) -> int:
    """Merge and print; returns the exit code."""
    from vtk.cli.run import exit_code
    from vtk.cli.run_screen import print_summary, progress, told_how_to_go_on
    from vtk.cli.terminal import console
    from vtk.merging import merge_jobs, read_shards
    from vtk.sinks.registry import output_paths

    shards = read_shards(args.shards)
    screen = console(stderr=True)
    with progress(screen, sum(shard.pictures for shard in shards)) as on_progress, told_how_to_go_on(screen):
        summary = merge_jobs(shards, args.out, on_progress, overwrite=args.overwrite)
    outputs = output_paths(shards[0].request["formats"], shards[0].job.task)
    print_summary(console(), summary, args.out, outputs)
    return exit_code(summary, keep_going=args.keep_going)
