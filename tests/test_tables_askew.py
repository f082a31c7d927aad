"""Tables that are nearly right, and names that hardly are."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from typer.testing import CliRunner, Result

import dpdist
from dpdist.cli import root as cli
from dpdist.cli.demo import WRITTEN, run_demo
from dpdist.cli.options import split
from dpdist.cli.terminal import as_options
from dpdist.data import as_source
from dpdist.data.convert import convert
from dpdist.execution import SerialBackend
from dpdist.report.rows import rows_of
from dpdist.report.views import view_of
from tests.runs import clusters


def command(*arguments: object) -> Result:
    """What comes of a command given here."""
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


def refused(sentence: str, *arguments: object) -> None:
    """Hold a command to be refused in a sentence."""
    done = command(*arguments)
    assert isinstance(done.exception, dpdist.InputError), done.output
    assert sentence in str(done.exception)


@pytest.fixture
def frame(tmp_path: Path, monkeypatch) -> pd.DataFrame:
    """Rows with an id, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    found = pd.DataFrame(clusters(0, rows=300)[:, :2], columns=["x", "y"])
    found.insert(0, "id", [f"k{i}" for i in range(300)])
    return found


@pytest.mark.parametrize("choice", [{}, {"drop": ["name"]}, {"columns": ["x", "y"]}], ids=str)
def test_a_line_of_too_many_cells_is_refused_whatever_columns_are_taken(choice, tmp_path) -> None:
    good = "a,1,2\n" * 80
    (tmp_path / "rows.csv").write_text(f"name,x,y\n{good}Acme,7,1,2\n{good}")
    with pytest.raises(dpdist.InputError):
        convert(tmp_path / "rows.csv", tmp_path / "rows.zarr", **choice)
    assert not (tmp_path / "rows.zarr").exists()


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damaged_compressed_text_is_refused_in_a_sentence(kind, tmp_path) -> None:
    path = tmp_path / f"rows.csv.{kind}"
    pd.DataFrame(clusters(0, rows=2000)).to_csv(path, index=False)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (b"a,b\n1,2\n", whole[:middle], whole[:middle] + b"damaged" + whole[middle + 7 :]):
        path.write_bytes(damaged)
        with pytest.raises(dpdist.InputError, match=f"{path.name} should be text of numbers, but reading"):
            as_source(str(path))


@pytest.mark.parametrize("name", ["rows.feather", "rows.json", "rows", "rows.csv.zip", "rows.xlsx"])
def test_a_file_of_another_format_is_told_what_it_may_be(name, tmp_path) -> None:
    (tmp_path / name).write_bytes(b"rows")
    with pytest.raises(dpdist.InputError, match=rf"{name} (should end in one of \.csv, .*|is an Excel workbook)"):
        as_source(str(tmp_path / name))


def test_points_beside_decimal_commas_are_refused_if_they_may_be_between_thousands(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("sold;price\n999;2,5\n1.234;0,5\n")
    with pytest.raises(dpdist.InputError, match=r"no points between thousands; got '1\.234' in column 'sold'"):
        as_source(str(path))
    path.write_text("latitude;price\n52.51;2,5\n48.137;0,5\n")
    rows, _ = as_source(str(path)).partitions[0].load()
    np.testing.assert_array_equal(rows, [[52.51, 2.5], [48.137, 0.5]])


def test_a_gap_in_one_column_is_refused_and_empty_lines_at_its_end_are_none(tmp_path) -> None:
    (tmp_path / "gap.csv").write_text("x\n1\n2\n\n4\n")
    with pytest.raises(dpdist.InputError, match=r"line 4 of .* should be a number; it is empty"):
        as_source(tmp_path / "gap.csv")
    (tmp_path / "end.csv").write_text("x\n1\n2\n\n\n")
    assert convert(tmp_path / "end.csv", tmp_path / "rows.zarr") == (2, 1)


def test_a_demo_replaces_nothing_unless_it_is_asked_to(tmp_path) -> None:
    for name in WRITTEN:
        (tmp_path / name).mkdir()
        with pytest.raises(dpdist.OutputExistsError, match=name):
            run_demo(tmp_path, SerialBackend(), 0, print)
        (tmp_path / name).rmdir()


def test_a_column_of_vectors_beside_others_is_found_again(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = clusters(0, rows=300)
    pd.DataFrame({"id": map(str, range(300)), "vec": list(rows)}).to_parquet("vec.parquet")
    assert command("fit", "vec.parquet", "--columns", "vec", "--out", "r", "--max-laps", 1, "--serial").exit_code == 0
    for asked in (["resume", "r", "--max-laps", 2], ["predict", "r", "vec.parquet"], ["score", "r", "vec.parquet"]):
        done = command(*asked, "--serial")
        assert done.exit_code == 0, done.exception


def test_a_column_of_vectors_beside_others_is_found_again_by_what_is_loaded_and_saved(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = clusters(0, rows=300)
    pd.DataFrame({"id": map(str, range(300)), "vec": list(rows)}).to_parquet("vec.parquet")
    assert command("sva", "vec.parquet", "--columns", "vec", "--out", "r", "--serial").exit_code == 0
    loaded = dpdist.load("r")
    loaded.save("m")
    for model in (loaded, dpdist.load("m")):
        np.testing.assert_array_equal(model.predict(tmp_path / "vec.parquet"), model.predict(rows))
        assert len(model.tree("vec.parquet")) == model.n_components_
    assert command("score", "m", "vec.parquet", "--serial").exit_code == 0
    assert "300 rows of vec.parquet" in rows_of(view_of("m"), "vec.parquet", 300).origin
    assert [loaded.partial_fit("vec.parquet").rows_seen_ for _ in range(2)] == [600, 900]
    assert dpdist.extend("m", "vec.parquet", out="e").predict("vec.parquet").shape == (300,)
    assert dpdist.resume("e", "vec.parquet").predict("vec.parquet").shape == (300,)
    assert loaded.fit(rows)._chosen == {}


def test_a_run_of_chosen_columns_goes_on_from_python(frame) -> None:
    frame.to_parquet("rows.parquet")
    assert command("fit", "rows.parquet", "--drop", "id", "--out", "r", "--max-laps", 1, "--serial").exit_code == 0
    assert dpdist.resume("r", "rows.parquet", max_laps=2).history_.sizes["lap"] == 2


def test_ids_beside_rows_are_none_of_the_columns_of_a_model_without_names(frame) -> None:
    np.save("rows.npy", frame.drop(columns="id"))
    frame.assign(id=[f"r{i}" for i in range(len(frame))]).to_csv("rows.csv", index=False)
    assert command("fit", "rows.npy", "--out", "r", "--max-laps", 1, "--serial").exit_code == 0
    with pytest.warns(UserWarning, match="X has feature names"):
        done = command("predict", "r", "rows.csv", "--ids", "id", "--out", "l.csv", "--serial")
    assert done.exit_code == 0, done.exception
    assert pd.read_csv("l.csv")["id"][7] == "r7"


@pytest.mark.parametrize("name", ["km/h", "..", "written", "plan.txt", "a\\b", "x\ty"])
def test_ids_whose_name_cannot_be_stored_are_refused(name, frame) -> None:
    frame.rename(columns={"id": name}).to_parquet("rows.parquet")
    assert command("fit", "rows.parquet", "--drop", name, "--out", "r", "--max-laps", 1, "--serial").exit_code == 0
    done = command("predict", "r", "rows.parquet", "--ids", name, "--out", "l.zarr", "--serial")
    assert isinstance(done.exception, dpdist.InputError), done.output
    assert command("predict", "r", "rows.parquet", "--ids", name, "--out", "l.csv", "--serial").exit_code == 0


def test_ids_beyond_63_bits_are_written_as_they_are(frame) -> None:
    ids = np.random.default_rng(0).integers(2**63, 2**64, size=300, dtype=np.uint64)
    frame.assign(id=ids).to_parquet("rows.parquet")
    assert command("fit", "rows.parquet", "--drop", "id", "--out", "r", "--max-laps", 1, "--serial").exit_code == 0
    done = command("predict", "r", "rows.parquet", "--ids", "id", "--out", "l.parquet", "--serial")
    assert done.exit_code == 0, done.exception
    assert pd.read_parquet("l.parquet")["id"].astype("uint64").tolist() == ids.tolist()


def test_whole_numbers_that_float64_rounds_are_refused_in_every_kind_of_table() -> None:
    table = pd.DataFrame({"a": np.full(20, 2**53 + 1), "b": np.linspace(0, 1, 20)})
    categories = table.astype({"a": "category"})
    frames = table, categories, dd.from_pandas(table, npartitions=2), dd.from_pandas(categories, npartitions=2)
    kinds = *frames, xr.Dataset({name: ("row", table[name]) for name in table})
    for each in kinds:
        with pytest.raises(dpdist.InputError, match="9007199254740993"):
            dpdist.DPMixture(max_laps=1).fit(each)


@pytest.mark.parametrize("name", ["", "size, cm", " z ", 'he said "no"', "plain"])
def test_any_column_may_be_left_out_as_the_sentence_says(name) -> None:
    said = shlex.split(as_options(f"Leave it out with drop=['{name}']."[:-1]))
    assert split([said[said.index("--drop") + 1]]) == [name]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_sentence_about_columns_names_commands_that_can_choose_them(kind, frame, tmp_path) -> None:
    path = tmp_path / f"named.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    with pytest.raises(dpdist.InputError, match=r"drop=.*columns=") as refused:
        as_source(path)
    commands = re.findall("dpdist ([a-z]+)", as_options(str(refused.value)))
    assert "convert" in commands, "what any data can go through"
    for each in commands:
        assert {"--drop", "--columns"} <= {name for option in cli.command_of(each).params for name in option.opts}


def test_the_command_line_is_not_only_told_how_python_selects_columns(frame, tmp_path) -> None:
    model, other = tmp_path / "model.zarr", tmp_path / "other.csv"
    rows = frame.drop(columns="id")
    dpdist.SVA().fit(rows).save(model)
    rows.rename(columns={"x": "z"}).to_csv(other, index=False)
    done = command("score", model, other, "--serial")
    assert isinstance(done.exception, dpdist.InputError) and "dpdist convert --columns" in str(done.exception)


def test_a_pattern_is_found_in_a_folder_whose_name_looks_like_one(frame, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "d[1]"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for part in range(2):
        frame[150 * part : 150 * (part + 1)].to_csv(f"part-{part}.csv", index=False)
    done = command("fit", "part-*.csv", "--columns", "x,y", "--out", "r", "--max-laps", 1, "--serial")
    assert done.exit_code == 0, done.exception


def test_rows_are_converted_where_they_were_asked_for_whoever_is_elsewhere(frame, tmp_path) -> None:
    np.save("rows.npy", frame[["x", "y"]].to_numpy())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    class Elsewhere(SerialBackend):
        """Workers that are in another folder."""

        def map(self, function, *columns):
            os.chdir(elsewhere)
            try:
                return super().map(function, *columns)
            finally:
                os.chdir(tmp_path)

    convert("rows.npy", "rows.zarr", backend=Elsewhere())
    assert zarr.open_array("rows.zarr").shape == (300, 2) and not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "text, names",
    [
        ("1 2.5\n3 4\n", None),
        ("  1   2.5  \n 3e0\t4\n", None),
        ("x y\n1 2.5\n3 4\n", ("x", "y")),
        ("1 2,5\n3,0 4\n", None),
        ("# made by hand\n\n1 2.5\n# a comment\n3 4\n", None),
    ],
)
def test_blanks_part_numbers_where_nothing_else_does(text, names, tmp_path) -> None:
    (tmp_path / "rows.dat").write_text(text)
    source = as_source(tmp_path / "rows.dat")
    values, _ = source.partitions[0].read()
    assert (source.names, values.tolist()) == (names, [[1, 2.5], [3, 4]])


@pytest.mark.parametrize(
    "text, names",
    [
        ("# made by hand\n# in m, s\nx,y\n1,2.5\n3,4\n", ("x", "y")),
        ("# made by hand\r\n\r\n1,2.5\r\n3,4\r\n", None),
        ("\ufeff# made by hand; in m\nx;y\n1;2.5\n3;4\n", ("x", "y")),
        ("# made by hand\n#x,y\n1,2.5\n3,4\n", ("#x", "y")),
        ("#x,y\n1,2.5\n3,4\n", ("#x", "y")),
    ],
)
def test_comments_before_the_rows_are_none(text, names, tmp_path) -> None:
    (tmp_path / "rows.csv").write_bytes(text.encode())
    source = as_source(tmp_path / "rows.csv")
    values, _ = source.partitions[0].read()
    assert (source.names, values.tolist()) == (names, [[1, 2.5], [3, 4]])
    (tmp_path / "one.csv").write_text("# made by hand\n\n# in m\n1\n3\n")
    assert as_source(tmp_path / "one.csv").partitions[0].read()[0].tolist() == [[1], [3]]


@pytest.mark.parametrize("separator, point", [(",", "."), (";", ","), (" ", ".")])
def test_numbers_of_text_are_read_to_the_last_bit(separator, point, tmp_path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3)) * 10.0 ** rng.integers(-200, 200, size=(500, 3))
    text = (separator.join(repr(float(cell)).replace(".", point) for cell in row) for row in rows)
    (tmp_path / "rows.csv").write_text("\n".join(text))
    found = np.concatenate([part.read()[0] for part in as_source(tmp_path / "rows.csv").partitions])
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("text", ["1, 2.5\n3, 4\n", "1 , 2.5\n3 , 4\n", "\ufeff1,0;2,5\n3;4,0\n"])
def test_blanks_beside_what_parts_numbers_are_nothing(text, tmp_path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert as_source(tmp_path / "rows.csv").partitions[0].read()[0].tolist() == [[1, 2.5], [3, 4]]


@pytest.mark.parametrize("head, names", [("", None), ("x ,y \n", ("x ", "y "))])
def test_blanks_before_a_comma_make_it_no_decimal_comma(head, names, tmp_path) -> None:
    (tmp_path / "rows.csv").write_text(f"{head}1  ,25\n30 ,4 \n")
    source = as_source(tmp_path / "rows.csv")
    assert (source.names, source.partitions[0].read()[0].tolist()) == (names, [[1, 25], [30, 4]])


@pytest.mark.parametrize("part", ["\t", ";", "|"])
def test_commas_in_names_of_columns_part_nothing(part, tmp_path) -> None:
    (tmp_path / "rows.tsv").write_text(f"width, in cm{part}height, in cm, at noon\n1{part}2.5\n3{part}4\n")
    source = as_source(tmp_path / "rows.tsv")
    assert source.names == ("width, in cm", "height, in cm, at noon")
    assert source.partitions[0].read()[0].tolist() == [[1, 2.5], [3, 4]]


def test_a_name_of_two_words_is_of_one_column(tmp_path) -> None:
    (tmp_path / "rows.csv").write_text("sepal length\n1\n2\n")
    assert as_source(tmp_path / "rows.csv").names == ("sepal length",)


def test_what_was_chosen_of_a_file_is_kept_where_a_pass_goes_on(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(["a.parquet", "b.parquet"]):
        vectors = pd.DataFrame({"id": map(str, range(300)), "vec": list(clusters(seed, rows=300))})
        vectors.to_parquet(name)
    assert command("sva", "a.parquet", "--columns", "vec", "--out", "p", "--serial").exit_code == 0
    for asked in (["extend", "p", "b.parquet"], ["predict", "p", "a.parquet"], ["show", "p"]):
        done = command(*asked, *([] if asked[0] == "show" else ["--serial"]))
        assert done.exit_code == 0, done.exception
