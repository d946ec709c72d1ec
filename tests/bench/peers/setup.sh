#!/bin/bash
# Makes the Python environment of the peers from pinned PyPI versions and prints the path of its interpreter.
# The torch wheel that LibTorch was unpacked from (tools/setup.sh) is used again; nothing is built twice.
set -euo pipefail

cache="${XDG_CACHE_HOME:-$HOME/.cache}/contexture"
torch="torch==2.11.0"
light=(filelock==4.3.1 fsspec==2026.9.0 jinja2==3.1.6 networkx==3.6.1 sympy==1.14.0 typing_extensions==4.16.0)
# What libtorch_cuda.so loads besides a CUDA 13 toolkit: import torch fails without them, GPU or not.
nvidia=(nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.20.0.107)
packages=(faiss-cpu==1.15.1 numpy==2.4.6 pillow==13.0.0 safetensors==0.8.0 scikit-learn==1.9.1 scipy==1.17.1 tqdm==4.70.1
  transformers==5.23.0 webdataset==1.0.2)
sentence_transformers="sentence-transformers==6.2.0"

key="$(printf '%s\n' "$torch" "${light[@]}" "${nvidia[@]}" "${packages[@]}" "$sentence_transformers" | sha256sum | cut -c1-12)"
venv="$cache/bench-peers-$key"
if [[ ! -e "$venv/done" ]]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
  wheel="$(ls "$cache"/wheels/torch-2.11.0-*.whl 2>/dev/null | head -n 1 || true)"
  "${pip[@]}" "${packages[@]}" >&2
  if ldconfig -p | grep -q 'libcublas\.so\.13'; then
    "${pip[@]}" "${light[@]}" >&2
    "${pip[@]}" --no-deps "${wheel:-$torch}" "${nvidia[@]}" >&2  # last, or pip complains of what the toolkit provides
  else
    "${pip[@]}" "${wheel:-$torch}" >&2  # with the CUDA libraries as wheels
  fi
  "${pip[@]}" --no-deps "$sentence_transformers" >&2  # what it needs is there; with its dependencies it would fetch another torch
  "$venv/bin/python" -c 'import faiss, sentence_transformers, torch, transformers, webdataset'
  touch "$venv/done"
fi
echo "$venv/bin/python"
