"""Makes a tiny random Llama and its tokenizer. Nothing is downloaded."""

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
LAYERS, KV_HEADS, HEAD_SIZE = 2, 4, 64
TOKEN_BYTES = 2 * LAYERS * KV_HEADS * HEAD_SIZE * 4  # keys and values of a token, float32
MAX_LEN = 2048


def make(folder: str) -> None:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS,
        num_attention_heads=KV_HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_SIZE,
        max_position_embeddings=MAX_LEN, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        # Wide weights: with narrow ones the last token alone decides, and wrong KV would not show.
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w0", eos_token="w1", unk_token="w2").save_pretrained(folder)


if __name__ == "__main__":
    make(sys.argv[1])
