"""Every workflow runs at its reduced size, where it checks its own results, and leaves what it promises."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

WORKFLOWS = Path(__file__).resolve().parents[1] / "workflows"

RATIO = r"\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\)"
#: Of a difference, which noise may turn.
SIGNED = r"-?\d+\.\d+ \(-?\d+\.\d+ to -?\d+\.\d+\)"
#: Benchmark -> a whole line that it prints.
PROMISED = {
    "candidates": r"drawn clusters( +\d+\.\d+){5} +\d\.\de-\d\d( +-\d+\.\d{4}){2}",
    "checkpoint": r"4 +\d+\.\d+ +\d+ +\d+\.\d+ +\d+ +\d+ +\d+",
    "command_line": rf"\(command - start-up\) / Python: {SIGNED}, \d+ laps, \d+ commits",
    "comparison": r"clusters +dpdist +\d+\.\d +6 +-\d+\.\d{3} +\d\.\d{3} +0%",
    "documents": rf"5( +\d+ \(\d+ to \d+\)){{3}}( +{RATIO}){{2}}",
    "float32": rf"drawn +4000 +10 +the run's axes +0\.00\d\d +\d\.\d{{3}} % +\d\.\d{{4}} +{RATIO}",
    "judge": rf"12 +learned +\d+ +{RATIO} +\d+ +{RATIO}",
    "kernel": rf"dense +float32 +100\.0 % +\d+ +{RATIO}",
    "kill": r"0 +\d+\.\d+ +\d+ +(killed|finished before) +True +True",
    "lap": rf"dpdist float32 batches=20( +{RATIO}|  \d\.\d{{3}} \(\d\.\d{{3}} to \d\.\d{{3}}\)){{3}}",
    "lookahead": r"digits +0 +4( +-?\d+\.\d{4}){4} +-\d+\.\d{4} +\d+ +(\d+|-)",
    "momentum": r"blobs +0 +\d+ +\d+ +\d+\.\d\d +[+-]\d\.\d{4} +\d+ +\d+",
    "memory": r"peak at 100000 rows / peak at 10000: coordinator \d\.\d\d, workers \d\.\d\d",
    "memory_components": r"200 +\d+ +\d+ +\d+",
    "memory_coordinator": r"12 +3 +files( +\d+ MB){5} +\d+ +\d+ +-\d+\.\d{6}",
    "topic_laps": r"4 +\d+ +-\d\.\d{4} +-\d\.\d{4} +\d+\.\d\d +\d+ +\d+ +\d\.\d\d +[a-z, ]+",
    "memory_documents": r"peak at 3000 documents / peak at 300: coordinator \d\.\d\d, workers \d\.\d\d",
    "one_pass": r"clusters +diagonal( +\d+ +-\d+\.\d{3}){3}",
    "pairs": r"drawn clusters +80 +\d+ +\d+ +\d\.\d{3} +\d\.\d{3} +\d\.\d{4}",
    "planned": rf"2 workers, predicted / measured: {RATIO}",
    "overhead": r"80 +0\.01 +20 +65 +0\.4 +\d+\.\d +-?\d+\.\d",
    "recovery": "exactly 6 clusters: 2 of 2 seeds",
    "scaling": rf"one worker / two workers: {RATIO}",
    "seeds": r"clusters +sva +with +-\d\.\d{3} \(-\d\.\d{3} to -\d\.\d{3}\) +\d\.\d{3}.*",
    "sequential": rf"20 +\d+ +{RATIO} +{RATIO}",
    "simulated_cluster": r"8 +\d+ +2 +2( +\d+\.\d){2} +\d+\.\d\d +\d+ +\d+\.\d\d +\d+",
    "small_data": rf"ratio +{RATIO}",
    "tomotopy_lda": r"dpdist +\d+ +2 +\d+\.\d +\d+ +-\d\.\d{4}",
    "outliers": r"5-D, 0\.02 +0 +20 +0\.\d{3} [01]\.\d{3} +.*",
    "tree": rf"2000 +16( +{RATIO}){{5}} +1\.0000 +\d\.\de-1\d",
    "starts": r"sva +(\d+|-) +(\d+|-) +(\d+|-) +-\d+\.\d{4} at \d+ s +\d+",
}


def smoke(quick: object, *others: object) -> list[object]:
    """Parameters of a test, all but the first of which are left to the slow suite."""
    return [quick, *(pytest.param(other, marks=pytest.mark.slow) for other in others if other != quick)]


def run(script: str, out: Path, *arguments: str) -> list[str]:
    """Lines that a workflow prints at its reduced size."""
    command = [sys.executable, str(WORKFLOWS / script), "--small", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", smoke("kernel", *PROMISED))
def test_benchmark_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    lines = run(f"benchmarks/{name}.py", tmp_path)
    assert any(re.fullmatch(PROMISED[name], line) for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["no data", "shared data"])
def test_mnist_leaves_pictures_and_a_table_of_all_methods(shared: bool, tmp_path: Path) -> None:
    run("mnist/run.py", tmp_path, *([] if shared else ["--data", str(tmp_path / "absent")]))
    for picture in ("traces.png", "gallery.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [one["method"] for one in runs] == ["from one cluster", "batch", "stochastic"]
    assert len((tmp_path / "results.md").read_text().splitlines()) == 2 + len(runs)


@pytest.mark.slow
def test_the_run_of_240_million_leaves_pictures_and_a_table_at_a_thousandth_of_its_size(tmp_path: Path) -> None:
    run("sift_240m/run.py", tmp_path)
    assert {picture.stem for picture in tmp_path.glob("*.png")} == {"traces", "methods", "gallery"}
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in tmp_path.glob("*.png"))
    assert len((tmp_path / "table.txt").read_text().splitlines()) == 8


#: Workflow -> pictures that it leaves.
PICTURES = {
    "hdp/bars": {"traces", "topics"},
    "hdp/confidence": {"traces"},
    "hdp/nips": {"traces"},
    "hdp/stream": {"traces", "lives"},
    "memoized/denoising": {"pictures"},
    "memoized/toy_patches": {"traces", "models"},
    "memoized/image_patches": {"traces", "samples", "eigenvectors"},
    "memoized/tiny_images": {"traces", "gallery"},
    "memoized/mnist": {"boxes"},
    "sva_documents/run": {"heldout", "means"},
    "sva_synthetic/run": {"heldout", "components"},
}


def run_to_pictures(name: str, pictures: set[str], out: Path) -> list[str]:
    """Lines that a workflow prints, held to leave its pictures, and a table in two forms."""
    printed = run(f"{name}.py", out, "--data", str(out / "absent"))
    assert {picture.stem for picture in out.glob("*.png")} == pictures
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in out.glob("*.png"))
    text, commas = ((out / f"table.{kind}").read_text().splitlines() for kind in ("txt", "csv"))
    assert len(text) == len(commas) > 1
    assert [line.strip() for line in text] == printed[-len(text) :]
    return printed


@pytest.mark.parametrize("name", smoke("sva_documents/run", *PICTURES))
def test_workflows_leave_pictures_and_a_table_in_two_forms(name: str, tmp_path: Path) -> None:
    run_to_pictures(name, PICTURES[name], tmp_path)


@pytest.mark.slow
def test_a_comparison_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    first = run("sva_documents/run.py", tmp_path, "--data", str(tmp_path / "absent"))
    results = sorted((tmp_path / "results").glob("*.json"))
    lines = len((tmp_path / "table.txt").read_text().splitlines())
    lost = results[len(results) // 2]
    lost.rename(lost.with_suffix(".part"))
    again = run("sva_documents/run.py", tmp_path, "--data", str(tmp_path / "absent"))
    assert len(again) == len(first) - len(results) + 1
    assert [line.split()[:-1] for line in again[-lines:]] == [line.split()[:-1] for line in first[-lines:]]


def test_a_kept_result_is_made_once_whatever_was_broken_off(tmp_path: Path) -> None:
    kept = runpy.run_path(str(WORKFLOWS / "results.py"))["Kept"]
    made = []

    def make() -> dict[str, int]:
        made.append(len(made))
        return {"value": made[-1]}

    key = {"method": "stochastic 1, 0.5", "start": 0, "sizes": (1, 2)}
    assert kept(tmp_path).once(key, make)["value"] == 0
    (tmp_path / "results" / "another.part").write_text('{"key"')
    assert kept(tmp_path).once(key, make) == {**key, "value": 0}
    assert kept(tmp_path).once({**key, "start": 1}, make)["value"] == 1
    assert kept(tmp_path).once({**key, "method": "stochastic-1 0.5"}, make)["value"] == 2  # the file of the first
    assert sorted(one["value"] for one in kept(tmp_path).everything()) == [1, 2]
