"""Models small enough to make in a test: random weights, a vocabulary of a few words."""

from pathlib import Path
from typing import Any

import torch
import transformers

_TEXT = "the billing job failed again error 4711 key expired ana prefers tea meetings after ten query : passage"
WORDS = _TEXT.split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ed"]


def transformer(folder: Path, head: str, words: list[str] = VOCABULARY, seed: int = 0, **config: Any) -> Path:
    """A BERT of two layers with this head of transformers (BertModel, BertForMaskedLM, ...), saved in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    torch.manual_seed(seed)
    shape = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        # Logits of some size, else all texts are nearly alike.
        "initializer_range": 0.6,
    }
    getattr(transformers, head)(transformers.BertConfig(**{**shape, **config})).save_pretrained(folder)
    return folder
