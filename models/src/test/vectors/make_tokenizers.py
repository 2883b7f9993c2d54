"""Writes the tokenizers and vectors that TokenizerTest reads: make_tokenizers.py FOLDER

Needs the tokenizers library of Hugging Face (0.22 made what is stored). Each tokenizer is small, of the kind of a family of models, and
vectors.json has texts and their tokens.
"""
import json
import sys
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CORPUS = ["The quick brown fox jumps over the lazy dog. It's the dog's day, isn't it? 12345 times 678 is more than 90.\n",
          "Tokenizers merge pairs of bytes, the most frequent ones first; words such as the, then and there share a part.\n\n",
          "def function(value):\n    return value + 1\n", "Größe, naïve, façade, 日本語, 한국어, русский, ελληνικά\n"] * 20
TEXTS = ["", " ", "Hello, world!", "The dog's day isn't it? 123456789", "  two  blanks\t\ttabs\r\n\r\nlines \n ",
         "Größe naïve 日本語 😀 e\u0301 \u00a0x", "<|begin|>text<|end|> and <|end|>", "\u0000\u0007 control", "x" * 70]


def byte_level(pattern, normalizer=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=pattern == LLAMA3))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens([AddedToken("<|begin|>"), AddedToken("<|end|>")])
    return tokenizer


def llama3():
    tokenizer = byte_level(LLAMA3)
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return tokenizer


def qwen():
    return byte_level(QWEN, normalizers.NFC())


def sentencepiece():
    """BPE of characters with bytes for others, blanks as U+2581, as Llama 2 and Mistral have it."""
    specials = ["<unk>", "<|begin|>", "<|end|>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.train_from_iterator([line.replace(" ", "\u2581") for line in CORPUS], trainers.BpeTrainer(
        vocab_size=420, special_tokens=specials + [f"<0x{byte:02X}>" for byte in range(256)], show_progress=False))
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return tokenizer


print(tokenizers.__version__)
for name, make in (("llama3", llama3), ("qwen", qwen), ("sentencepiece", sentencepiece)):
    folder = Path(sys.argv[1]) / name
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    vectors = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=special).ids, "special": special,
                "decoded": tokenizer.decode(tokenizer.encode(text, add_special_tokens=special).ids, skip_special_tokens=False)}
               for text in TEXTS for special in (True, False)]
    (folder / "vectors.json").write_text(json.dumps({"vectors": vectors}) + "\n")
