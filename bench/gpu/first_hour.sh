#!/usr/bin/env bash
# The first hour on a machine with a GPU: bench/gpu/first_hour.sh BLOCK FOLDER [COMMIT]
#
# A block ends within 8 minutes. It needs torch, triton, cupy, numpy, pytest and hypothesis, no network, no git and no
# data; `memcheck` and `racecheck` also need compute-sanitizer. Rows and the log, BLOCK.log, go to FOLDER, 16 MiB at most.
# Without a GPU every block runs on the host build of the CUDA kernels, on tiny corpora.
set -uo pipefail
cd "$(dirname "$0")/../.."
block=${1:?a block: tests devices memcheck racecheck writes smoke cached ideas large growth}
folder=${2:?the folder of rows and logs}
commit=${3:-unknown}
mkdir -p "$folder"
folder=$(realpath "$folder")
export PYTHONPATH=src PYTHONUNBUFFERED=1
export HYPOTHESIS_STORAGE_DIRECTORY="$folder/hypothesis"
python=${PYTHON:-python3}
if "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then device=gpu; else device=host; fi

kernels=tests/kernels/test_gpu_kernels.py
engines="tests/devices tests/serve/test_pipeline.py tests/vectors/test_dense.py tests/hybrid/test_every_strategy.py"
test="$python -m pytest -q -p no:cacheprovider --durations=5"
if [ $device = gpu ]; then
    smoke= few=
else
    # The same checks over the host build; what is marked gpu is skipped.
    kernels=tests/kernels/test_cuda_kernels.py engines="tests/devices tests/serve/test_pipeline.py"
    smoke=--smoke few="-k cuda-host"
fi
bench="--out $folder --commit $commit"

run() {
    case $block in
    tests) if [ $device = gpu ]; then $test -m gpu $kernels; else $test $kernels -k "every_case and ascending"; fi ;;
    devices) if [ $device = gpu ]; then $test -m gpu $engines; else $test $few $engines; fi ;;
    memcheck) checked memcheck "$test -m gpu $kernels -k" "every_case and cuda and (plain or decay or signed)" ;;
    racecheck) checked racecheck "$test -m gpu $kernels -k" "every_case and cuda and (plain or decay or signed)" ;;
    writes) $python -m bench.gpu.writes $bench --minutes 6 ;;
    smoke) $python -m bench.gpu.run --smoke $bench && $python -m bench.gpu.ablation --smoke $bench ;;
    cached) $python -m bench.gpu.run $smoke --corpora fiqa-shaped --batches all,20,256,1 --ks 100,10,1000 \
        --budget 0.15 --minutes 6 $bench ;;
    ideas) $python -m bench.gpu.ablation $smoke --parts ideas,pipeline --minutes 6 $bench ;;
    large) $python -m bench.gpu.run $smoke --corpora nq-shaped --batches all,256,20,1 --ks 100,10 \
        --budget 0.2 --minutes 5 $bench ;;
    growth) $python -m bench.gpu.ablation $smoke --parts batch,corpus,k,length --minutes 6 $bench ;;
    *)
        echo "no block $block" >&2
        return 2
        ;;
    esac
}

checked() {
    if ! command -v compute-sanitizer >/dev/null; then
        echo "no compute-sanitizer: $1 is left out"
        return 0
    fi
    # torch's allocator would hide accesses between its blocks.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 9 $2 "$3"
}

export -f run checked
export block folder commit device kernels engines test python smoke few bench
begin=$(date +%s)
timeout 480 bash -c run 2>&1 | tail -c 8000000 | tee "$folder/$block.log"
status=${PIPESTATUS[0]}
echo "$block on $device: status $status after $(($(date +%s) - begin)) s" | tee -a "$folder/blocks.log"
exit "$status"
