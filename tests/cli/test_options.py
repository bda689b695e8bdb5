from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from vtk.cli.options import add_model_arguments, model_options, parse_size, read_labels
from vtk.errors import UsageError
from vtk.exporters.family import FamilyOptions


def parse(*argv: str) -> FamilyOptions:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_model_arguments(parser)
    return model_options(parser.parse_args(argv))


def test_nothing_given_leaves_every_choice_open() -> None:
    assert parse() == FamilyOptions()


def test_every_option_arrives(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("zero\none\n")
    argv = [
        "--family",
        "deim",
        "--size",
        "480,640",
        "--timm-name",
        "resnet18",
        "--num-queries",
        "100",
        "--pretrain-data",
        "sat",
        "--feature-blocks",
        "3,7,11",
        "--labels",
    ]
    assert parse(*argv, str(labels)) == FamilyOptions(
        "deim", (480, 640), "resnet18", "sat", 100, ("zero", "one"), (3, 7, 11)
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("480,640", (480, 640)), ("480x640", (480, 640)), (" 480 , 640 ", (480, 640)), ("256", (256, 256))],
)
def test_size(text: str, size: tuple[int, int]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0,640", "-1,5", "640,", "640,640,3", "a,b", "1e3", "999999", "٣٢,٣٢x"])
def test_a_wrong_size_says_what_is_expected(text: str) -> None:
    with pytest.raises(UsageError, match=r"HEIGHT,WIDTH.*480,640"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "a", "1,", "1,,2", "-1,2", "1.5", "99999", "٣"])
def test_wrong_numbers_of_blocks_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="whole numbers with commas"):
        parse(f"--feature-blocks={text}")


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5", ""])
def test_a_wrong_number_of_queries_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="whole number above 0"):
        parse(f"--num-queries={text}")


@pytest.mark.parametrize(
    "text",
    [
        "person\nbicycle\né car\n",
        "\ufeffperson\r\nbicycle\r\né car\r\n",
        json.dumps(["person", "bicycle", "é car"]),
        json.dumps({"2": "é car", "0": "person", "1": "bicycle"}),
    ],
)
def test_labels_of_every_kind_read_the_same(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels"
    path.write_bytes(text.encode())
    assert read_labels(path) == ("person", "bicycle", "é car")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "every class a name"),
        (b"a\n\nb", "every class a name"),
        (b'["a", 3]', "every class a name"),
        (b'{"1": "a", "2": "b"}', "keys 0 to 1"),
        (b'["a"', "not valid JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
        (b'["one\\ntwo"]', r"control characters .* 'one\\ntwo'"),
        (b'["\\ud800"]', "half a character"),
        (b"a\n\x1b[31mred", "control characters"),
    ],
)
def test_a_wrong_labels_file_is_one_clear_line(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=match):
        read_labels(path)


def test_a_missing_labels_file_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.txt cannot be read: No such file"):
        read_labels(tmp_path / "gone.txt")
