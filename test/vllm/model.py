"""Makes a random Llama and its tokenizer. Nothing is downloaded."""

import sys
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
LAYERS, KV_HEADS, HEAD_SIZE = 2, 4, 64
TOKEN_BYTES = 2 * LAYERS * KV_HEADS * HEAD_SIZE * 4  # keys and values of a token, float32
MAX_LEN = 2048


@dataclass
class Shape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    max_len: int
    spread: float  # of the weights. With narrow ones the last token alone decides, and wrong KV would not show
    dtype: torch.dtype


SHAPES = {
    "tiny": Shape(VOCABULARY, 128, LAYERS, KV_HEADS, KV_HEADS, HEAD_SIZE, MAX_LEN, 0.2, torch.float32),
    # KV as that of Llama 3 8B: 128 KiB a token.
    "kv8b": Shape(1000, 1024, 32, 16, 8, 128, 16384, 0.03, torch.float16),
}


def make(folder: str, name: str = "tiny") -> None:
    shape = SHAPES[name]
    torch.manual_seed(7)
    if name != "tiny" and torch.cuda.is_available():
        torch.set_default_device("cuda")
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=2 * shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_size,
        max_position_embeddings=shape.max_len, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, initializer_range=shape.spread,
    )
    LlamaForCausalLM(config).to(shape.dtype).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape.vocabulary)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w0", eos_token="w1", unk_token="w2").save_pretrained(folder)


if __name__ == "__main__":
    make(*sys.argv[1:])
