"""A toy retrieval problem that lexical search can't solve: queries and documents name topics by different words."""

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.support.judged import write_judged

TOPICS = 16
_FILLERS = ["with", "and", "some", "very", "old", "new", "the", "of"]
_SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "_"]


def save_toy_model(folder: Path, *, tied: bool = False, **shape: int) -> Path:
    """Save a seeded random Llama whose tokenizer knows every word of the toy set as one token.

    With `tied` its LM head is its embedding; `shape` changes its configuration.
    """
    prompt = ["instruct:", "find", "query:"]
    words = [f"{side}{topic}" for topic in range(TOPICS) for side in ("ask", "say")]
    vocabulary = {word: number for number, word in enumerate([*_SPECIAL, *_FILLERS, *words, *prompt])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, **shape}
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    wrapped.save_pretrained(folder)
    return folder


def write_toy_set(folder: Path, split: str, count: int, seed: int) -> Path:
    """Write a set in BEIR layout: each document is about two topics, its query asks for both."""
    generator = random.Random(seed)
    pairs = [generator.sample(range(TOPICS), 2) for _ in range(count)]
    queries = {f"q{number}": f"ask{first} ask{second}" for number, (first, second) in enumerate(pairs)}
    qrels = {
        f"q{query}": {f"d{document}": 1 for document, said in enumerate(pairs) if set(asked) == set(said)}
        for query, asked in enumerate(pairs)
    }
    write_judged(folder, queries, qrels, split)
    with (folder / "corpus.jsonl").open("w") as corpus:
        for number, (first, second) in enumerate(pairs):
            words = [f"say{first}", f"say{second}", *generator.sample(_FILLERS, 4), f"say{first}", f"say{second}"]
            generator.shuffle(words)
            corpus.write(json.dumps({"_id": f"d{number}", "title": "", "text": " ".join(words)}) + "\n")
    return folder
