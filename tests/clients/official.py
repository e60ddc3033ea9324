"""The official Python client's own API tests against the daemon: official.py FOLDER. They come with its source package,
of the version that is installed, and are unpacked in FOLDER, where `official.json` then tells how many passed.

A test that fails must be among `REFUSED`, and one that is there must fail."""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import xml.etree.ElementTree

FILES = ["chat/test_completions.py", "test_completions.py", "test_embeddings.py", "test_models.py"]
ALL_PARAMETERS = "asks for audio, functions of the first form, a web search and no token at once"
NOT_KEPT = "asks for a completion that was kept under an id: turns are read elsewhere"
# Tests by the end of their name, and why the daemon refuses what they ask.
REFUSED = {
    "chat/test_completions.py": {
        "create_with_all_params_overload_1": ALL_PARAMETERS,
        "create_with_all_params_overload_2": ALL_PARAMETERS,
        **{
            f"{kind}_{name}": NOT_KEPT
            for kind in ("method", "raw_response", "streaming_response")
            for name in ("retrieve", "update", "list", "delete", "list_with_all_params")
        },
    },
    "test_completions.py": {
        "create_with_all_params_overload_1": "asks for `suffix` and the best of several",
        "create_with_all_params_overload_2": "asks for `suffix` and the best of several",
    },
    # Vectors come as the base64 that the client asks for by itself; its strict reading then takes them for no lists.
    "test_embeddings.py": {
        f"{kind}_create[{mode}]": "the client refuses its own base64 where it reads strictly"
        for kind in ("method", "raw_response", "streaming_response")
        for mode in ("strict", "aiohttp")
    },
    "test_models.py": {
        f"{kind}_delete": "asks for a model to be deleted" for kind in ("method", "raw_response", "streaming_response")
    },
}


def unpacked(folder):
    version = importlib.metadata.version("openai")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-binary", "openai", f"openai=={version}", "--dest", folder], check=True)
    (package,) = folder.glob(f"openai-{version}.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"openai-{version}"


def outcomes(source, report):
    """(file, name, passed) of each test that was run."""
    environment = {**os.environ, "TEST_API_BASE_URL": os.environ["DAEMON_TEST_URL"] + "/v1"}
    files = [f"tests/api_resources/{name}" for name in FILES]
    # Settings of its project want programs that its tests do not need.
    pytest = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "--quiet"]
    options = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session", f"--junit-xml={report}"]
    subprocess.run([*pytest, *options, "--tb=line", *files], cwd=source, env=environment, check=False)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        path = case.get("classname").removeprefix("tests.api_resources.").rsplit(".", 1)[0].replace(".", "/") + ".py"
        yield path, case.get("name"), case.find("failure") is None and case.find("error") is None


def main():
    folder = pathlib.Path(sys.argv[1])
    found = list(outcomes(unpacked(folder), folder / "official.xml"))
    wrong = []
    for path, name, passed in found:
        bare = name.split("[")[0]
        refused = any(bare.endswith(end) or name.endswith(end) for end in REFUSED.get(path, {}))
        if passed == refused:
            wrong.append(f"{path}: {name} {'passed, and is listed as refused' if passed else 'failed'}")
    version = importlib.metadata.version("openai")
    told = {"version": version, "tests": len(found), "passed": sum(passed for *_, passed in found), "unexpected": len(wrong)}
    (folder / "official.json").write_text(json.dumps(told))
    print("\n".join(wrong) or f"the client's own tests: {told}")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
