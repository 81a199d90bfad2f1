import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("model"))
    subprocess.run([sys.executable, Path(__file__).parent / "model.py", folder], check=True, timeout=120)
    return folder
