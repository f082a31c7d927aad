"""Laws of object stores: one sentence for each thing that is wrong, no secret in it, and outages are waited out."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

from dpdist.core.errors import CorruptDataError, InputError, OutputExistsError
from dpdist.core.outputs import claim_output
from dpdist.core.places import place_of
from dpdist.core.places.connections import AccessDeniedError, ObjectStoreError, is_object_url
from dpdist.core.places.objects import ObjectPlace
from dpdist.core.places.zarr_store import zarr_store
from dpdist.data import ArraySource, as_source
from dpdist.data.convert import convert
from dpdist.execution import SerialBackend
from dpdist.inference.mixture import kept
from dpdist.inference.schedules import Memoized
from dpdist.runs import label_blocks, labelling
from dpdist.runs.label_table import RowIds
from dpdist.runs.labelling import write_labels
from dpdist.runs.limits import Limits
from dpdist.runs.opening import resumed
from dpdist.storage.checkpoint import RunStore
from tests.daemons.s3 import BUCKET, Line, environment, line_to, moto_server, settings_for
from tests.runs import another_process, clusters, digest, mixture
from tests.waiting import free_port

SECRET = "testing12345"


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The settings that lead to a server with one bucket, in the environment."""
    with moto_server() as settings, environment(settings):
        yield settings


@pytest.fixture
def url(server, request) -> str:
    """A URL at which nothing is yet."""
    return f"s3://{BUCKET}/{request.node.name.replace('[', '/').strip(']')}"


@contextlib.contextmanager
def server_that_answers(status: int, body: str = "") -> Iterator[dict[str, str]]:
    """A server that gives every request the same answer; yields, and sets, the settings that lead there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_PUT = do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        with environment({**settings_for(listening.server_port), "AWS_MAX_ATTEMPTS": "2"}) as settings:
            yield settings
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


CALLS = {
    "read": lambda place: place.read("file"),
    "create": lambda place: place.create("file", b"x"),
    "replace": lambda place: place.replace("file", b"x"),
    "names": lambda place: place.names("folder"),
    "remove": lambda place: place.remove("folder"),
    "exists": lambda place: place.exists(),
    "files": lambda place: place.files("folder"),
    "new group": lambda place: place.fill("folder", lambda group: None),
}


# What is wrong, in a sentence


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://host/run.zarr", r"should begin with one of s3://, gs://, az://"),
        ("s3://", "names no bucket; give one, as in s3://bucket/name.zarr"),
        ("s3:///run.zarr", "names no bucket"),
        ("s3://bucket", "names only a bucket; add a name, as in s3://bucket/run.zarr"),
        ("s3://bucket/", "names only a bucket"),
        ("s3://bucket//run.zarr", "should have a name other than . and .. between any two slashes; correct the URL"),
        ("s3://bucket/runs//run.zarr/", "should have a name other than . and .. between any two slashes"),
        ("s3://bucket/runs/../run.zarr", "should have a name other than . and .. between any two slashes"),
    ],
)
def test_urls_that_cannot_be_are_refused(url, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        place_of(url)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match="should hold no credentials; set AWS_ACCESS_KEY_ID or a profile") as caught:
        place_of(f"s3://key:{SECRET}@bucket/run.zarr")
    assert SECRET not in str(caught.value)


def test_without_obstore_it_is_said_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with environment(settings_for(9)), pytest.raises(InputError, match=r"pip install 'dpdist\[s3\]'"):
        place_of("s3://bucket/run.zarr")


@pytest.mark.parametrize("attempts", ["0", "many", "-1"])
def test_attempts_that_are_no_number_are_refused(attempts) -> None:
    with environment({**settings_for(9), "AWS_MAX_ATTEMPTS": attempts}):  # noqa: SIM117
        with pytest.raises(
            InputError, match=f"AWS_MAX_ATTEMPTS should be a whole number of at least 1; got {attempts}"
        ):
            place_of("s3://bucket/run.zarr")


@pytest.mark.parametrize("call", CALLS)
def test_a_bucket_that_is_not_there_is_named(server, call) -> None:
    place = place_of("s3://nowhere/run.zarr")
    with pytest.raises(InputError, match=r"no bucket for s3://nowhere/run\.zarr.*; create it, or correct"):
        CALLS[call](place)


@pytest.mark.parametrize("call", CALLS)
def test_a_denied_access_is_told_without_the_secret(call) -> None:
    body = f"<Error><Code>AccessDenied</Code><Message>secret {SECRET}</Message></Error>"
    with server_that_answers(403, body):
        assert_told(call, AccessDeniedError, r"access to s3://bucket/run\S* was denied \(.*\); check the credentials")


@pytest.mark.parametrize("call", CALLS)
def test_a_server_in_trouble_is_told_after_the_attempts_without_the_secret(call) -> None:
    with server_that_answers(503, f"trouble {SECRET}"):
        assert_told(call, ObjectStoreError, r"did not answer for s3://bucket/run\S* \(503 Service Unavailable\); check")


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_not_there_is_told_after_the_attempts(call) -> None:
    with environment({**settings_for(free_port()), "AWS_MAX_ATTEMPTS": "2"}):
        assert_told(
            call, ObjectStoreError, r"did not answer for s3://bucket/run\S* \(HTTP error: error sending request"
        )


def assert_told(call: str, kind: type[Exception], sentence: str) -> None:
    """A call fails as said, with a failure that the place announces, that travels and that holds no secret."""
    place = ObjectPlace("s3://bucket/run", patience=2)
    with pytest.raises(kind, match=sentence) as caught:
        CALLS[call](place)
    assert isinstance(caught.value, OSError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_bucket_in_another_region_is_told() -> None:
    with server_that_answers(301), pytest.raises(InputError, match=r"in another region .*; set AWS_REGION"):
        place_of("s3://bucket/run").read("file")


# Credentials


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty home: no profile, and no machine that gives out roles."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_without_credentials_it_is_said_what_to_set(home) -> None:
    with environment({"AWS_EC2_METADATA_DISABLED": "true"}), pytest.raises(InputError, match="no credentials"):
        place_of("s3://bucket/run.zarr")


def test_a_profile_gives_credentials_region_and_endpoint(server, home) -> None:
    (home / ".aws").mkdir()
    keys = f"aws_access_key_id = testing\naws_secret_access_key = {SECRET}\n"
    (home / ".aws" / "credentials").write_text(f"[lab]\n{keys}")
    endpoint = server["AWS_ENDPOINT_URL"]
    (home / ".aws" / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {endpoint}\n")
    with environment({"AWS_PROFILE": "lab"}):
        place = place_of(f"s3://{BUCKET}/profile/run")
        assert place.create("file", b"x")
        assert place.read("file") == b"x"


@pytest.mark.parametrize("region", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_profile_gives_the_endpoint_where_the_environment_has_keys_and_region(server, home, region) -> None:
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(f"[default]\nendpoint_url = {server['AWS_ENDPOINT_URL']}\n")
    keys = {name: value for name, value in server.items() if "KEY" in name}
    with environment({**keys, region: "us-east-1", "AWS_MAX_ATTEMPTS": "1"}):
        assert place_of(f"s3://{BUCKET}/profile/{region}").create("file", b"x")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"AWS_PROFILE": "nobody"}, r"profile .* cannot be used \(The config profile \(nobody\) could not be found\)"),
        ({"AWS_PROFILE": "wrong"}, r"profile .* cannot be used \(Invalid endpoint: localhost:9000\)"),
        ({"AWS_ACCESS_KEY_ID": "a"}, "only AWS_ACCESS_KEY_ID is set; set both"),
        ({"AWS_ENDPOINT_URL": ""}, "AWS_ENDPOINT_URL should be a URL such as .*; got ''"),
        ({"AWS_ENDPOINT_URL_S3": "localhost:9000"}, "AWS_ENDPOINT_URL_S3 should be a URL .*; got 'localhost:9000'"),
    ],
)
def test_settings_that_lead_nowhere_are_told(home, settings, sentence) -> None:
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text("[profile wrong]\nendpoint_url = localhost:9000\n")
    with environment({"AWS_EC2_METADATA_DISABLED": "true", **settings}), pytest.raises(InputError, match=sentence):
        place_of("s3://bucket/run.zarr").read("file")


def test_what_travels_holds_no_credentials(server, url) -> None:
    store_rows(url)
    source = as_source(f"{url}/rows.zarr")
    for thing in (zarr_store(url), *source.partitions):
        sent = pickle.dumps(thing)
        assert len(sent) < 600
        assert SECRET.encode() not in sent
        assert b"testing" not in sent
    again = pickle.loads(pickle.dumps(source.partitions[0]))
    np.testing.assert_array_equal(again.load()[0], source.partitions[0].load()[0])


# Outages


@contextlib.contextmanager
def behind_a_line(server: dict[str, str], **settings: str) -> Iterator[Line]:
    """The environment leads to the server over a line that can be cut."""
    with line_to(server) as (line, through), environment({**through, **settings}):
        yield line


def test_a_create_whose_answer_was_lost_is_told_that_it_created(server, url) -> None:
    with behind_a_line(server) as line:
        place = place_of(url)
        place.names("")
        line.answers_to_lose = 1
        assert place.create("commit", b"mine")
        assert place.read("commit") == b"mine"
        assert not place.create("commit", b"mine")


def test_a_create_whose_answer_was_lost_is_told_if_another_was_first(server, url) -> None:
    assert place_of(url).create("commit", b"the same")
    with behind_a_line(server) as line:
        place = place_of(url)
        place.names("")
        line.answers_to_lose = 1
        assert not place.create("commit", b"the same")


def test_a_create_that_is_not_answered_in_time_is_looked_after(server, url) -> None:
    with behind_a_line(server, AWS_TIMEOUT="1s") as line:
        place = place_of(url)
        place.names("")
        line.answers_to_hold = 1
        assert place.create("commit", b"mine")
        assert place.names("") == ["commit"]


def test_a_store_that_is_gone_for_a_while_is_waited_for(server, url) -> None:
    with behind_a_line(server) as line:
        place, rows = place_of(url), np.random.default_rng(0).normal(size=(4, 1000))
        line.cut = True
        back = threading.Timer(1.5, setattr, (line, "cut", False))
        back.start()

        def write(group: zarr.Group) -> None:
            for index, row in enumerate(rows):
                group.create_array(f"row{index}", data=row)

        digests = place.fill("generations/1", write)
        place.replace("pointer", b"1")
        assert place.create("commits/1", b"generations/1")
        back.join()
        found = place.group("generations/1", digests)
        for index, row in enumerate(rows):
            np.testing.assert_array_equal(found[f"row{index}"][...], row)
        assert place.names("") == ["commits", "generations", "pointer"]
        assert place.names("commits") == ["1"]


def test_a_store_that_stays_away_is_an_error_in_the_end(server, url) -> None:
    with behind_a_line(server) as line:
        place = ObjectPlace(url, patience=0.5)
        line.cut = True
        for call in ("create", "files"):
            with pytest.raises(ObjectStoreError, match="did not answer"):
                CALLS[call](place)


# Rows


def store_rows(url: str, rows: int = 3000) -> np.ndarray:
    """Rows of groups as a Zarr array ``rows.zarr`` below a URL."""
    data = clusters(0, rows=rows, columns=4, groups=6)
    store = zarr_store(f"{url}/rows.zarr", read_only=False)
    zarr.create_array(store, data=data, chunks=(256, 4))
    return data


def copy_up(folder: Path, url: str) -> None:
    """Copy the files of a folder to a URL."""
    place = place_of(url)
    for file in folder.rglob("*"):
        if file.is_file():
            place.replace(str(file.relative_to(folder)), file.read_bytes())


def test_only_urls_of_object_stores_are_taken_for_such() -> None:
    assert is_object_url("s3://bucket/rows.zarr")
    assert not any(map(is_object_url, ("rows.zarr", "s3", "/s3://x", "https://host/rows.zarr", "file:///rows.zarr")))


def test_a_url_that_another_package_would_read_is_told(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InputError, match=r"s3a://b/x\.zarr cannot be read without a package .* begin with s3://"):
        as_source("s3a://b/x.zarr")


def test_a_source_in_an_object_store_is_the_source_on_disk(url, tmp_path) -> None:
    rows = store_rows(url)
    group = zarr.open_group(zarr_store(f"{url}/group.zarr", read_only=False), mode="w")
    group.create_array("rows", data=rows, chunks=(256, 4))
    zarr.create_array(tmp_path / "rows.zarr", data=rows, chunks=(256, 4))
    here = as_source(tmp_path / "rows.zarr")
    for there in (as_source(f"{url}/rows.zarr"), as_source(f"{url}/group.zarr"), as_source(f"{url}/group.zarr/rows")):
        assert there.fingerprint() == here.fingerprint()
        assert there.cut == here.cut
        found = np.concatenate([partition.load()[0] for partition in there.partitions])
        np.testing.assert_array_equal(found, rows)
    with pytest.raises(InputError, match="no Zarr array and no corpus at s3://"):
        as_source(f"{url}/nowhere")


@pytest.mark.usefixtures("new_processes")
def test_workers_read_an_object_store_to_the_bits_of_rows_on_disk(url, tmp_path) -> None:
    rows = store_rows(url)
    zarr.create_array(tmp_path / "rows.zarr", data=rows, chunks=(256, 4))
    serial = mixture(max_laps=3).fit(str(tmp_path / "rows.zarr"))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1") as cluster,
        Client(cluster),
    ):
        model = mixture(max_laps=3).fit(f"{url}/rows.zarr")
    assert model.elbo_ == serial.elbo_
    np.testing.assert_array_equal(model.weights_, serial.weights_)


DAMAGES = {
    "a flipped bit": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "the end cut off": lambda data: data[:-100],
    "nothing": lambda data: b"",
    "another's bytes": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("damage", [*DAMAGES, "lost"])
def test_a_damaged_chunk_is_named_and_never_a_number(url, tmp_path, dtype, damage) -> None:
    np.save(tmp_path / "rows.npy", np.arange(4000).reshape(1000, 4).astype(dtype))
    convert(tmp_path / "rows.npy", tmp_path / "rows.zarr")
    copy_up(tmp_path / "rows.zarr", url)
    place, (first, second, *_) = place_of(url), as_source(url).partitions
    if damage == "lost":
        place.remove("c/1/0")
    else:
        place.replace("c/1/0", DAMAGES[damage](place.read("c/1/0")))
    first.load()
    with pytest.raises(CorruptDataError, match=rf"partition 1 \(rows 256 to 512\) of {url} .*Write the rows again"):
        second.load()


def test_a_store_gone_while_rows_are_read_is_no_damage(server, url) -> None:
    store_rows(url)
    with behind_a_line(server, AWS_MAX_ATTEMPTS="1") as line:
        partition = as_source(f"{url}/rows.zarr").partitions[0]
        line.cut = True
        with pytest.raises(ObjectStoreError, match="did not answer"):
            partition.load()


def test_rows_that_a_worker_may_not_read_are_told_to_be_so(url) -> None:
    store_rows(url)
    partition = as_source(f"{url}/rows.zarr").partitions[0]
    with server_that_answers(403), pytest.raises(AccessDeniedError, match="was denied"):
        partition.load()


def test_missing_chunks_of_an_array_from_elsewhere_are_counted(url) -> None:
    rows = store_rows(url)
    place_of(f"{url}/rows.zarr").remove("c/1")
    with pytest.warns(
        UserWarning, match=r"1 of 12 chunks of s3://.* are missing and are read as 0\.0\. If this is not"
    ):
        source = as_source(f"{url}/rows.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = np.concatenate([partition.load()[0] for partition in source.partitions])
    assert not loaded[256:512].any()
    np.testing.assert_array_equal(loaded[512:], rows[512:])


@pytest.mark.parametrize("ending", ["npy", "csv"])
def test_files_are_converted_to_a_url_where_it_was_left(url, tmp_path, monkeypatch, ending) -> None:
    rows, file, where = clusters(1), tmp_path / f"rows.{ending}", f"{url}/rows.zarr"
    np.save(file, rows) if ending == "npy" else np.savetxt(file, rows, delimiter=",", fmt="%.17g")
    monkeypatch.setattr("dpdist.data.convert._TOGETHER", 1)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(file, where, progress=stop)
    with pytest.raises(InputError, match="there is no Zarr array and no corpus at"):
        as_source(where)
    seen: list[int] = []
    convert(file, where, progress=lambda done, total: seen.append(done))
    assert seen == [512, 768, 900]
    source = as_source(where)
    np.testing.assert_array_equal(np.concatenate([part.load()[0] for part in source.partitions]), rows)
    assert place_of(where).names("") == ["c", "zarr.json"]
    with pytest.raises(OutputExistsError, match="exists; choose another name"):
        convert(file, where)
    np.save(tmp_path / "other.npy", rows[:300])
    convert(tmp_path / "other.npy", where, overwrite=True)
    assert as_source(where).shape == (300, 3)
    place_of(f"{url}/mine").replace("letter.txt", b"mine")
    with pytest.raises(OutputExistsError, match="holds other data than Zarr"):
        convert(file, f"{url}/mine", overwrite=True)


def test_batch_summaries_in_files_at_a_url_have_the_bits_of_those_in_memory(url, monkeypatch) -> None:
    source, where = ArraySource(clusters(2), partition_rows=100), f"{url}/run.zarr"
    model = mixture(schedule=Memoized(3), max_laps=4, tolerance=0.0)
    alone = model.prepare(source)
    for _ in alone:
        pass
    monkeypatch.setattr(kept, "MEMO_BYTES", 0)
    fit = model.prepare(source, where)
    next(itertools.islice(fit, 4, None))
    fit.close()
    again = resumed(RunStore.open(where), source, SerialBackend(), Limits(4))
    for step in again:
        assert {type(each) for each in step.state.batch_summaries} == {kept.KeptBatchSummary}
    assert digest(again.state, where) == digest(alone.state)


def test_a_slash_at_the_end_of_a_url_changes_nothing(url, tmp_path) -> None:
    rows = clusters(1, rows=60)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",")
    assert convert(tmp_path / "rows.csv", f"{url}/rows.zarr/") == rows.shape
    with pytest.raises(OutputExistsError, match="exists; choose another name"):
        convert(tmp_path / "rows.csv", f"{url}/rows.zarr")
    model = mixture(max_laps=1).fit(rows)
    write_labels(model._predictor, as_source(f"{url}/rows.zarr/"), SerialBackend(), f"{url}/labels.zarr/")
    assert place_of(url).names("") == ["labels.zarr", "rows.zarr"]
    assert place_of(f"{url}/rows.zarr").names("") == ["c", "zarr.json"]


def test_labels_at_a_url_go_on_where_they_were_killed(url, monkeypatch) -> None:
    monkeypatch.setattr(label_blocks, "BLOCK_ROWS", 128)
    rows, told = clusters(1), []
    predictor, source, where = mixture(max_laps=2).fit(rows)._predictor, as_source(rows), f"{url}/begun.zarr"
    mark = label_blocks.mark

    def killed(where: str, block: label_blocks.Block, *digests: object) -> None:
        if block.start == 512:
            raise KeyboardInterrupt
        mark(where, block, *digests)

    monkeypatch.setattr(labelling, "mark", killed)
    with pytest.raises(KeyboardInterrupt):
        write_labels(predictor, source, SerialBackend(), where)
    assert "zarr.json" not in place_of(where).names("")
    claim_output(where, overwrite=False)
    monkeypatch.setattr(labelling, "mark", mark)
    write_labels(predictor, source, SerialBackend(), where, tell=told.append)
    expected = np.concatenate([predictor.labels(part) for part in source.partitions])
    assert told == [512] and place_of(where).names("") == ["id", "label", "zarr.json"]
    np.testing.assert_array_equal(zarr.open_group(zarr_store(where), mode="r")["label"][:], expected)


def test_labels_are_written_to_a_url_and_replaced_when_asked(url) -> None:
    rows = clusters(1)
    model, where = mixture(max_laps=2).fit(rows), f"{url}/labels.zarr"

    def names() -> Iterator[list[str]]:
        assert "zarr.json" not in place_of(where).names("")  # nobody sees labels before all their ids are there
        yield [f"r{i}" for i in range(len(rows))]

    ids = RowIds("who", names())
    write_labels(model._predictor, as_source(rows), SerialBackend(), where, density=True, ids=ids)
    group = zarr.open_group(zarr_store(where), mode="r")
    np.testing.assert_array_equal(group["label"][:], model.predict(rows))
    np.testing.assert_array_equal(group["log_density"][:], model.score_samples(rows))
    assert group["who"][7] == "r7" and place_of(where).names("") == ["id", "label", "log_density", "who", "zarr.json"]
    with pytest.raises(OutputExistsError, match="exists; choose another name"):
        write_labels(model._predictor, as_source(rows), SerialBackend(), where)
    write_labels(model._predictor, as_source(rows[:5]), SerialBackend(), where, overwrite=True)
    assert place_of(where).names("") == ["id", "label", "zarr.json"]
    with pytest.raises(InputError, match="NaN"):
        write_labels(model._predictor, as_source(np.full((9, 3), np.nan)), SerialBackend(), where, overwrite=True)
    assert "zarr.json" not in place_of(where).names("")
    write_labels(model._predictor, as_source(rows), SerialBackend(), where)


def test_of_two_that_write_to_one_url_the_later_is_refused(url, tmp_path, monkeypatch) -> None:
    rows, where, labels = clusters(1), f"{url}/rows.zarr", f"{url}/labels.zarr"
    file, other = tmp_path / "rows.npy", tmp_path / "other.npy"
    np.save(file, rows)
    np.save(other, -rows)
    model = mixture(max_laps=1).fit(rows)

    def label(ids: RowIds | None = None) -> None:
        write_labels(model._predictor, as_source(rows), SerialBackend(), labels, ids=ids)

    def refused(write: Callable[[], object]) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr("dpdist.core.lease.this_process", another_process)
            with pytest.raises(OutputExistsError, match=r"zarr is being written by another process \(process \d+"):
                write()
        return True

    seen = []
    for given in (other, file):
        convert(
            file,
            where,
            overwrite=True,
            progress=lambda *_, given=given: seen.append(refused(lambda: convert(given, where))),
        )
        np.testing.assert_array_equal(zarr.open_array(zarr_store(where), mode="r")[:], rows)
    label(RowIds("who", ([str(row)] for row in range(len(rows)) if row or refused(label))))
    assert len(seen) >= 2 and zarr.open_group(zarr_store(labels), mode="r")["who"][7] == "7"
    assert place_of(where).names("") == ["c", "zarr.json"] and not place_of(where).names(".writer/leases")
