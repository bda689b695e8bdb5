"""Input expansion: which pictures, in which order, under which names (cases V45 and V55)."""

import gc
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.errors import InputError
from vtk.inputs import expand
from vtk.naming import output_name, repeated, stems_alone, utf8
from vtk.strings import Strings


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def output_names(file_names: list[str]) -> list[str]:
    alone = stems_alone(file_names)
    return [output_name(name, alone=bool(is_alone)) for name, is_alone in zip(file_names, alone, strict=True)]


def names(*inputs: str | Path, exclude: Path | None = None) -> list[str]:
    return [item.file_name for item in expand([str(text) for text in inputs], exclude=exclude).items]


def outputs(*inputs: str | Path) -> dict[str, str]:
    return {item.file_name: item.output for item in expand([str(text) for text in inputs]).items}


def test_a_folder_is_walked_sorted_and_by_suffix(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.PNG", "b/1.jpg", "a.webp", "c.txt", "d.json", "e.json", "noext", ".x.jpg", ".git/y.jpg")
    plan = expand([str(tmp_path)])
    assert [item.file_name for item in plan.items] == ["a.webp", "b/1.jpg", "b/2.PNG"]
    assert [item.index for item in plan.items] == [0, 1, 2]
    assert plan.ignored == {".txt": 1, ".json": 2, "no suffix": 1}
    assert plan.hidden == 2
    assert all(Path(item.path).is_file() for item in plan.items)


def test_order_is_by_path_part_not_by_character(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "a-b/1.jpg", "a.jpg")
    assert names(tmp_path) == ["a/1.jpg", "a-b/1.jpg", "a.jpg"]


def test_the_folder_of_the_results_is_not_walked(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "out/annotated/a.jpg")
    assert names(tmp_path, exclude=tmp_path / "out") == ["a.jpg"]


def test_pictures_and_results_cannot_share_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    with pytest.raises(InputError, match="also where the results shall go"):
        expand([str(tmp_path)], exclude=tmp_path / "x" / "..")


def test_equal_names_below_two_roots_do_not_meet(tmp_path: Path) -> None:
    """Case V55."""
    touch(tmp_path, "Dir1/Image1.jpg", "Dir2/Image1.jpg")
    found = outputs(tmp_path / "Dir1", tmp_path / "Dir2")
    assert found == {"Dir1/Image1.jpg": "Dir1/Image1", "Dir2/Image1.jpg": "Dir2/Image1"}


def test_equal_stems_of_one_folder_keep_their_suffix(tmp_path: Path) -> None:
    """Case V55."""
    touch(tmp_path, "a.jpg", "a.png", "b.jpg", "sub/a.jpg")
    assert outputs(tmp_path) == {"a.jpg": "a.jpg", "a.png": "a.png", "b.jpg": "b", "sub/a.jpg": "sub/a"}


file_name = st.text("aAbé.", min_size=1, max_size=6).filter(lambda text: text.strip("."))


@given(st.lists(st.tuples(st.sampled_from(["", "s/", "s/t/"]), file_name).map("".join), unique=True, max_size=12))
def test_output_names_are_unique(file_names: list[str]) -> None:
    found = output_names(file_names)
    assert len(set(found)) == len(file_names)
    assert [Path(name).parent for name in found] == [Path(name).parent for name in file_names]


def test_stems_of_dots_never_leave_the_folder() -> None:
    assert output_names(["d/...jpg", "..jpg", "d/.jpg"]) == ["d/...jpg", "..jpg", "d/.jpg"]


def test_a_stem_that_is_the_full_name_of_another_keeps_its_suffix() -> None:
    assert output_names(["a.jpg", "a.png", "a.jpg.png"]) == ["a.jpg", "a.png", "a.jpg.png"]


@pytest.mark.parametrize("letter", ["x", "é", "好"])
def test_names_too_long_for_another_suffix_are_cut_and_stay_unique(letter: str) -> None:
    """Case V45: 200 to 300 characters."""
    stem = letter * (250 // len(letter.encode()))
    found = output_names([f"d/{stem}.jpg", f"d/{stem}.png", f"{stem}.jpg"])
    assert found[2] == stem
    assert len(set(found)) == 3
    assert all(len(Path(name).name.encode()) + 4 <= 255 for name in found)
    assert found[0].startswith(f"d/{letter * 70}")


def test_odd_names_are_found(tmp_path: Path) -> None:
    """Case V45."""
    odd = ["你好.jpg", "é è.png", "a b#.jpg", "-x.jpg", "[a].jpg", "@b.jpg", "new\nline.jpg", "n" * 200 + ".jpg"]
    touch(tmp_path, *odd)
    assert sorted(names(tmp_path)) == sorted(odd)
    assert names(tmp_path / "[a].jpg") == ["[a].jpg"]


def test_a_leading_dash_and_at_sign_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "-x.jpg", "@b.jpg")
    monkeypatch.chdir(tmp_path)
    assert names("-x.jpg", "@b.jpg") == ["-x.jpg", "@b.jpg"]


def test_names_that_are_not_utf8_can_be_written_down(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    Path(path).write_bytes(b"x")
    item = expand([str(tmp_path)]).items[0]
    assert Path(item.path).is_file()
    assert utf8(item.file_name) == "\\xff.jpg"


def test_single_files_are_named_below_what_they_share(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.jpg", "y/a.jpg", "z.dat")
    assert names(tmp_path / "x/a.jpg") == ["a.jpg"]
    assert names(tmp_path / "y/a.jpg", tmp_path / "x/a.jpg") == ["y/a.jpg", "x/a.jpg"]
    assert names(tmp_path / "z.dat") == ["z.dat"], "a file that is named is taken whatever its suffix"


def test_a_file_named_twice_is_one_picture(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "d/b.jpg")
    plan = expand([str(tmp_path), str(tmp_path / "d"), str(tmp_path / "d" / ".." / "a.jpg")])
    assert [item.file_name for item in plan.items] == ["a.jpg", "d/b.jpg"]
    assert plan.duplicates == 2


def test_patterns(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg", "2.png", "d/3.jpg", "d/e/4.jpg", "d/e/5.txt", "f/.h.jpg")
    assert names(tmp_path / "*.jpg") == ["1.jpg"]
    assert names(tmp_path / "**/*.jpg") == ["1.jpg", "d/3.jpg", "d/e/4.jpg"]
    assert names(tmp_path / "**") == ["1.jpg", "2.png", "d/3.jpg", "d/e/4.jpg"]
    assert names(tmp_path / "d/**/4.*") == ["e/4.jpg"]
    assert names(tmp_path / "?/*.jpg") == ["d/3.jpg"]


def test_patterns_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "1.jpg", "d/3.jpg")
    monkeypatch.chdir(tmp_path)
    assert names("*.jpg") == ["1.jpg"]
    assert names("**/*.jpg") == ["1.jpg", "d/3.jpg"]
    assert [item.path for item in expand(["**/*.jpg"]).items] == ["1.jpg", "d/3.jpg"]


@pytest.mark.parametrize("how", ["@list", "list.txt"])
def test_lists_are_relative_to_their_folder(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "work/pics/b.jpg", "work/pics/a#.dat", "elsewhere/c.jpg")
    absolute = tmp_path / "elsewhere/c.jpg"
    text = f"\ufeffpics/b.jpg\r\n\npics/a#.dat\npics/b.jpg\n{absolute}\nmissing.jpg"
    (tmp_path / "work" / how.lstrip("@")).write_text(text)
    monkeypatch.chdir(tmp_path)
    plan = expand([how.replace("list", "work/list")])
    assert [item.file_name for item in plan.items] == [
        "work/pics/b.jpg",
        "work/pics/a#.dat",
        "elsewhere/c.jpg",
        "work/missing.jpg",
    ]
    assert plan.duplicates == 1


ODD = [
    "new\nline.jpg",
    "carriage\rreturn.jpg",
    "both\r\n.jpg",
    " ",
    "end.jpg\r",
    "tab\t.jpg",
    "line\u2028.jpg",
    "\\n.jpg",
]


@pytest.mark.parametrize("end", ["\0", ""])
@pytest.mark.parametrize("how", ["@list", "list.txt"])
def test_a_list_with_nul_bytes_holds_names_of_any_characters(
    tmp_path: Path, how: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`find -print0 > list`; as lines these names would be others, so that each of them would be missing."""
    touch(tmp_path, *ODD)
    (tmp_path / how.lstrip("@")).write_bytes("\0".join(ODD).encode() + end.encode())
    monkeypatch.chdir(tmp_path)
    plan = expand([how])
    assert [item.file_name for item in plan.items] == ODD
    assert all(Path(item.path).is_file() for item in plan.items)


def test_a_line_ends_in_a_line_feed_alone(tmp_path: Path) -> None:
    r"""What else Python takes for the end of a line may be in names; a `\r` before it is that of Windows."""
    inside = ["carriage\rreturn.jpg", "form\x0cfeed.jpg", "line\u2028.jpg", "next\x85.jpg", "a b.jpg"]
    touch(tmp_path, *inside)
    (tmp_path / "list.txt").write_bytes("\r\n".join(["", *inside, " ", ""]).encode())
    assert names(tmp_path / "list.txt") == inside


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_a_list_of_utf_16_is_refused(tmp_path: Path, code: str) -> None:
    """What older PowerShells write: as bytes it is full of NULs."""
    touch(tmp_path, "a.jpg")
    (tmp_path / "list.txt").write_bytes("\ufeffa.jpg\r\n".encode(code))
    with pytest.raises(InputError, match="UTF-16"):
        expand([str(tmp_path / "list.txt")])


def test_a_list_below_its_folder_is_named_from_there(tmp_path: Path) -> None:
    touch(tmp_path, "pics/b.jpg")
    (tmp_path / "list.txt").write_text("pics/b.jpg\n")
    assert names(tmp_path / "list.txt") == ["pics/b.jpg"]


def test_link_loops_end_and_linked_folders_count_once(tmp_path: Path) -> None:
    touch(tmp_path, "in/z/real/1.jpg", "outside/2.jpg")
    (tmp_path / "in/a").symlink_to(tmp_path / "in/z/real")
    (tmp_path / "in/z/real/up").symlink_to(tmp_path / "in")
    (tmp_path / "in/other").symlink_to(tmp_path / "outside")
    assert names(tmp_path / "in") == ["other/2.jpg", "z/real/1.jpg"]
    assert names(tmp_path / "in/**/*.jpg") == ["other/2.jpg", "z/real/1.jpg"]


def test_dangling_links_and_unreadable_folders_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.jpg", "closed/b.jpg")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert names(tmp_path) == ["a.jpg", "closed", "gone.jpg"]


def test_a_folder_that_cannot_be_entered_costs_its_own_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the right to list and not to enter (`chmod -x`), names are known and nothing can be said of them."""
    touch(tmp_path, "a.jpg", "listed/b.jpg", "listed/deep/c.jpg", "listed/notes.md")
    stat, scandir = os.stat, os.scandir

    def refuse(path: Any, **options: Any) -> Any:
        if isinstance(path, (str, Path)) and "listed/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    def refuse_scan(path: str) -> Any:
        refuse(path)
        return scandir(path)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "scandir", refuse_scan)
    assert names(tmp_path) == ["a.jpg", "listed/b.jpg", "listed/deep", "listed/notes.md"]
    assert names(tmp_path / "*/*.jpg") == ["listed/b.jpg"]


def test_an_empty_input_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.jpg")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="unset"):
        expand([""])


def test_a_folder_named_like_a_picture_is_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "x.jpg/a.jpg")
    assert names(tmp_path) == ["x.jpg/a.jpg"]


@pytest.mark.parametrize("what", ["missing.jpg", "@missing", "*.jpg", "empty"])
def test_nothing_found_is_an_error(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        expand([what])


def test_a_path_that_cannot_be_looked_at_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="File name too long"):
        expand([str(tmp_path / ("x" * 300))])


def test_the_error_says_what_was_there_instead(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", ".b.jpg")
    with pytest.raises(InputError, match=r"1 × \.mp4; hidden names: 1"):
        expand([str(tmp_path)])


def test_the_digest_follows_names_order_and_root(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.jpg", "x/b.jpg", "y/a.jpg", "y/b.jpg")
    digest = expand([str(tmp_path / "x")]).digest
    assert digest == expand([str(tmp_path / "x")]).digest
    assert digest != expand([str(tmp_path / "y")]).digest
    assert digest != expand([str(tmp_path / "x/b.jpg"), str(tmp_path / "x/a.jpg")]).digest


@given(st.lists(st.text("aAbB./\udc80", min_size=1, max_size=6), max_size=30))
def test_what_is_named_twice_is_found_by_its_place(file_names: list[str]) -> None:
    assert repeated(file_names) == [place for place, name in enumerate(file_names) if name in file_names[:place]]


@given(st.lists(st.text(max_size=9), max_size=20))
def test_strings_are_the_texts_they_were_made_of(texts: list[str]) -> None:
    strings = Strings(texts)
    assert list(strings) == texts
    assert [strings[place] for place in range(-len(texts), 0)] == texts
    assert strings[1:3] == texts[1:3]
    with pytest.raises(IndexError):
        strings[len(texts)]


def test_what_is_named_twice_moves_what_follows_and_no_position_in_a_source(tmp_path: Path) -> None:
    touch(tmp_path, "d/1.jpg", "d/2.jpg", "d/3.jpg")
    with zipfile.ZipFile(tmp_path / "d/a.zip", "w") as archive:
        archive.writestr("x.jpg", b"x")
        archive.writestr("y.jpg", b"y")
    folder = tmp_path / "d"
    given = [folder / "2.jpg", folder, folder / "a.zip", folder / "2.jpg"]
    plan = expand([str(path) for path in given])
    assert [item.file_name for item in plan.items] == ["2.jpg", "1.jpg", "3.jpg", "a.zip/x.jpg", "a.zip/y.jpg"]
    assert [(item.source, item.position) for item in plan.items] == [*[(None, 0)] * 3, (0, 0), (0, 1)]
    assert [item.path for item in plan.items][3:] == [f"{folder}/a.zip/x.jpg", f"{folder}/a.zip/y.jpg"]
    assert plan.duplicates == 2
    assert list(plan.items.file_names) == [item.file_name for item in plan.items]


def test_a_planned_picture_takes_a_few_bytes_beside_its_name(tmp_path: Path) -> None:
    """Millions of pictures are planned in the memory of their names: 12 bytes each, and an item is made on access."""
    names = [f"{number:08}.jpg" for number in range(20_000)]
    (tmp_path / "list.txt").write_text("\n".join(names))
    touch(tmp_path, names[0])
    expand([str(tmp_path / "list.txt")])  # what is imported on the way
    tracemalloc.start()
    try:
        plan = expand([str(tmp_path / "list.txt")])
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plan.items) == 20_000
    assert kept / 20_000 < 12 + len(names[0]) + 16
    assert plan.items[-1].path == str(tmp_path / names[-1])
