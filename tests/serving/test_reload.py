"""Case V63: models change under load without a gap; a bad version costs nobody anything."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from vtk.errors import NotFoundError, UnavailableError
from vtk.runtime import Runtime
from vtk.serving.reload import Periodic
from vtk.serving.settings import RuntimeSettings

MakeBundle = Callable[..., Path]
BLANK = np.zeros((3, 8, 8), np.float32)
NUM_SWAPS = 20
NUM_CLIENTS = 4


@contextmanager
def serving(folder: Path, **choices: object) -> Iterator[Runtime]:
    settings: dict[str, object] = {"threads": 1, "max_queue_delay": 0.0, "memory_bytes": 1 << 30, **choices}
    with closing(Runtime(RuntimeSettings(models=folder, **settings))) as runtime:  # type: ignore[arg-type]
        runtime.start()
        yield runtime


def ask(runtime: Runtime, name: str = "mean", version: str | None = None) -> float:
    """The bias of the bundle that answers."""
    with runtime.vision(name, version) as model:
        return float(model.submit(BLANK).result(timeout=30)["logits"][0])


def replace_bundle(root: Path, make_bundle: MakeBundle, **facts: float) -> None:
    """As `vtk export --force` does: whole beside the old one, then renamed."""
    new = make_bundle(root.with_name(f".{root.name}.new"), **facts)
    if root.exists():
        shutil.rmtree(root)
    new.rename(root)


def poll_twice(runtime: Runtime) -> None:
    """What has changed is loaded when it has stopped changing."""
    runtime.poll()
    runtime.poll()


def told(runtime: Runtime) -> dict[str, tuple[str, str]]:
    return {f"{status.name}/{status.version}": (status.state, status.reason) for status in runtime.statuses()}


def test_no_request_fails_during_twenty_swaps_under_load(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean")
    failures: list[Exception] = []
    answers: list[list[float]] = [[] for _ in range(NUM_CLIENTS)]
    stop = threading.Event()
    others = set(threading.enumerate())  # runtimes that tests share may be running in this process
    with serving(tmp_path) as runtime:
        free = runtime.budget.free

        def client(seen: list[float]) -> None:
            try:
                while not stop.is_set():
                    seen.append(ask(runtime))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=client, args=(seen,)) for seen in answers]
        for thread in threads:
            thread.start()
        for swap in range(1, NUM_SWAPS + 1):
            replace_bundle(tmp_path / "mean", make_bundle, bias=float(swap))
            assert runtime.load("mean").reason == ""
            assert ask(runtime) == swap, "after load returns, nobody gets the old one"
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert all(seen and seen == sorted(seen) for seen in answers), "a client never goes back to an older one"
        assert runtime._table.wait_closed(30)
        assert runtime.budget.free > free - (64 << 20), "every old model has given its memory back"
        mine = [thread.name for thread in threading.enumerate() if thread not in others]
        assert mine.count("vtk-vision") == 1, "the threads of the old models have ended"
    assert runtime.budget.free == runtime.budget.total


def damage_weights(root: Path) -> None:
    graph = root / "model.b2.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"?")


def damage_manifest(root: Path) -> None:
    (root / "manifest.json").write_text('{"schema_version": 1')


def lose_a_file(root: Path) -> None:
    (root / "model.b1.onnx").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_weights, "model.b2.onnx was changed"),
        (damage_manifest, "cannot be read"),
        (lose_a_file, "model.b1.onnx is missing"),
    ],
)
def test_a_damaged_new_version_leaves_the_old_one_serving(
    damage: Callable[[Path], None], reason: str, tmp_path: Path, make_bundle: MakeBundle
) -> None:
    make_bundle(tmp_path / "mean/1", bias=1.0)
    with serving(tmp_path) as runtime:
        free = runtime.budget.free
        damage(make_bundle(tmp_path / "mean/2", bias=2.0))
        status = runtime.load("mean")
        assert (status.version, status.state) == ("2", "failed")
        assert reason in status.reason
        assert str(tmp_path) not in status.reason
        assert ask(runtime) == 1.0
        with pytest.raises(UnavailableError, match="'mean' is failed"):
            ask(runtime, version="2")
        assert runtime.budget.free == free, "a load that failed holds no memory"


def test_a_model_that_does_not_reproduce_its_golden_data_is_not_swapped_in(
    tmp_path: Path, make_bundle: MakeBundle
) -> None:
    make_bundle(tmp_path / "mean", bias=1.0)
    with serving(tmp_path) as runtime:
        replace_bundle(tmp_path / "mean", make_bundle, bias=2.0, golden_bias=2.5)
        status = runtime.load("mean")
        assert status.state == "ready", "the old one"
        assert "does not reproduce its golden data: engine: batch 1" in status.reason
        assert ask(runtime) == 1.0
        replace_bundle(tmp_path / "mean", make_bundle, bias=3.0)
        assert runtime.load("mean").reason == ""
        assert ask(runtime) == 3.0


def test_without_the_golden_check_files_are_compared_all_the_same(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean", bias=1.0, golden_bias=2.0)
    with serving(tmp_path, verify_on_load=False) as runtime:
        assert ask(runtime) == 1.0
        damage_weights(tmp_path / "mean")
        assert "was changed" in runtime.load("mean").reason
        assert ask(runtime) == 1.0


def test_a_file_that_the_manifest_does_not_name_is_never_opened(tmp_path: Path, make_bundle: MakeBundle) -> None:
    root = make_bundle(tmp_path / "mean", bias=1.0)
    shutil.copy(root / "model.b1.onnx", root / "model.b4.onnx")
    (root / "model.engine").write_bytes(b"code")
    with serving(tmp_path) as runtime, runtime.vision("mean") as model:
        assert model.predictor.batch_sizes == (1, 2)


def test_a_bad_version_never_blocks_the_look_at_others(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean/1", bias=1.0)
    with serving(tmp_path) as runtime:
        damage_weights(make_bundle(tmp_path / "mean/2", bias=2.0))
        make_bundle(tmp_path / "zeta", bias=5.0)
        poll_twice(runtime)
        assert told(runtime)["mean/2"][0] == "failed"
        assert ask(runtime) == 1.0
        assert ask(runtime, "zeta") == 5.0
        make_bundle(tmp_path / "mean/3", bias=3.0)
        poll_twice(runtime)
        assert ask(runtime) == 3.0
        assert ask(runtime, version="1") == 1.0
        shutil.rmtree(tmp_path / "mean/2")
        make_bundle(tmp_path / "mean/2", bias=2.0)
        poll_twice(runtime)
        assert ask(runtime, version="2") == 2.0


def test_what_failed_is_tried_again_only_when_its_files_change(
    tmp_path: Path, make_bundle: MakeBundle, caplog: pytest.LogCaptureFixture
) -> None:
    make_bundle(tmp_path / "good")
    damage_weights(make_bundle(tmp_path / "bad"))
    with serving(tmp_path) as runtime:
        for _ in range(5):
            runtime.poll()
        assert sum("bad 1 was not loaded" in line for line in caplog.messages) == 1
        os.utime(tmp_path / "bad/model.b2.onnx", ns=(1, 1))
        poll_twice(runtime)
        assert sum("bad 1 was not loaded" in line for line in caplog.messages) == 2


def test_a_model_is_named_before_it_is_opened(
    tmp_path: Path, make_bundle: MakeBundle, caplog: pytest.LogCaptureFixture
) -> None:
    """Proving and warming up take a while, in which a server would say nothing."""
    make_bundle(tmp_path / "mean")
    damage_weights(make_bundle(tmp_path / "bad"))
    with caplog.at_level(logging.INFO), serving(tmp_path):
        told = [message for message in caplog.messages if "bad" in message or "mean" in message]
    assert {"loading bad version 1 (vision)", "loading mean version 1 (vision)"} <= set(told)
    failed = next(message for message in told if "was not loaded" in message)
    assert told.index("loading bad version 1 (vision)") < told.index(failed)


def test_a_folder_is_not_read_while_it_is_copied(tmp_path: Path, make_bundle: MakeBundle) -> None:
    """`cp -r` gives no order: the manifest may be there before the graphs, or after all else."""
    source = make_bundle(tmp_path / "elsewhere/mean", bias=2.0)
    models = tmp_path / "models"
    make_bundle(models / "other")
    target = models / "mean"
    with serving(models) as runtime:
        (target / "golden").mkdir(parents=True)
        for file in ("model.b1.onnx", "golden/golden.json", "golden/stages.npz", "golden/00.png"):
            shutil.copy(source / file, target / file)
            runtime.poll()
            assert "mean/1" not in told(runtime)
            assert any(item.path == target for item in runtime.ignored())
        for file in ("manifest.json", "golden/01.png", "model.b2.onnx"):
            shutil.copy(source / file, target / file)
            runtime.poll()
            assert "mean/1" not in told(runtime), "something has changed since the last look"
        runtime.poll()
        assert ask(runtime) == 2.0


def test_a_model_that_is_copied_over_serves_until_the_new_one_is_whole(tmp_path: Path, make_bundle: MakeBundle) -> None:
    root = make_bundle(tmp_path / "mean", bias=1.0)
    new = make_bundle(tmp_path / ".new", bias=2.0)
    with serving(tmp_path) as runtime:
        (root / "manifest.json").unlink()
        for _ in range(4):
            runtime.poll()
            assert ask(runtime) == 1.0
        shutil.copytree(new, root, dirs_exist_ok=True)
        poll_twice(runtime)
        assert ask(runtime) == 2.0


def test_what_two_looks_miss_is_gone(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean/1", bias=1.0)
    make_bundle(tmp_path / "mean/2", bias=2.0)
    with serving(tmp_path) as runtime:
        shutil.move(tmp_path / "mean/2", tmp_path / ".aside")
        runtime.poll()
        assert ask(runtime) == 2.0
        shutil.move(tmp_path / ".aside", tmp_path / "mean/2")
        runtime.poll()
        shutil.rmtree(tmp_path / "mean/2")
        poll_twice(runtime)
        assert ask(runtime) == 1.0
        with pytest.raises(NotFoundError):
            ask(runtime, version="2")
        shutil.rmtree(tmp_path / "mean")
        poll_twice(runtime)
        assert runtime.statuses() == []


def test_what_was_unloaded_stays_so_until_it_is_asked_for(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean/1", bias=1.0)
    make_bundle(tmp_path / "mean/2", bias=2.0)
    with serving(tmp_path) as runtime:
        runtime.unload("mean")
        make_bundle(tmp_path / "mean/3", bias=3.0)
        poll_twice(runtime)
        with pytest.raises(UnavailableError):
            ask(runtime)
        assert runtime.load("mean").version == "3"
        assert [ask(runtime, version=version) for version in ("1", "2", "3")] == [1.0, 2.0, 3.0]


def test_a_failure_of_vtk_itself_is_told_and_the_old_one_serves(
    tmp_path: Path, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "mean", bias=1.0)
    with serving(tmp_path) as runtime:

        def fail(*_: object) -> None:
            raise ZeroDivisionError("ours")

        monkeypatch.setattr("vtk.serving.open_vision.warm_up_vision", fail)
        free = runtime.budget.free
        assert runtime.load("mean").reason == "ZeroDivisionError: ours"
        assert ask(runtime) == 1.0
        assert runtime.budget.free == free


def test_a_look_that_fails_is_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    seen = threading.Semaphore(0)

    def act() -> None:
        seen.release()
        raise OSError("the disk is away")

    with caplog.at_level(logging.ERROR):
        periodic = Periodic(act, 0.001, "vtk-model-folder")
        assert all(seen.acquire(timeout=30) for _ in range(3))
        periodic.close()
    assert "vtk-model-folder failed; it is tried again" in caplog.text


def test_changes_are_noticed_without_being_told(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean/1", bias=1.0)
    with serving(tmp_path, reload_interval=0.01) as runtime:
        make_bundle(tmp_path / "mean/2", bias=2.0)
        changed = threading.Event()

        def watch() -> None:
            while ask(runtime) != 2.0:
                pass
            changed.set()

        thread = threading.Thread(target=watch)
        thread.start()
        assert changed.wait(30)
        thread.join()
