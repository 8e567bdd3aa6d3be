#!/usr/bin/env bash
# Builds wheel and sdist into dist/, twice and the same, checks them, and tries the wheel in a fresh environment outside of the checkout.
# Usage: tests/release.sh. Needs the environment of `make setup`, and a way to the package index. Publishes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=$PWD/.venv/bin
TWINE=twine==7.0.0
CONTENTS=check-wheel-contents==0.6.3
SBOM=cyclonedx-bom==7.5.0

[[ -z $(git status --porcelain --untracked-files=no) ]] || { echo "Files differ from the commit: what is released is a commit." >&2; exit 2; }
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$BIN/python" -m hatchling build -d dist > /dev/null
# From another folder, without what isn't in the commit: an export, not this checkout.
git archive HEAD --prefix=export/ | tar -x -C "$work"
(cd "$work/export" && "$BIN/python" -m hatchling build -d "$work/again" > /dev/null)
for file in dist/*; do
  cmp "$file" "$work/again/$(basename "$file")" || { echo "$file is not the same when it is built again." >&2; exit 1; }
done

"$BIN/uvx" "$TWINE" check --strict dist/*
"$BIN/uvx" "$CONTENTS" dist/*.whl

python3 -m venv "$work/fresh"
wheel=$(echo "$PWD"/dist/*.whl)
"$work/fresh/bin/pip" install --quiet "$wheel[demo]"
"$work/fresh/bin/pip" check
cd "$work"
version=$("$work/fresh/bin/python" -c 'import onceforall; print(onceforall.__version__, onceforall.__file__)')
[[ $version == *"$work/fresh/"* ]] || { echo "Not the installed package was imported: $version" >&2; exit 1; }
"$work/fresh/bin/onceforall" demo --events 20000
cd - > /dev/null
"$BIN/uvx" --from "$SBOM" cyclonedx-py environment --output-reproducible --of JSON -o dist/onceforall.cdx.json "$work/fresh/bin/python"
sha256sum dist/*
