"""The command line, driven as a person would drive it: in this process, and in others where signals are sent."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from distributed import LocalCluster
from distributed.comm import CommClosedError
from rich.text import Text
from sklearn.datasets import load_digits
from sklearn.utils import Bunch
from typer.testing import CliRunner, Result

import dpdist
from dpdist.cli import root as cli
from dpdist.cli.terminal import OPTIONS, as_options
from dpdist.execution.connecting import connect
from dpdist.execution.dask import refuse_other_versions
from dpdist.storage.checkpoint import RunStore
from tests.runs import clusters, mixture
from tests.waiting import wait_until

COMMAND = [sys.executable, "-m", "dpdist"]
Command = Callable[..., str]


def dpdist_command(*arguments: object, folder: Path) -> Result:
    """Run the command in `folder`, in this process."""
    with contextlib.chdir(folder):
        return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(cli.app, [*map(str, arguments)])


def succeeded(done: Result) -> str:
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: what it printed, or with ``refused=True`` its one line of refusal."""

    def command(*arguments: object, refused: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == int(refused), printed.err
        if refused:
            assert printed.err.strip().startswith("dpdist: ") and printed.err.strip().count("\n") == 0, printed.err
            assert printed.out == "" and "Traceback" not in printed.err
        return printed.err if refused else printed.out

    return command


def plain_environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with rows in several formats."""
    folder = tmp_path_factory.mktemp("cli")
    rows = clusters(0, rows=3000, columns=4)
    np.save(folder / "rows.npy", rows)
    array = zarr.create_array(folder / "rows.zarr", shape=rows.shape, dtype="float64", chunks=(256, 4))
    array[...] = rows
    return folder


@pytest.fixture(scope="module")
def run(folder) -> Path:
    """A finished run of five laps, on a local cluster."""
    succeeded(dpdist_command("fit", "rows.zarr", "--out", "run.zarr", "--max-laps", 5, "--workers", 2, folder=folder))
    return folder / "run.zarr"


def test_fit_show_predict(folder, run) -> None:
    values = json.loads(succeeded(dpdist_command("show", run, "--json", folder=folder)))
    assert values["n_components"] == len(values["component_ids"]) and values["laps"] == 5
    assert values["stop_reason"] == "stopped: max_laps reached" and np.isfinite(values["elbo"])
    assert values["elbo"] == dpdist.load(run).elbo_
    text = succeeded(dpdist_command("show", run, folder=folder))
    assert "ELBO" in text and "accepted: the exact ELBO rises" in text
    done = dpdist_command(
        "predict", run, "rows.zarr", "--out", "labels.zarr", "--top", 2, "--density", "--serial", folder=folder
    )
    assert "3,000 rows labelled" in succeeded(done)
    labels = xr.open_zarr(folder / "labels.zarr", consolidated=False)
    model, rows = dpdist.load(run), np.load(folder / "rows.npy")
    np.testing.assert_array_equal(labels["label"].values, model.predict(rows))
    np.testing.assert_array_equal(labels["id"].values, model.component_ids_)
    np.testing.assert_array_equal(labels["top_label"].values, model.predict_top(rows, 2)[0])
    np.testing.assert_allclose(labels["log_density"].values, model.score_samples(rows))


#: What a fit in one process does not need, and would wait for half its time if it imported it all.
NEEDLESS = {"sklearn", "pandas", "xarray", "matplotlib", "dask", "distributed", "cryptography", "scipy.optimize"}


def test_a_serial_fit_imports_only_what_it_needs(folder) -> None:
    code = (
        "import sys; from dpdist.cli.root import app; app(sys.argv[1:], standalone_mode=False); "
        f"sys.exit(' '.join({NEEDLESS} & {{*sys.modules}}) or None)"
    )
    command = ["fit", "rows.zarr", "--out", "lean.zarr", "--max-laps", "1", "--serial"]
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_resume_after_the_end_asks_for_a_new_limit_and_goes_on(folder, run) -> None:
    assert "give --max-laps" in succeeded(dpdist_command("resume", run, folder=folder))
    succeeded(dpdist_command("resume", run, "--max-laps", 7, "--serial", folder=folder))
    succeeded(dpdist_command("fit", "rows.zarr", "--out", "w.zarr", "--max-laps", 7, "--serial", folder=folder))
    assert bits(run) == bits(folder / "w.zarr")


def bits(run: Path) -> bytes:
    """Statistics and ELBO of a run, as bytes."""
    fitted = RunStore.open(run).fitted()
    return fitted.total.stats.tobytes() + fitted.total.entropy.tobytes() + np.float64(fitted.elbo).tobytes()


def started(folder: Path, *arguments: object) -> subprocess.Popen:
    """A command in a process group of its own; what it prints goes to ``output.txt``."""
    with open(folder / "output.txt", "w") as output:
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
            env=plain_environment(),
        )


def heed_interrupts() -> None:
    """Ctrl-C ends a command, also where the tests run in the background of a shell, whose children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_checkpoint(run: Path, number: int, process: subprocess.Popen) -> None:
    """Wait until a run has written some checkpoints."""
    wait_until(lambda: generation(run) >= number, (run.parent / "output.txt").read_text, process)


def generation(run: Path) -> int:
    try:
        return RunStore.open(run).number
    except dpdist.CheckpointError:
        return -1


def test_ctrl_c_keeps_everything_and_says_how_to_go_on(folder) -> None:
    given = ["--max-laps", 500, "--tolerance", 0, "--serial", "--checkpoint-seconds", 0]
    process = started(folder, "fit", "rows.zarr", "--out", "c.zarr", *given)
    wait_for_checkpoint(folder / "c.zarr", 3, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    output = (folder / "output.txt").read_text()
    assert "nothing is lost. Continue with: dpdist resume c.zarr" in output
    assert "Traceback" not in output
    done = dpdist_command("resume", "c.zarr", "--max-laps", 12, "--serial", folder=folder)
    succeeded(done)


def test_a_running_scheduler_can_be_named(folder) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1") as cluster:
        done = dpdist_command(
            "fit",
            "rows.zarr",
            "--out",
            "s.zarr",
            "--scheduler",
            cluster.scheduler_address,
            "--max-laps",
            2,
            folder=folder,
        )
    assert "clusters, ELBO" in succeeded(done)


def test_settings_come_from_toml_and_options_override_them(folder) -> None:
    (folder / "fit.toml").write_text(
        'data = "rows.zarr"\nrandom_state = 5\nmax_laps = 3\nconcentration = { shape = 1.0, rate = 0.1 }\n'
        '[family]\nname = "diagonal_gaussian"\nshape = 2.0\n[row_transform]\npca = 2\n'
    )
    done = dpdist_command("fit", "--config", "fit.toml", "--out", "t.zarr", "--max-laps", 2, "--serial", folder=folder)
    succeeded(done)
    values = json.loads(succeeded(dpdist_command("show", "t.zarr", "--json", folder=folder)))
    assert values["laps"] == 2 and values["family"] == "diagonal_gaussian"
    assert values["allocation"] == "learned_dirichlet_process" and values["settings"]["random_state"] == 5
    problem = RunStore.open(folder / "t.zarr").problem()
    assert problem.model.family.shape == 2.0 and problem.preparation.width == 2


def test_convert_then_fit(folder) -> None:
    assert "3000 rows of 4 columns" in succeeded(
        dpdist_command("convert", "rows.npy", "--out", "c2.zarr", folder=folder)
    )
    succeeded(dpdist_command("fit", "c2.zarr", "--out", "c2run.zarr", "--max-laps", 1, "--serial", folder=folder))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fit", "nothing.zarr", "--out", "x.zarr"], "there is no Zarr array and no corpus at"),
        (
            ["fit", "rows.zarr", "--out", "x.zarr", "--columns", "a"],
            "columns can be chosen only from files such as CSV or Parquet, or by dpdist convert;",
        ),
        (["fit"], "fit needs data"),
        (
            ["fit", "rows.zarr", "--out", "rows.zarr"],
            "exists and is not a dpdist run, so it is not replaced; choose another name.",
        ),
        (
            ["fit", "rows.zarr", "--out", "x.zarr", "--pca", "9", "--serial"],
            "pca should be from 1 to the number of columns, 4",
        ),
        (
            ["fit", "rows.zarr", "--out", "x.zarr", "--batches", "0"],
            "setting schedule: batches should be a whole",
        ),
        (["fit", "rows.zarr", "--out", "x.zarr", "--family", "cauchy"], "setting family: name should be"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--max-time", "nan"], "max_time should be finite and above zero"),
        (["convert", "s3://bucket/x.csv", "--out", "x.zarr"], "s3://bucket/x.csv is a URL, but files of rows or"),
        (["corpus", "s3://bucket/x.npz", "--out", "x.zarr"], "s3://bucket/x.npz is a URL, but files of rows or"),
        (["fit", "memory://x.csv", "--out", "x.zarr"], "memory://x.csv is a URL, but files of rows or"),
        (["fit", "github://a/rows.zarr", "--out", "x.zarr"], "github://a/rows.zarr cannot be read with only its URL"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--scheduler", "nope"], "should look like tcp://127.0.0.1:8786"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--scheduler", ""], "should look like tcp://127.0.0.1:8786"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--concentration", "-1"], "concentration"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--config", "none.toml"], "cannot be read"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--family", "poisson", "--serial"], "counts"),
        (["fit", "rows.zarr", "--out", "no/such/x.zarr"], "does not exist; create it first"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--scheduler", "tcp://127.0.0.1:1"], "no Dask scheduler answers"),
        (["fit", "rows.zarr", "--out", "x.zarr", "--serial", "--workers", "2"], "--serial runs in this process"),
        (["resume", "nothing.zarr"], "no dpdist run or model"),
        (["show", "rows.zarr"], "no dpdist run or model"),
        *(
            ([command, "rows.npy"], "rows.npy should be the folder of a run or model; it is a file")
            for command in ("show", "status", "attach")
        ),
        (["predict", "nothing.zarr", "rows.zarr"], "no dpdist run or model"),
        (["convert", "nothing.npy", "--out", "x.zarr"], "nothing.npy"),
    ],
)
def test_bad_input_gets_a_sentence_and_writes_nothing(folder, monkeypatch, capsys, arguments, sentence) -> None:
    monkeypatch.setattr(connect, "__defaults__", (0.5, None, None))
    assert sentence in told(folder, monkeypatch, capsys, *arguments)
    assert not (folder / "x.zarr").exists()


@pytest.mark.parametrize("more", [[], ["--max-laps", "9"], ["--cluster", "local.toml"]])
def test_a_saved_model_is_no_run_whatever_resume_is_asked(folder, monkeypatch, capsys, more) -> None:
    (folder / "local.toml").write_text('type = "local"\n')
    mixture(max_laps=2).fit(clusters(0, rows=200)).save(folder / "saved.zarr", overwrite=True)
    sentence = told(folder, monkeypatch, capsys, "resume", "saved.zarr", *more)
    assert "is a saved model, not a run; it can predict but not resume" in sentence


def told(folder: Path, monkeypatch, capsys, *arguments: object) -> str:
    """The sentence of a refusal, from the entry point in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    text = capsys.readouterr().err.replace("\n", " ")
    assert text.startswith("dpdist: ")
    return text


def test_what_the_terminal_cannot_encode_is_shown_in_other_letters(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dpdist", "--version"])
    monkeypatch.setattr(cli, "__version__", "1.ä")
    monkeypatch.setattr(sys, "stdout", shown := io.TextIOWrapper(io.BytesIO(), "ascii", newline=""))
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    shown.seek(0)
    assert shown.read().strip() == "1.\\xe4"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "there is not enough memory (Unable to allocate 9 GiB); use fewer"),
        (OSError(errno.ENOSPC, "No space left"), "No space left; free some space, and run the command again."),
        (OSError(errno.EDQUOT, "Quota exceeded"), "Quota exceeded; free some space, and run the command again."),
        (OSError(errno.EROFS, "Read-only", "/mnt/x"), "Read-only (/mnt/x); choose a path that can be written to."),
        (
            OSError(errno.EIO, "Input/output error", "y"),
            "Input/output error (y); check that the path or address exists",
        ),
    ],
)
def test_what_a_machine_refuses_is_a_sentence(folder, monkeypatch, capsys, error: Exception, sentence: str) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", refuse)
    assert sentence in told(folder, monkeypatch, capsys, "fit")


@pytest.mark.parametrize(
    "address", ["nope", "", "tcp://nope", "tcp://:8786", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536", "post://host:1"]
)
def test_what_is_no_address_of_a_scheduler_is_refused_without_asking(address: str, monkeypatch) -> None:
    monkeypatch.setattr("dpdist.execution.connecting.rpc", None)
    monkeypatch.setattr("dpdist.execution.connecting.Client", None)
    with pytest.raises(dpdist.InputError, match=f"should look like tcp://127.0.0.1:8786; got '{address}'"):
        connect(address)


def test_a_scheduler_that_needs_certificates_is_not_asked_without_them() -> None:
    with pytest.raises(
        dpdist.InputError, match=r"tls://127\.0\.0\.1:1 needs certificates, but there are none; name them"
    ):
        connect("tls://127.0.0.1:1")


def test_who_never_answers_is_not_waited_for_any_longer_than_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(
            dpdist.InputError, match=rf"no Dask scheduler answers at {address} \(no answer within 0.2 s\)"
        ):
            connect(address, timeout=0.2)


def test_a_scheduler_is_met_from_within_an_event_loop_as_notebooks_have_one() -> None:
    async def meet(address: str) -> None:
        connect(address).close()

    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        asyncio.run(meet(cluster.scheduler_address))


def test_a_scheduler_that_dies_as_it_answers_may_be_followed_by_another_at_its_address() -> None:
    dying = socket.create_server(("127.0.0.1", 0))
    port = dying.getsockname()[1]

    def die_as_asked() -> LocalCluster:
        with dying, dying.accept()[0] as asked:
            asked.recv(1)
        return LocalCluster(n_workers=0, host="127.0.0.1", scheduler_port=port, dashboard_address="127.0.0.1:0")

    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(die_as_asked)
        connect(f"tcp://127.0.0.1:{port}").close()
        following.result().close()


#: Rooms whose sentences may name options: of commands, and of the programs that launch clusters.
OPTION_ROOMS = ("cli", "cluster")


def test_who_dies_as_it_is_asked_for_versions_may_be_followed_by_another() -> None:
    class Client:
        tries = 0

        def get_versions(self, packages: list[str]) -> dict[str, dict[str, object]]:
            self.tries += 1
            if self.tries < 3:
                raise CommClosedError("Stream is closed")
            return {"workers": {"tcp://127.0.0.1:1": None}}

    client: Any = Client()
    refuse_other_versions(client)
    assert client.tries == 3


def sentences(path: Path) -> list[str]:
    """Texts of a module, docstrings apart; what is filled in is left out."""
    tree = ast.parse(path.read_text())
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    silent |= {id(part) for node in joined for part in node.values}
    alone = [[node] for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in silent]
    parts = [*alone, *(node.values for node in joined)]
    return ["".join(str(part.value) for part in each if isinstance(part, ast.Constant)) for each in parts]


def test_errors_speak_python_and_the_command_line_makes_options_of_it() -> None:
    package = Path(dpdist.__file__).parent
    modules = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in OPTION_ROOMS]
    texts = [text for path in modules for text in sentences(path)]
    for text in texts:
        before, *options = re.split("--[a-z]", text, maxsplit=1)
        assert not options or "dpdist " in before or "dask scheduler" in before, text
    assert {asked for asked in OPTIONS if any(asked in text for text in texts)} == set(OPTIONS)
    commands = [cli.command_of(name) for name in cli.SENTENCES]
    known = {option for command in commands for each in command.params for option in each.opts}
    names = {asked: option.split()[0] for asked, option in OPTIONS.items()}
    assert set(names.values()) <= known
    assert all(f"{option[2:].replace('-', '_')}=" in asked for asked, option in names.items()), "each by its own name"
    sentence = "in the way; choose another name with out=PATH, or replace it with overwrite=True."
    assert as_options(sentence) == "in the way; choose another name with --out PATH, or replace it with --overwrite."


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "apart.zarr", "rows.npy", "--out", "apart.zarr", "--serial", "--overwrite"),
        ("predict", "apart.zarr", "copy.csv", "--out", "copy.csv", "--serial", "--overwrite"),
        ("predict", "apart.zarr", "file://./apart/rows.zarr", "--out", "apart", "--serial", "--overwrite"),
        ("fit", "apart/rows.zarr", "--out", "apart", "--serial", "--overwrite"),
        ("fit", "apart/rows.zarr", "--out", "apart/rows.zarr", "--serial", "--overwrite"),
        ("extend", "apart.zarr", "rows.npy", "--out", "./apart.zarr", "--serial", "--overwrite"),
        ("report", "apart.zarr", "--out", "copy.csv"),
        ("plan", "--rows", "9", "--columns", "3", "--save-costs", "copy.csv"),
        ("predict", "apart.zarr", "parts", "--out", "parts/0.parquet", "--serial", "--overwrite"),
        ("predict", "apart.zarr", "parts", "--out", "parts/labels.parquet", "--serial"),
        ("predict", "apart.zarr", "cop*.csv", "--out", "copy.csv", "--serial", "--overwrite"),
        ("predict", "apart.zarr", "c*.csv", "--out", "./clusters.csv", "--serial"),
    ],
)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_nothing_takes_the_place_of_what_it_is_made_from(folder, run, monkeypatch, capsys, arguments) -> None:
    if not (folder / "apart.zarr").exists():
        shutil.copytree(run, folder / "apart.zarr")
        np.savetxt(folder / "copy.csv", np.load(folder / "rows.npy"), delimiter=",")
        (folder / "parts").mkdir()
        pd.DataFrame(np.load(folder / "rows.npy"), columns=list("abcd")).to_parquet(folder / "parts" / "0.parquet")
        zarr.open_group(folder / "apart", mode="w").create_array("rows.zarr", data=np.load(folder / "rows.npy"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    sentence = told(folder, monkeypatch, capsys, *arguments)
    refused = ("while it is being read", "is a run or model of dpdist", "is not a dpdist run", "is not a report")
    refused += ("would become one of the input files of", "holds no unit costs")
    assert any(each in sentence for each in refused)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("command", [("report", "run.zarr"), ("demo", "--serial")])
def test_what_goes_to_a_disk_refuses_a_url(tmp_path, monkeypatch, capsys, command) -> None:
    sentence = told(tmp_path, monkeypatch, capsys, *command, "--out", "s3://bucket/it")
    assert "is written to local disk; got the URL s3://bucket/it. Give a path such as" in sentence
    assert not list(tmp_path.iterdir())


def test_the_wrong_width_at_predict_is_refused(folder, run, monkeypatch, capsys) -> None:
    array = zarr.create_array(folder / "narrow.zarr", shape=(5, 3), dtype="float64", overwrite=True)
    array[...] = 1.0
    text = told(folder, monkeypatch, capsys, "predict", run, "narrow.zarr", "--out", "x.zarr", "--serial")
    assert "rows should have 4 columns" in text and not (folder / "x.zarr").exists()


def test_not_a_number_is_named_by_row(folder, monkeypatch, capsys) -> None:
    rows = np.load(folder / "rows.npy")
    rows[[7, 1900], 1] = [np.nan, np.inf]
    array = zarr.create_array(folder / "nan.zarr", shape=rows.shape, dtype="float64", chunks=(256, 4), overwrite=True)
    array[...] = rows
    text = told(folder, monkeypatch, capsys, "fit", "nan.zarr", "--out", "x.zarr", "--serial")
    assert "NaN or infinity in 2 of 3000 rows (rows 7, 1900)" in text


@pytest.mark.parametrize(
    "where", [["--serial"], pytest.param(["--workers", "2"], marks=pytest.mark.slow)], ids=" ".join
)
def test_the_demo_finds_the_digits(where: list[str], tmp_path, monkeypatch) -> None:
    if where == ["--serial"]:
        digits = load_digits()
        some = Bunch(**{name: digits[name][:400] for name in ("data", "images", "target")})
        monkeypatch.setattr("dpdist.cli.demo.load_digits", lambda: some)
    done = dpdist_command("demo", *where, folder=tmp_path)
    assert "purity" in succeeded(done)
    for name in ("clusters.png", "trace.png"):
        assert (tmp_path / "dpdist-demo" / name).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", cli.SENTENCES)
def test_the_list_of_commands_says_what_their_documentation_begins_with(name: str) -> None:
    sentence, command = cli.SENTENCES[name], cli.command_of(name)
    assert command.name == name and command.help.partition("\n")[0].startswith(sentence)


@pytest.mark.parametrize("name", cli.SENTENCES)
def test_the_help_is_shown_with_all_its_brackets(name: str) -> None:
    """Rich leaves out words in brackets that it takes for a style."""
    command = cli.command_of(name)
    for told in (command.help, *(getattr(each, "help", None) for each in command.params)):
        assert told is None or Text.from_markup(told).plain == told


def test_help_lists_the_commands(folder) -> None:
    text = succeeded(dpdist_command("--help", folder=folder))
    assert all(name in text for name in ("fit", "resume", "show", "predict", "demo", "convert", "corpus"))
    done = subprocess.run([*COMMAND, "--version"], cwd=folder, capture_output=True, text=True, env=plain_environment())
    assert (done.returncode, done.stdout.strip()) == (0, dpdist.__version__)


def test_who_finds_one_cluster_is_told_what_may_find_more(tmp_path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    np.save(tmp_path / "one.npy", rows)
    np.save(tmp_path / "two.npy", rows + np.where(np.arange(200) < 100, 0.0, 30.0)[:, None])
    for name, told in (("one", True), ("two", False)):
        given = tmp_path / f"{name}.npy", "--out", tmp_path / f"{name}.zarr"
        output = succeeded(dpdist_command("fit", *given, "--serial", folder=tmp_path))
        assert ("try --prior clusters" in output) is told, output
