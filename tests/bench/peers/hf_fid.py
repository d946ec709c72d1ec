"""Hugging Face T5 as Fusion-in-Decoder (Izacard and Grave, arXiv:2007.01282): random weights, the benchmark's shapes.

The encoder reads question and document together, once per input and document; the decoder reads the states of all of
an input's documents end to end. T5 has no retriever, copy head nor query tower: it does less than the fid mode here.
"""
import numpy as np
import torch
import transformers
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

import common


def make_model(shape):
    return T5ForConditionalGeneration(T5Config(
        vocab_size=shape["vocab"], d_model=shape["width"], d_kv=shape["head_width"], num_heads=shape["heads"],
        d_ff=shape["ffn_width"], num_layers=shape["encoder_layers"], num_decoder_layers=shape["decoder_layers"],
        feed_forward_proj="gated-silu", dropout_rate=0.0, decoder_start_token_id=2, use_cache=False))


def main():
    args = common.parse(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    shape = common.SHAPES[args.shape]
    model = make_model(shape)
    weights = list(model.parameters())
    masters = weights
    if args.precision == "bf16":
        masters = [torch.nn.Parameter(w.detach().float()) for w in weights]
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(masters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    batch = common.make_batch(shape, np.random.default_rng(args.seed))
    read = [i["prompt"]["tokens"] + batch["documents"][d]["tokens"] for i in batch["inputs"] for d in i["documents"]]
    input_ids, labels = torch.tensor(read), torch.tensor([i["target"] for i in batch["inputs"]])
    losses = []

    def step():
        states = model.encoder(input_ids=input_ids).last_hidden_state
        states = states.view(len(labels), -1, shape["width"])
        loss = model(encoder_outputs=BaseModelOutput(last_hidden_state=states), labels=labels).loss
        loss.backward()
        if masters is not weights:
            for master, weight in zip(masters, weights):
                master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if masters is not weights:
            with torch.no_grad():
                torch._foreach_copy_(weights, masters)
        losses.append(float(loss.detach()))

    seconds = common.time_steps(step, args.warmup, args.steps)
    if not losses[-1] < losses[0]:
        raise SystemExit(f"the loss did not fall: {losses}")
    config = dict(vars(args), fusion="fid", torch=torch.__version__, transformers=transformers.__version__, **shape,
                  parameters=sum(w.numel() for w in weights), first_loss=losses[0], last_loss=losses[-1])
    common.report("hf-t5-fid", shape["inputs"], seconds, config)


if __name__ == "__main__":
    main()
