"""An emulated Kubernetes API on loopback, and validators for what is sent to it: no pod ever runs here."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import importlib.resources
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes.client
import pydantic
import pytest
import yaml
from kmock import KubernetesEmulator, Server

#: Plurals that the emulated API knows.
RESOURCES = ("kubernetes.dask.org/v1/daskclusters", "batch/v1/jobs", "v1/pods")
RUNNING = {"phase": "Running"}
VERSION = {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}


class EmulatedKubernetes:
    """The API of one cluster, served from a thread of this process.

    Objects are kept as they come: nothing is defaulted, validated, scheduled or started.
    """

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._loop, self._ready, self._stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    async def _serve(self) -> None:
        async with KubernetesEmulator() as self.emulator, Server(self.emulator) as server:
            # The client asks with a slash at the end.
            self.emulator["get /version/"] << VERSION
            for resource in RESOURCES:
                self.emulator.resources[resource] = {"namespaced": True}
            self.kubeconfig.write_text(json.dumps(_kubeconfig(str(server.url).rstrip("/"))))
            self._ready.set()
            await self._stop.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def requests(self, method: str) -> list[tuple[str, Any]]:
        """Path and body of the requests so far with one method."""
        return [(request.url.path, request.data) for request in self.emulator if request.method.value == method]

    def put(self, resource: str, manifest: dict[str, Any]) -> None:
        """Have an object there, as somebody else would."""
        metadata = manifest["metadata"]
        self.emulator.objects[resource, metadata["namespace"], metadata["name"]] = manifest

    def update(self, resource: str, namespace: str, name: str, change: dict[str, Any]) -> None:
        """Merge `change` into an object, as a controller would."""
        self.emulator.objects[resource, namespace, name].patch(change)

    def manifests(self, resource: str) -> list[dict[str, Any]]:
        """The objects that are there."""
        return [
            copy.deepcopy(dict(found.raw))
            for (kind, _, _), found in list(self.emulator.objects.items())
            if f"{kind.group}/{kind.version}/{kind.plural}".lstrip("/") == resource and not found.deleted
        ]


@contextlib.contextmanager
def emulated_kubernetes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedKubernetes]:
    """An emulated API that the kubeconfig of this process names."""
    api = EmulatedKubernetes(folder)
    api.start()
    try:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api
    finally:
        api.stop()


class EmulatedOperator:
    """Runs the commands of each DaskCluster that appears as processes of this host, and ends them when it is deleted.

    Parameters
    ----------
    api : where DaskClusters appear
    replacements : texts of the commands and variables that differ between a pod and this host
    """

    def __init__(self, api: EmulatedKubernetes, replacements: dict[str, str]) -> None:
        self.api, self.replacements = api, replacements
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> EmulatedOperator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._processes):
            self._end(name)

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            there = {each["metadata"]["name"]: each for each in self.api.manifests(RESOURCES[0])}
            for name in set(self._processes) - set(there):
                self._end(name)
            for name in set(there) - set(self._processes):
                self._processes[name] = [self._start(there[name], role) for role in ("scheduler", "worker")]
                self.api.update(RESOURCES[0], there[name]["metadata"]["namespace"], name, {"status": RUNNING})

    def _start(self, cluster: dict[str, Any], role: str) -> subprocess.Popen[bytes]:
        container = cluster["spec"][role]["spec"]["containers"][0]
        variables = {each["name"]: each["value"] for each in container["env"]} | {"DASK_WORKER_NAME": "w-0"}
        words = [word.replace("$(DASK_WORKER_NAME)", variables["DASK_WORKER_NAME"]) for word in container["command"]]
        environment = os.environ | {name: self._here(value) for name, value in variables.items()}
        return subprocess.Popen([self._here(word) for word in words], env=environment, start_new_session=True)

    def _here(self, text: str) -> str:
        for before, after in self.replacements.items():
            text = after if text == before else text.replace(before, after) if len(before) > 5 else text
        return text

    def _end(self, name: str) -> None:
        for process in self._processes.pop(name):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "emulated",
        "clusters": [{"name": "emulated", "cluster": {"server": url}}],
        "users": [{"name": "emulated", "user": {}}],
        "contexts": [{"name": "emulated", "context": {"cluster": "emulated", "user": "emulated"}}],
    }


def custom_resource_faults(manifest: dict[str, Any]) -> list[str]:
    """Where a custom resource departs from the definition that dask-kubernetes installs."""
    validator = _validator(manifest["apiVersion"], manifest["kind"])
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@functools.cache
def _validator(version: str, kind: str) -> jsonschema.Draft7Validator:
    schema = _definitions()[version, kind]
    common = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return jsonschema.Draft7Validator(_closed(schema | {"properties": schema["properties"] | common}))


@functools.cache
def _definitions() -> dict[tuple[str, str], Any]:
    folder = importlib.resources.files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    # The files are large, and PyYAML without its C part takes a minute over them.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = [document for file in folder.iterdir() for document in yaml.load_all(file.read_text(), loader)]
    return {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"]): version["schema"]["openAPIV3Schema"]
        for spec in (document["spec"] for document in documents if document)
        for version in spec["versions"]
    }


def _closed(schema: Any) -> Any:
    """A definition's schema as JSON schema, in which properties that are not named are faults."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    return closed


def kubernetes_faults(manifest: dict[str, Any]) -> list[str]:
    """Where a resource departs from the Kubernetes API, as the closed and strict models of its client describe it."""
    model = getattr(kubernetes.client, f"V1{manifest['kind']}")
    try:
        model.model_validate(manifest, by_alias=True, by_name=False)
    except pydantic.ValidationError as error:
        return [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
    return []
