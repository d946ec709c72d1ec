"""Makes sentence_encoder.json and the tiny BERT folder beside this file. Needs transformers and sentence-transformers
(the interpreter that tests/bench/peers/setup.sh prints), and the folder of MiniLM that tools/minilm prints:

    python make_sentence_encoder.py MINILM_FOLDER

sentence_encoder.json: for each odd text the token ids and the embedding by sentence-transformers in fp32, for MiniLM
and for the tiny model. "[SEP]" in a text is plain text for us; no text here holds such a token.
"""
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel, BertTokenizerFast

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "The capital of France is Paris.",
    "",
    "  Tabs\tand\nline ends,\r\nand\u00a0no-break\u2003spaces  ",
    "Crème brûlée, ÀÉÎÕÜ, Straße, İstanbul, ΣΊΣΥΦΟΣ, naïve coöperation",
    "日本語のテキスト和中文 mixed with English한국어",
    "a\u0000b\ufffdc\u200dd\u00ade\ue000f\u0378g\u007f",
    "don't stop—\"quoted\" (brackets) [square] $5.00 50% a_b x^y ~tilde `code` ¿qué? «oui» …",
    "x" * 100 + " " + "y" * 101 + " " + "supercalifragilisticexpialidocious",
    "🙂 emoji 👩‍👩‍👧 and flags 🇫🇷 ①② ½ ™ Ⅻ ﬁne",
    "العربية עברית हिन्दी ไทย Ελληνικά русский ёлка",
    "e\u0301 combining, \u1e9b\u0323 and \uac00 precomposed",
    " ".join(f"word{i}" for i in range(400)),
    "1234567890 3.14159 1,000,000 2026-11-29T00:00:00Z https://example.org/a?b=c#d",
]


def golden(folder):
    model = SentenceTransformer(str(folder), device="cpu")
    model.eval()
    out = []
    for text in TEXTS:
        ids = model.tokenize([text])["input_ids"][0].tolist()
        embedding = model.encode(text, convert_to_numpy=True)
        out.append({"text": text, "ids": ids, "embedding": [float(f"{x:.9g}") for x in embedding]})
    return out


def make_tiny(folder):
    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list(letters) + ["##" + c for c in letters]
    vocab += list(".,-!?\"'()[]$%_^~`") + ["the", "capital", "of", "france", "is", "paris", "##ing", "日", "本", "σ", "##σ"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    config = BertConfig(vocab_size=len(vocab), hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
                        intermediate_size=40, max_position_embeddings=64, initializer_range=0.3)
    model = BertModel(config)
    for parameter in model.parameters():  # biases and norms that do something
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": False}))
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({
        "word_embedding_dimension": 24, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}))


def main():
    tiny = HERE / "tiny_bert"
    make_tiny(tiny)
    goldens = {"made_with": {"transformers": transformers.__version__, "torch": torch.__version__},
               "minilm": golden(pathlib.Path(sys.argv[1])), "tiny": golden(tiny)}
    for name in ("minilm", "tiny"):
        for entry in goldens[name]:
            assert np.isfinite(entry["embedding"]).all()
    (HERE / "sentence_encoder.json").write_text(json.dumps(goldens, ensure_ascii=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
