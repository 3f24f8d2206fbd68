"""What a public forge reads: workflows that agree with the tables, little power, sound forms."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from support import any_server

ROOT = Path(__file__).resolve().parents[2]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
TABLE = tomllib.loads((ROOT / "scripts" / "matrix.toml").read_text("utf-8"))
# The action that publishes names its versions as branches, such as release/v1.
PINNED = re.compile(r"@[0-9a-f]{40} # (?:release/)?v?\d")
# What a job may ask for beyond reading the code, and which job may.
POWERS = {
    ("artifacts.yml", "provenance"): {"attestations": "write", "id-token": "write"},
    ("release.yml", "publish"): {"attestations": "write", "id-token": "write"},
}


def loaded(path: Path) -> dict[str, Any]:
    """Return a file of YAML. Its key `on` is true to YAML."""
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield file, name and content of each job."""
    for path in WORKFLOWS:
        for name, job in loaded(path)["jobs"].items():
            yield path.name, name, job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for file, name, job in jobs():
        for step in job["steps"]:
            yield f"{file}: {name}", step


def test_the_matrix_is_that_of_the_table() -> None:
    contracts = loaded(FORGE / "workflows" / "tests.yml")["jobs"]["contracts"]
    matrix = contracts["strategy"]["matrix"]
    oldest, newest = (int(TABLE["python"][each].split(".")[1]) for each in ("oldest", "newest"))
    assert matrix == {
        "python": [f"3.{minor}" for minor in range(oldest, newest + 1)],
        "redis-py": ["oldest", "newest"],
        "server": [*any_server.SERVERS],
    }


def test_the_servers_faults_are_looked_at_every_night() -> None:
    workflow = loaded(FORGE / "workflows" / "tests.yml")
    # YAML takes the key `on` for true.
    (nightly,) = [
        each["cron"] for each in workflow[True]["schedule"] if each["cron"].endswith(" * * *")
    ]
    others = {name: job["if"] for name, job in workflow["jobs"].items() if name != "faults"}
    assert set(others.values()) == {f"github.event.schedule != '{nightly}'"}
    faults = workflow["jobs"]["faults"]
    assert faults["if"] == f"github.event.schedule == '{nightly}'"
    (path,) = re.findall(r'TEST_ARGS="([^"]+)"', faults["steps"][-1]["run"])
    assert "def test_a_server_shows_the_faults" in (ROOT / path).read_text("utf-8")


# A kind of server of the tests -> how docs/versions.md names it.
CLAIMED = {
    "fakeredis": "fakeredis",
    "redis7": "Redis 7.0.15, alone",
    "redis8": "Redis 8.0.2, alone",
    "valkey8": "Valkey 8.1.1",
    "redis62": "Redis 6.2.5",
    "redis82": "Redis 8.2.3",
    "valkey9": "Valkey 9.1.2",
    "cluster": "Redis 7.0.15, alone and as a cluster",
}


def test_each_server_of_the_docs_has_a_cell() -> None:
    """Its name stands in the table of servers, and the other way round."""
    text = (ROOT / "docs" / "versions.md").read_text("utf-8")
    table = text.partition("## Servers")[2].partition("Others were not run")[0]
    assert CLAIMED.keys() == any_server.SERVERS.keys()
    assert [name for name in CLAIMED.values() if name not in table] == []
    claimed = set(re.findall(r"(?:Redis|Valkey) \d+\.\d+\.\d+", table))
    assert claimed == set(re.findall(r"(?:Redis|Valkey) \d+\.\d+\.\d+", " ".join(CLAIMED.values())))


def test_a_cell_has_its_python_its_redis_py_and_its_server(
    load_script: Callable[[str], ModuleType],
) -> None:
    matrix = load_script("matrix")
    row = TABLE["packages"]["redis"]
    oldest = matrix.cell("3.12", "oldest", "redis8")
    assert oldest["python"] == ["3.12"]
    assert matrix.constraints(oldest) == [f"redis=={row['oldest']}"]
    assert oldest["tests"] == [["--part=redis8", "tests/structures", "tests/jobs"]]
    newest = matrix.cell("3.13", "newest", "redis7")
    assert matrix.constraints(newest) == [f"redis=={row['newest']}.*"]
    assert newest["tests"][0][:2] == ["-m", "contract and not (slow or matrix or cluster)"]
    assert set(TABLE["cell"]) - {"tests"} == set(any_server.TWO)


def test_a_workflow_has_the_least_power() -> None:
    assert len(WORKFLOWS) == 3
    for path in WORKFLOWS:
        assert loaded(path)["permissions"] == {}, path.name
    for file, name, job in jobs():
        wanted = POWERS.get((file, name), {"contents": "read"})
        assert job["permissions"] == wanted, (file, name)
        assert job["timeout-minutes"] <= 90
    kept = [
        step["with"]["persist-credentials"]
        for _, step in steps()
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert len(kept) >= 5
    assert set(kept) == {False}
    # A job that may sign or publish runs nothing of the repository.
    for file, name, job in jobs():
        if (file, name) in POWERS:
            assert not any("checkout" in step.get("uses", "") for step in job["steps"])


def test_no_text_of_a_stranger_gets_into_a_command() -> None:
    """An expression in a command is filled in before the shell reads it."""
    commands = [(place, step["run"]) for place, step in steps() if "run" in step]
    assert len(commands) >= 5
    assert [place for place, command in commands if "${{" in command] == []


def test_a_person_approves_what_is_published() -> None:
    release = loaded(FORGE / "workflows" / "release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}
    publish = release["jobs"]["publish"]
    assert publish["environment"] == "release"
    assert publish["needs"] == "build"
    assert {"run": "make release"} in release["jobs"]["build"]["steps"]
    uses = [step.get("uses", "").partition("@")[0] for step in publish["steps"]]
    assert uses[-1] == "pypa/gh-action-pypi-publish"
    assert "password" not in json.dumps(publish)
    for file, name, job in jobs():
        assert ("environment" in job) == ((file, name) == ("release.yml", "publish"))


def test_one_finding_alone_is_configured_away_with_its_reason() -> None:
    """Until a person has pinned all actions to hashes, and has removed the file."""
    files = "".join(path.read_text("utf-8") for path in WORKFLOWS)
    assert "zizmor: ignore" not in files
    if (FORGE / "zizmor.yml").exists():
        text = (FORGE / "zizmor.yml").read_text("utf-8")
        rules = yaml.safe_load(text)["rules"]
        assert rules == {"unpinned-uses": {"config": {"policies": {"*": "ref-pin"}}}}
        assert "# The hash of an action's commit cannot be looked up" in text
        contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
        assert "`.github/zizmor.yml`" in contributing.partition("## A release")[2]
    else:
        unpinned = [each for each in re.findall(r"uses: (.*)", files) if not PINNED.search(each)]
        assert unpinned == []


def test_every_command_of_a_workflow_is_a_target_of_make_or_a_script() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    found = [
        found[1] for _, step in steps() if (found := re.match(r"make (\S+)", step.get("run", "")))
    ]
    assert found
    assert set(found) <= targets


def test_a_report_of_a_vulnerability_is_led_to_the_policy(
    load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = load_script("artifacts")
    monkeypatch.delenv(artifacts.VARIABLE, raising=False)
    (link,) = loaded(FORGE / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]
    assert link["url"] == f"{artifacts.home()}/blob/main/SECURITY.md"
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    for heading in ("How to report", "Which versions get fixes", "In scope", "Out of scope"):
        assert f"## {heading}\n" in text


PAGES = ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(
    page: str, load_script: Callable[[str], ModuleType]
) -> None:
    targets = load_script("artifacts").links((ROOT / page).read_text("utf-8"))
    assert targets
    for target in targets:
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        if anchor:
            text = (ROOT / path).read_text("utf-8")
            headings = re.findall(r"^#+ (.*)$", text, re.M)
            assert anchor in {each.lower().replace(" ", "-") for each in headings}, target


def test_the_schemas_fit(load_script: Callable[[str], ModuleType]) -> None:
    """With the tools of a release, where they are installed; the rehearsal installs them."""
    release = load_script("release")
    checker = release.Release(ROOT, ROOT / "dist").tool("check-jsonschema")
    if not checker.exists():
        pytest.skip("the tools of a release are not installed: make release installs them")
    for schema, pattern in release.SCHEMAS.items():
        paths = sorted(ROOT.glob(pattern))
        assert paths, pattern
        command = [checker, "--builtin-schema", f"vendor.{schema}", *paths]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
