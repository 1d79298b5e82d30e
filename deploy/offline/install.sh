#!/bin/sh
# Install Kair from this folder of wheels, without a network: ./install.sh [DIR], by default ~/.local/kair.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$HOME/.local/kair}
(cd "$here" && sha256sum --quiet --check SHA256SUMS)
"${PYTHON:-python3}" -m venv "$target"
"$target/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$here" kair
"$target/bin/kair" --version
echo "Add $target/bin to PATH."
