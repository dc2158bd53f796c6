#!/usr/bin/env bash
# Write the lock files of locks/ from the versions in .venv and .venv-jax, which `make check` and `make test-jax` test.
# Usage: make lock
set -euo pipefail
tools=.venv-lock
test -x $tools/bin/uv || { python3 -m venv $tools; $tools/bin/pip install --quiet --disable-pip-version-check uv; }
echo setuptools > "$tools/build.in"  # builds the package itself
lock() {  # lock NAME PYTHON EXTRA...
  local name=$1 python=$2 extras=()
  shift 2
  for extra in "$@"; do extras+=(--extra "$extra"); done
  "$python" -m pip freeze --exclude-editable | grep -v ' @ ' > "$tools/versions.txt"
  {
    echo "# Versions that the tests of this commit ran with: hpc_es[$(IFS=,; echo "$*")], Linux x86_64, Python 3.11."
    echo "# Written by make lock. Install: pip install --require-hashes -r locks/$name.txt && pip install --no-deps --no-build-isolation ."
    $tools/bin/uv pip compile --quiet setup.cfg "$tools/build.in" "${extras[@]}" --constraint "$tools/versions.txt" --python-version 3.11 \
      --python-platform x86_64-manylinux_2_28 --generate-hashes --no-annotate --no-header
  } > "$tools/$name.txt"
  mv "$tools/$name.txt" "locks/$name.txt"
}
lock cpu .venv/bin/python mpi mujoco box2d atari tune programs video tensorboard
lock tensorflow .venv/bin/python mpi mujoco box2d atari tune programs video tensorflow
lock jax .venv-jax/bin/python mpi jax video
