"""Print the requirements of an extra of pyproject.toml, or of ``build-system``, one a line, for pip and uv."""

import pathlib
import sys
import tomllib

pyproject = tomllib.loads(pathlib.Path("pyproject.toml").read_text("utf-8"))
listed = {"build-system": pyproject["build-system"]["requires"], **pyproject["project"]["optional-dependencies"]}
sys.stdout.writelines(f"{requirement}\n" for requirement in listed[sys.argv[1]])
