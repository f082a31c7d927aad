"""Kubernetes: what is asked of it holds to its definitions, and each request reaches an emulated API.

No pod is scheduled here: the emulated API keeps objects, and an emulated operator runs the pods' commands as processes.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpdist.cluster.certificates import make_certificates
from dpdist.cluster.kinds import kubernetes as clusters
from dpdist.cluster.kinds import parse_cluster, read_cluster
from dpdist.cluster.kinds.base import in_bytes, validated
from dpdist.cluster.kinds.kubernetes import JOB_NAME, JOB_UID, KubernetesConfig, owned
from dpdist.cluster.kinds.kubernetes_api import delete, kubernetes, kubernetes_object, named, troubles
from dpdist.cluster.kinds.kubernetes_pods import CERTIFICATES, cluster_manifest
from dpdist.cluster.running import AGAIN, CANCELLED
from dpdist.cluster.submission import JobState, submitter_for, submitter_of
from dpdist.cluster.submission.kubernetes import coordinator_manifest, job_state, unique_name
from dpdist.core.errors import InputError
from tests.daemons.kubernetes import (
    RESOURCES,
    EmulatedKubernetes,
    EmulatedOperator,
    custom_resource_faults,
    emulated_kubernetes,
    kubernetes_faults,
)
from tests.waiting import free_port

CLUSTERS, JOBS, PODS = RESOURCES
PLAIN = {"type": "kubernetes", "image": "dpdist:1", "certificates_secret": "certs"}
OPEN = {"type": "kubernetes", "image": "dpdist:1", "security": {"tls": False}}
SHARED: dict[str, dict[str, Any]] = {
    "pod": {"volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]},
    "container": {"volumeMounts": [{"name": "runs", "mountPath": "/runs"}]},
}
FULL = {
    **PLAIN,
    "name": "mixture",
    "namespace": "science",
    "n_workers": 40,
    "env": {"AWS_REGION": "eu-central-1"},
    "resources": {"memory": "2Gi", "cpu": "2"},
    "pod": {
        **SHARED["pod"],
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "container": {**SHARED["container"], "envFrom": [{"secretRef": {"name": "store"}}]},
}
CONFIGS = [PLAIN, OPEN, FULL]
COMMAND = [sys.executable, "-m", "dpdist", "resume", "s3://bucket/run.zarr"]


def config_of(values: dict[str, Any], **more: Any) -> KubernetesConfig:
    config = parse_cluster({**values, **more})
    assert isinstance(config, KubernetesConfig)
    return config


def container_of(cluster: dict[str, Any], role: str) -> dict[str, Any]:
    return cluster["spec"][role]["spec"]["containers"][0]


def words_of(container: dict[str, Any], flag: str) -> str | None:
    command = container["command"]
    return command[command.index(flag) + 1] if flag in command else None


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedKubernetes]:
    monkeypatch.delenv(JOB_NAME, raising=False)
    monkeypatch.delenv(JOB_UID, raising=False)
    with emulated_kubernetes(tmp_path, monkeypatch) as emulated:
        yield emulated


def roles() -> list[dict[str, Any]]:
    """The coordinator's account, role and its binding, as they are shipped."""
    shipped = Path(__file__).parents[1] / "cluster_configs" / "kubernetes-role.yaml"
    return list(yaml.safe_load_all(shipped.read_text()))


# What is asked for holds to the definitions


@pytest.mark.parametrize("values", CONFIGS, ids=["plain", "open", "full"])
def test_every_manifest_holds_to_its_definition(values: dict[str, Any]) -> None:
    config = config_of(values)
    cluster = owned(cluster_manifest(config), {JOB_NAME: "run-1", JOB_UID: "5a0c"})
    assert custom_resource_faults(cluster) == []
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "spec": cluster["spec"][role]["spec"]} for role in ("scheduler", "worker")
    ]
    job = coordinator_manifest(config, COMMAND, "run-1")
    for manifest in [*pods, job, *roles()]:
        assert kubernetes_faults(manifest) == []


def test_the_shipped_configuration_holds() -> None:
    config = read_cluster(Path(__file__).parents[1] / "cluster_configs" / "kubernetes.toml")
    assert isinstance(config, KubernetesConfig)
    assert custom_resource_faults(cluster_manifest(config)) == []


Fault = Callable[[dict[str, Any]], Any]
CLUSTER_FAULTS: dict[str, Fault] = {
    "no service": lambda d: d["spec"]["scheduler"].pop("service"),
    "replicas in words": lambda d: d["spec"]["worker"].update(replicas="two"),
    "misspelt field": lambda d: container_of(d, "worker").update(imagge="x"),
    "number as a variable": lambda d: container_of(d, "worker")["env"].append({"name": "A", "value": 1}),
    "variable without a name": lambda d: container_of(d, "scheduler")["env"].append({"value": "1"}),
    "probe of a wrong type": lambda d: container_of(d, "scheduler")["readinessProbe"].update(periodSeconds="5s"),
    "command in one text": lambda d: container_of(d, "worker").update(command="dask worker"),
    "unknown part": lambda d: d["spec"].update(workers={}),
}
JOB_FAULTS: dict[str, Fault] = {
    "limit in words": lambda d: d["spec"].update(backoffLimit="six"),
    "no template": lambda d: d["spec"].pop("template"),
    "misspelt field": lambda d: d["spec"]["template"]["spec"].update(restartPolice="Never"),
    "rule without an action": lambda d: d["spec"]["podFailurePolicy"]["rules"][0].pop("action"),
    "status in words": lambda d: d["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=["one"]),
    "truth as a number": lambda d: d["spec"]["template"]["spec"]["securityContext"].update(runAsUser=True),
    "mount without a place": lambda d: d["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0].pop(
        "mountPath"
    ),
}


@pytest.mark.parametrize("fault", CLUSTER_FAULTS.values(), ids=CLUSTER_FAULTS.keys())
def test_a_fault_in_a_cluster_is_caught(fault: Fault) -> None:
    manifest = copy.deepcopy(cluster_manifest(config_of(FULL)))
    fault(manifest)
    assert len(custom_resource_faults(manifest)) == 1


@pytest.mark.parametrize("fault", JOB_FAULTS.values(), ids=JOB_FAULTS.keys())
def test_a_fault_in_a_job_is_caught(fault: Fault) -> None:
    manifest = copy.deepcopy(coordinator_manifest(config_of(FULL), COMMAND, "run-1"))
    fault(manifest)
    assert len(kubernetes_faults(manifest)) == 1


def test_a_fault_in_a_role_is_caught() -> None:
    role = copy.deepcopy(roles()[1])
    role["rules"][0]["verb"] = role["rules"][0].pop("verbs")
    assert len(kubernetes_faults(role)) == 2


# Security


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_pods_use_mutual_tls_unless_the_configuration_says_not_to(role: str) -> None:
    secured, plain = (container_of(cluster_manifest(config_of(values)), role) for values in (PLAIN, OPEN))
    assert words_of(secured, "--protocol") == "tls"
    assert words_of(secured, "--tls-ca-file") == f"{CERTIFICATES}/ca.pem"
    assert words_of(secured, "--tls-cert") == f"{CERTIFICATES}/{role}.pem"
    assert words_of(secured, "--tls-key") == f"{CERTIFICATES}/{role}.key"
    assert {"name": "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION", "value": "True"} in secured["env"]
    assert words_of(plain, "--protocol") == "tcp" and not any("tls" in word for word in plain["command"])


def test_tls_is_not_left_out_by_leaving_it_out() -> None:
    with pytest.raises(InputError, match=r"certificates_secret is required: .*kubectl create secret.*tls = false"):
        config_of({"type": "kubernetes", "image": "dpdist:1"})
    with pytest.raises(InputError, match="pods get certificates from certificates_secret, not from files"):
        config_of(PLAIN, security={"certificates": "certs"})


def test_each_pod_gets_its_own_key_and_no_other() -> None:
    config = config_of(PLAIN)
    cluster, job = cluster_manifest(config), coordinator_manifest(config, COMMAND, "run-1")
    pods = {role: cluster["spec"][role]["spec"] for role in ("scheduler", "worker")}
    for role, pod in {**pods, "client": job["spec"]["template"]["spec"]}.items():
        [secret] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert [item["key"] for item in secret["items"]] == ["ca.pem", f"{role}.pem", f"{role}.key"]
        assert secret["secretName"] == "certs" and not secret["defaultMode"] & 0o007
        assert pod["automountServiceAccountToken"] is (role == "client")
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["fsGroup"]


@pytest.mark.parametrize("name", ["DB_PASSWORD", "MY_SECRET_NAME", "TOKEN_OF_MINE", "AWS_ACCESS_KEY_ID"])
def test_a_secret_in_the_environment_is_refused_and_not_repeated(name: str) -> None:
    values = {**PLAIN, "env": {name: "hunter2"}}
    with pytest.raises(InputError, match="under envFrom in") as named_by_kind:
        validated(KubernetesConfig, values)
    with pytest.raises(InputError, match=name) as named_by_all:
        parse_cluster(values)
    for caught in (named_by_kind, named_by_all):
        assert "hunter2" not in str(caught.value) and caught.value.__cause__ is None


def test_no_manifest_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    config = config_of(FULL)
    manifests = [cluster_manifest(config), coordinator_manifest(config, COMMAND, "run-1"), *roles()]
    text = json.dumps(manifests)
    assert "hunter2" not in text and "PRIVATE KEY" not in text
    assert all(manifest["kind"] != "Secret" for manifest in manifests)
    for container in [container_of(manifests[0], "scheduler"), container_of(manifests[0], "worker")]:
        assert container["envFrom"] == [{"secretRef": {"name": "store"}}]


def test_the_coordinator_may_do_no_more_than_it_does() -> None:
    _, role, binding = roles()
    allowed = {
        (group, kind): rule["verbs"]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    assert {"create", "delete", "get"} <= set(allowed["kubernetes.dask.org", "daskclusters"])
    assert allowed["", "pods"] == ["get", "list", "watch"]
    assert ("", "secrets") not in allowed and "*" not in json.dumps(role)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "dpdist", "namespace": "default"}]


# Settings


def test_memory_is_promised_in_full_and_the_worker_stays_below_it() -> None:
    worker = container_of(cluster_manifest(config_of(FULL)), "worker")
    assert worker["resources"] == {"limits": {"memory": "2Gi"}, "requests": {"memory": "2Gi", "cpu": "2"}}
    assert 0 < int(words_of(worker, "--memory-limit") or 0) < in_bytes("2Gi")


def test_workers_live_as_long_as_their_pods() -> None:
    worker = container_of(cluster_manifest(config_of(PLAIN)), "worker")
    assert "--lifetime" not in worker["command"]
    assert words_of(worker, "--nthreads") == words_of(worker, "--nworkers") == "1"


def test_shipped_settings_reach_dask_in_a_pod() -> None:
    """The variables of a worker's pod, read by a Dask of its own."""
    config = config_of(PLAIN)
    variables = {each["name"]: each["value"] for each in container_of(cluster_manifest(config), "worker")["env"]}
    names = sorted(config.settings())
    code = f"import dask, distributed, json; print(json.dumps([dask.config.get(name) for name in {names!r}]))"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [config.settings()[name] for name in names]
    assert variables["MALLOC_TRIM_THRESHOLD_"] and variables["NUMBA_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"image": ""}, "setting image"),
        ({"n_workers": 0}, "setting n_workers: .* got 0"),
        ({"name": "Not_A_Name"}, "setting name"),
        ({"workers": 3}, "there is no such setting; known settings are .*n_workers"),
        ({"resources": {"memory": "lots"}}, "a quantity of memory such as 4Gi, at least 512Mi; got 'lots'"),
        ({"resources": {"memory": "100Mi"}}, "at least 512Mi; got '100Mi'"),
    ],
)
def test_a_wrong_setting_is_a_sentence(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        config_of(PLAIN, **more)


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (config_of(PLAIN).launch, lambda: submitter_for(config_of(PLAIN)).submit(COMMAND, "run", tmp_path)):
        with pytest.raises(InputError, match=r"pip install 'dpdist\[kubernetes\]'"):
            call()


# Where a run may be kept


@pytest.mark.parametrize("out", ["s3://bucket/run.zarr", "/runs/mine/run.zarr"])
def test_a_run_may_be_where_all_pods_find_it(out: str) -> None:
    config_of(PLAIN, **SHARED).check_run_path(out)


@pytest.mark.parametrize(
    ("mount", "volume", "out"),
    [
        ({}, {}, "/home/me/run.zarr"),
        ({}, {}, "run.zarr"),
        ({"readOnly": True}, {}, "/runs/run.zarr"),
        ({}, {"emptyDir": {}}, "/runs/run.zarr"),
    ],
)
def test_a_run_is_refused_where_pods_would_lose_it(mount: dict[str, Any], volume: dict[str, Any], out: str) -> None:
    pod = {"volumes": [{"name": "runs", **(volume or {"persistentVolumeClaim": {"claimName": "runs"}})}]}
    container = {"volumeMounts": [{"name": "runs", "mountPath": "/runs", **mount}]}
    with pytest.raises(InputError, match=f"{out} should be storage that all pods .* give an out such as s3://"):
        config_of(PLAIN, pod=pod, container=container).check_run_path(out)


# The API


@pytest.mark.parametrize(
    ("kind", "resource", "change"),
    [("DaskCluster", CLUSTERS, {"worker": {"replicas": 7}}), ("Job", JOBS, {"suspend": True})],
)
def test_resources_are_created_read_changed_and_deleted(
    api: EmulatedKubernetes, kind: str, resource: str, change: dict[str, Any]
) -> None:
    config = config_of(FULL, name="run-1")
    manifest = cluster_manifest(config) if kind == "DaskCluster" else coordinator_manifest(config, COMMAND, "run-1")
    with kubernetes("science") as connection:
        assert named(connection, kind, "run-1", "science") is None
        created = kubernetes_object(connection, kind, manifest)
        created.create()
        assert api.manifests(resource) == [manifest]
        api.update(resource, "science", "run-1", {"status": {"phase": "Running"}})
        created.refresh()
        assert created.raw["status"]["phase"] == "Running"
        created.patch({"spec": change})
        found = named(connection, kind, "run-1", "science")
        assert found is not None and found.raw["spec"].to_dict() == {**manifest["spec"], **_merged(manifest, change)}
        delete(found)
        delete(found)
        assert named(connection, kind, "run-1", "science") is None
    assert api.requests("DELETE")[0][1] == {"propagationPolicy": "Foreground"}


def _merged(manifest: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {**manifest["spec"].get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in change.items()
    }


def test_an_api_that_refuses_or_is_not_there_is_a_sentence(
    api: EmulatedKubernetes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest = cluster_manifest(config_of(PLAIN))
    with kubernetes("default") as connection:
        kubernetes_object(connection, "DaskCluster", manifest).create()
    with pytest.raises(InputError, match=r"Kubernetes refused: .*already exists"), kubernetes("default") as connection:
        kubernetes_object(connection, "DaskCluster", manifest).create()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(InputError, match="no kubeconfig and no service account"), kubernetes("default"):
        pass
    gone = json.loads(api.kubeconfig.read_text())
    gone["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{free_port()}"
    (tmp_path / "gone").write_text(json.dumps(gone))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    with pytest.raises(InputError, match="the Kubernetes API does not answer"), kubernetes("default"):
        pass


# Launching


@pytest.fixture
def operator(
    api: EmulatedKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KubernetesConfig, int]]:
    """A configuration whose DaskCluster runs on this host, and its HTTP port."""
    folder, port, http = str(make_certificates(tmp_path / "certificates")), free_port(), free_port()
    address = f"tls://127.0.0.1:{port}"
    monkeypatch.setattr("dpdist.cluster.kinds.kubernetes_pods.CERTIFICATES", folder)
    monkeypatch.setattr(clusters, "scheduler_address", lambda config: address)
    config = config_of(PLAIN, security={"certificates": folder}, n_workers=1, resource_timeout=120)
    replacements = {
        "dask": str(Path(sys.executable).with_name("dask")),
        "8786": str(port),
        ":8787": f"127.0.0.1:{http}",
        "/scratch": str(tmp_path / "scratch"),
        CERTIFICATES: folder,
        f"tls://{config.name}-scheduler.default.svc:8786": address,
    }
    with EmulatedOperator(api, replacements):
        yield config, http


def test_a_launched_cluster_works_under_tls_and_is_deleted_when_closed(
    api: EmulatedKubernetes, operator: tuple[KubernetesConfig, int]
) -> None:
    config, http = operator
    backend = config.launch()
    try:
        [cluster] = api.manifests(CLUSTERS)
        assert cluster["spec"] == cluster_manifest(config)["spec"]
        assert backend.client.scheduler.address.startswith("tls://")
        assert backend.fetch(backend.map(abs, [-1, 2])) == [1, 2]
        assert _status(http, "/health") == 200 and _status(http, "/metrics") == 200
        for page in ("/status", "/info/main/workers.html", "/json/counts.json", "/api/v1/retire_workers"):
            assert _status(http, page) == 404
    finally:
        backend.close()
    assert api.manifests(CLUSTERS) == []


def _status(port: int, page: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "run-1", "uid": "5a0c"}


def test_a_cluster_left_by_an_earlier_pod_of_the_same_job_is_replaced(
    api: EmulatedKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB_NAME, "run-1")
    monkeypatch.setenv(JOB_UID, "5a0c")
    monkeypatch.setattr(clusters, "scheduler_address", lambda config: f"tcp://127.0.0.1:{free_port()}")
    left = {"metadata": {"name": "run-1", "namespace": "default", "ownerReferences": [OWNER]}, "spec": {"left": True}}
    with kubernetes("default") as connection:
        kubernetes_object(connection, "DaskCluster", left).create()
    with pytest.warns(UserWarning, match="runs without TLS"), pytest.raises(InputError, match="operator"):
        config_of(OPEN, resource_timeout=0.1).launch()
    (_, first), (_, second) = api.requests("POST")
    assert first["spec"] == {"left": True} and second["spec"]["worker"]["replicas"] == 2
    assert second["metadata"]["name"] == "run-1" and second["metadata"]["ownerReferences"] == [OWNER]
    assert len(api.requests("DELETE")) == 2 and api.manifests(CLUSTERS) == []


def test_a_cluster_of_somebody_else_is_left_alone(api: EmulatedKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(OPEN)
    other = {**cluster_manifest(config), "spec": {"mine": True}}
    with kubernetes("default") as connection:
        kubernetes_object(connection, "DaskCluster", other).create()
    with (
        pytest.warns(UserWarning, match="runs without TLS"),
        pytest.raises(InputError, match="a DaskCluster dpdist exists already in namespace default"),
    ):
        config.launch()
    assert [each["spec"] for each in api.manifests(CLUSTERS)] == [{"mine": True}]


def test_a_cluster_that_nobody_takes_up_is_a_sentence_and_is_deleted(
    api: EmulatedKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "scheduler_address", lambda config: f"tcp://127.0.0.1:{free_port()}")
    with (
        pytest.warns(UserWarning, match="runs without TLS"),
        pytest.raises(InputError, match=r"no worker of the DaskCluster dpdist .* is the Dask operator installed"),
    ):
        config_of(OPEN, resource_timeout=0.1).launch()
    assert api.manifests(CLUSTERS) == []


def test_pods_that_do_not_start_are_named_with_their_trouble(
    api: EmulatedKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "scheduler_address", lambda config: f"tcp://127.0.0.1:{free_port()}")
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    api.put(PODS, {"metadata": {"name": "scheduler-1", "namespace": "default"}, "status": waiting})
    with (
        pytest.warns(UserWarning, match="runs without TLS"),
        pytest.raises(InputError, match=r"no worker .* within 1 s \(scheduler-1: ImagePullBackOff\)"),
    ):
        config_of(OPEN, resource_timeout=1).launch()
    assert api.manifests(CLUSTERS) == []


def test_outside_a_pod_certificates_are_missed_before_anything_is_created(api: EmulatedKubernetes) -> None:
    with pytest.raises(InputError, match="reached only from a pod, such as dpdist submit creates"):
        config_of(PLAIN).launch()
    assert api.manifests(CLUSTERS) == []


# Submission


def test_a_coordinator_is_submitted_watched_and_cancelled(api: EmulatedKubernetes, tmp_path: Path) -> None:
    submitter = submitter_for(config_of(FULL))
    job = submitter.submit(COMMAND, "My_Run.zarr", tmp_path / "jobs")
    [manifest] = api.manifests(JOBS)
    name = manifest["metadata"]["name"]
    assert job.identity == f"science/{name}" and name.startswith("my-run-zarr-")
    assert json.loads((tmp_path / "jobs" / f"{name}.json").read_text()) == manifest
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", *COMMAND[1:]]
    again = submitter_of(job)
    assert again.state(job) == (JobState.WAITING, "its pod has not started yet")
    pod = {
        "metadata": {"name": "p", "namespace": "science"},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    api.put(PODS, pod)
    assert again.state(job) == (JobState.RUNNING, "pod p on n1")
    again.cancel(job)
    assert api.manifests(JOBS) == []
    assert again.state(job)[0] is JobState.ENDED
    again.cancel(job)


def test_a_job_that_ended_keeps_its_record(api: EmulatedKubernetes, tmp_path: Path) -> None:
    submitter = submitter_for(config_of(FULL))
    job = submitter.submit(COMMAND, "run", tmp_path)
    done = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    api.update(JOBS, "science", job.identity.split("/")[1], done)
    submitter.cancel(job)
    assert submitter.state(job) == (JobState.ENDED, "Complete")


def test_without_an_api_the_state_is_unknown_and_says_why(
    api: EmulatedKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter = submitter_for(config_of(FULL))
    job = submitter.submit(COMMAND, "run", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    state, words = submitter.state(job)
    assert state is JobState.UNKNOWN and "no kubeconfig" in words


def test_an_evicted_coordinator_starts_again_and_a_sentence_is_final() -> None:
    spec = coordinator_manifest(config_of(PLAIN), COMMAND, "run-1")["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
    evicted, again, final = spec["podFailurePolicy"]["rules"]
    assert evicted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert again["action"] == "Ignore" and again["onExitCodes"]["values"] == [AGAIN]
    assert final["action"] == "FailJob" and {1, CANCELLED} <= set(final["onExitCodes"]["values"])


JOB: dict[str, Any] = {"metadata": {"name": "run-1"}, "status": {}}
LACKING = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
FAILED = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 1"}


def pod_of(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


@pytest.mark.parametrize(
    ("job", "pods", "expected"),
    [
        (JOB, [pod_of(phase="Pending", conditions=[LACKING])], (JobState.WAITING, "p: Unschedulable, 0/3 nodes are")),
        (JOB, [pod_of(phase="Failed", reason="Evicted")], (JobState.WAITING, "p: Evicted")),
        (JOB, [pod_of(phase="Running")], (JobState.RUNNING, "pod p on a node")),
        ({**JOB, "status": {"conditions": [FAILED]}}, [], (JobState.ENDED, "Failed, PodFailurePolicy, exit code 1")),
        ({"metadata": {"deletionTimestamp": "now"}}, [], (JobState.RUNNING, "is being cancelled")),
    ],
    ids=["unschedulable", "evicted", "running", "failed", "cancelled"],
)
def test_a_job_is_told_in_the_words_of_kubernetes(
    job: dict[str, Any], pods: list[dict[str, Any]], expected: tuple[JobState, str]
) -> None:
    state, words = job_state(job, pods)
    assert state is expected[0] and words.startswith(expected[1])


def test_troubles_of_pods_are_told_in_words() -> None:
    killed = {"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "state": {"running": {}}}
    unknown = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    starting = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    pods = [pod_of(containerStatuses=[each]) for each in (killed, unknown, starting)]
    assert troubles(pods) == ["p: ended with exit code 137 (OOMKilled)", "p: ImagePullBackOff, no such image"]


@pytest.mark.parametrize("name", ["run", "A.B_c", "9", "x" * 100, "..."])
def test_names_of_jobs_are_ones_that_kubernetes_takes(name: str) -> None:
    made = unique_name(name)
    assert KubernetesConfig(image="i", certificates_secret="c", name=made).name == made != unique_name(name)
