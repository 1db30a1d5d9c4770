#!/usr/bin/env bash
# Runs the core of the tests on an extension built with sanitizers: tests/extended/sanitizers/sanitize.sh address|thread [test ...]
# `address` also looks for undefined behaviour. Any report of a sanitizer ends it with a status other than 0.
set -euo pipefail
cd "$(dirname "$0")/../../.."
kind=${1:?address or thread}
shift
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
folder=$PWD/build/sanitize-$kind

case $kind in
address)
    flags="-fsanitize=address,undefined -fno-sanitize-recover=all"
    libraries="libasan.so libubsan.so libstdc++.so"
    # CPython gives back its own memory only in part.
    export ASAN_OPTIONS="detect_leaks=0:halt_on_error=1:log_path='$folder/report'"
    export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:log_path='$folder/report'"
    ;;
thread)
    flags="-fsanitize=thread"
    libraries="libtsan.so libstdc++.so"
    # Python and numpy are not built for it, so only what the extension does is looked at. They are not left out by
    # ignore_noninstrumented_modules: a thread that once waited for the interpreter's lock was then looked at no more.
    export TSAN_OPTIONS="halt_on_error=1:exitcode=66:log_path='$folder/report'"
    ;;
*)
    echo "address or thread, not $kind" >&2
    exit 2
    ;;
esac

# The checkout once more, with an extension of its own.
mkdir -p "$folder"
rm -rf "$folder"/report* "$folder/src"
cp -R src "$folder/src"
cp setup.py pyproject.toml README.md LICENSE "$folder/"
for room in engine integrations kernels cpu_fallback server client shards; do ln -sfn "$PWD/$room" "$folder/$room"; done
mkdir -p "$folder/native"
find "$folder/native" -maxdepth 1 -type f ! -name '*.so' -delete
cp -p native/*.py native/*.cpp native/*.hpp "$folder/native/"
(
    cd "$folder"
    FANRANK_CXXFLAGS="-g -O1 -fno-omit-frame-pointer $flags" FANRANK_LDFLAGS="$flags" \
        "$python" setup.py -q build_ext --inplace
)

preload=
for library in $libraries; do preload="$preload $(g++ -print-file-name=$library)"; done
# Without a fixed layout of addresses the thread sanitizer does not start on every kernel.
run=(setarch -R env LD_PRELOAD="${preload# }" PYTHONMALLOC=malloc PYTHONPATH="$folder/src" "$python")
"${run[@]}" - "$folder" <<'PYTHON'
import sys
from fanrank.native import compiled, reason
assert compiled is not None, reason
assert compiled.__file__.startswith(sys.argv[1]), compiled.__file__
PYTHON

status=0
# What the sanitizers write to standard error is not captured: the undefined-behaviour one knows no other place.
"${run[@]}" -m pytest -q --capture=sys -p no:cacheprovider -o pythonpath="$folder/src tests" "$@" || status=$?
for report in "$folder"/report*; do
    [ -e "$report" ] || continue
    cat "$report"
    status=1
done
exit $status
