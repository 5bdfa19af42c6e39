"""Print the requirements of one extra of pyproject.toml, one per line, for ``pip install --requirement``."""

import pathlib
import sys
import tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text("utf-8"))["project"]
sys.stdout.writelines(f"{requirement}\n" for requirement in project["optional-dependencies"][sys.argv[1]])
