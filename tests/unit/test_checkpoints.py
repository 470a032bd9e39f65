"""Which checkpoints are repaired, and that all others stay as they are."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from apressure.spark import mend_checkpoint
from apressure.spark.checkpoint import mend_when_quiet

DIED = ("c/offsets/0", "c/offsets/1", "c/commits/0", "c/commits/..1.x.tmp", "c/state/2.delta", "f/_spark_metadata/1")
"""Spark died between the entry of the sink's log and the commit."""


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_entry_of_a_batch_without_a_commit_is_removed(tmp_path: Path) -> None:
    make(tmp_path, *DIED, "f/_spark_metadata/0", "f/_spark_metadata/.1.crc", "f/part-1.parquet")
    assert mend_checkpoint(tmp_path / "c", tmp_path / "f")
    assert files(tmp_path) == {*DIED[:-1], "f/_spark_metadata/0", "f/part-1.parquet"}


@pytest.mark.parametrize(
    "names",
    [
        (*DIED, "c/commits/1"),
        [name for name in DIED if "state" not in name],  # without state there are no windows
        (*DIED[:-1], "f/_spark_metadata/0"),  # it died earlier
        (*DIED, "f/_spark_metadata/2"),  # of another query
        (*DIED[:-1], "f/_spark_metadata/.1.x.tmp"),
    ],
)
def test_another_log_of_files_stays(tmp_path: Path, names: list[str]) -> None:
    make(tmp_path, *names)
    assert not mend_checkpoint(tmp_path / "c", tmp_path / "f")
    assert not mend_checkpoint(tmp_path / "c")
    assert files(tmp_path) == set(names)


def test_a_folder_that_is_no_checkpoint_stays_as_it_is(tmp_path: Path) -> None:
    names = {"sources/main.py", "state/data", "commits/1"}
    make(tmp_path, *names)
    assert not mend_checkpoint(tmp_path)
    assert files(tmp_path) == names
    make(tmp_path, "offsets", "metadata")
    (tmp_path / "offsets").unlink()
    assert mend_checkpoint(tmp_path)
    assert files(tmp_path) == {"metadata"}
    make(tmp_path, "offsets")
    assert not mend_checkpoint(tmp_path)


def test_folders_need_not_exist(tmp_path: Path) -> None:
    assert not mend_checkpoint(tmp_path / "c", tmp_path / "f")
    make(tmp_path, *DIED[:-1])
    assert not mend_checkpoint(tmp_path / "c", tmp_path / "f")


def test_the_checkpoint_of_a_query_that_still_runs_stays(tmp_path: Path) -> None:
    """It commits its batch while the start of a second one waits."""
    make(tmp_path, *DIED)
    committed = threading.Timer(0.3, lambda: make(tmp_path, "c/commits/1"))
    committed.start()
    assert not mend_when_quiet(tmp_path / "c", tmp_path / "f", quiet=60)
    committed.join()
    assert files(tmp_path) == {*DIED, "c/commits/1"}


def test_the_checkpoint_of_a_query_that_died_long_ago_is_mended_at_once(tmp_path: Path) -> None:
    make(tmp_path, *DIED, "f/_spark_metadata/.1.crc")
    for name in ("1", ".1.crc"):
        os.utime(tmp_path / "f/_spark_metadata" / name, (time.time() - 60,) * 2)
    assert mend_when_quiet(tmp_path / "c", tmp_path / "f", quiet=59)
    assert files(tmp_path) == set(DIED[:-1])
