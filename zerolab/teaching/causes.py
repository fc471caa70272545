"""Why a rank does what it does at this point of the step, in a sentence or two.

No bytes are named here: a reader is asked to predict them.
"""


def cause(
    strategy: str, phase: str, kind: str, label: str, follows: str = "", after: str = ""
) -> str:
    """The cause of a frame.

    follows, after: labels of the transfer that this computing prepares, and of the one that it had
        to wait for; only under tensor parallelism, where computing is interrupted.
    """
    table = _TENSOR if strategy == "tp" else _DATA
    options = [
        (strategy, phase, kind, _role(label)),
        (strategy, phase, kind, ""),
        ("", phase, kind, _role(label)),
        ("", phase, kind, ""),
        ("", "", kind, ""),
    ]
    if strategy == "tp":
        part = f"before {_role(follows)}" if follows else f"after {_role(after)}" if after else ""
        options.insert(0, (strategy, phase, kind, f"{_role(label)} {part}".strip()))
    for option in options:
        if option in table:
            return table[option].format(U=label)
    raise ValueError(f"no cause is written for {strategy} {phase} {kind} {label}")


def _role(label: str) -> str:
    """Labels of a block's parts without the block's number: "blocks.1.mlp.up" is "mlp.up"."""
    name = label.removesuffix(" backward")
    parts = name.split(".")
    return "block" if len(parts) == 2 else ".".join(parts[2:]) or name


_DATA = {
    ("", "forward", "forward", ""): (
        "{U} is whole on every rank, so each computes it on its own sequence, and keeps what "
        "backward will need."
    ),
    ("zero3", "forward", "forward", ""): (
        "{U} is whole for a moment, so every rank computes it on its own sequence, and keeps the "
        "activations that backward will need."
    ),
    ("", "forward", "forward", "loss"): (
        "Each rank compares the logits of its own tokens with the targets. Here forward ends and "
        "backward begins."
    ),
    ("", "backward", "backward", ""): (
        "Backward reaches {U}: every rank computes its gradient from its own sequence, and then "
        "needs {U}'s activations no more."
    ),
    ("zero3", "backward", "backward", ""): (
        "{U}'s weights are back, so every rank computes the gradient from its own sequence, and "
        "then needs {U}'s activations no more."
    ),
    ("", "backward", "all-reduce", ""): (
        "Each rank has {U}'s gradient from its own sequence only. All ranks are to make the same "
        "update, so all need the sum."
    ),
    ("", "backward", "reduce-scatter", ""): (
        "Each rank will update one chunk of {U} only, so it needs the sum of that chunk's gradient "
        "and of no other: half of what an all-reduce does."
    ),
    ("", "step", "all-gather", ""): (
        "Each rank has updated its own chunk of {U}, and the next forward needs all of it on every "
        "rank: the other half of DDP's all-reduce."
    ),
    ("zero3", "forward", "all-gather", ""): (
        "{U} comes next and no rank has it whole: each keeps one chunk. So all of them bring "
        "their chunks together, on every rank."
    ),
    ("zero3", "backward", "all-gather", ""): (
        "Backward needs {U}'s weights again, and forward has discarded them. So they are gathered "
        "a second time: this is what ZeRO-3 sends more than the others."
    ),
    ("zero3", "forward", "discard", ""): (
        "{U} is not needed whole until backward comes to it, so every rank discards the gathered "
        "copy and keeps its chunk."
    ),
    ("zero3", "backward", "discard", ""): (
        "{U}'s backward is over, so every rank discards the gathered copy once more. Its chunk "
        "stays: the optimizer updates it."
    ),
    ("", "", "release", ""): (
        "A rank's optimizer needs its own chunk of {U}'s gradient only, and that is summed now. "
        "So each rank keeps a copy of the chunk and releases the whole."
    ),
    ("", "step", "release", ""): (
        "The step is over. Gradients have been used, so all of them are released before the next "
        "forward."
    ),
    ("ddp", "step", "step", ""): (
        "Every rank has the same summed gradient and all of Adam's moments, so each makes the same "
        "update of all of {U}."
    ),
    ("", "step", "step", ""): (
        "Each rank has Adam's moments of one chunk of {U}, so it updates that chunk and no other."
    ),
    ("zero3", "step", "step", ""): (
        "Each rank has Adam's moments of its own chunk of {U}, so it updates that. Nothing is "
        "sent: the next forward gathers what it needs."
    ),
}

_TENSOR = {
    ("tp", "forward", "forward", "token_embedding before token_embedding"): (
        "Each rank holds the embeddings of some words: it looks up the tokens that are among them, "
        "and writes zeros for the others."
    ),
    ("tp", "forward", "forward", "token_embedding after token_embedding"): (
        "Every token's embedding is complete, on every rank."
    ),
    ("tp", "forward", "forward", "position_embedding"): (
        "Positions are not divided, so every rank looks up all of them: the same work on all."
    ),
    ("tp", "forward", "forward", "block before attention.projection"): (
        "Each rank has some of {U}'s attention heads. It computes them for all tokens, and with "
        "its rows of the projection a part of the sum that attention gives."
    ),
    ("tp", "forward", "forward", "block before mlp.projection"): (
        "Attention's sum is complete, so each rank goes on with its own features of {U}'s MLP, "
        "which again give a part of a sum."
    ),
    ("tp", "forward", "forward", "block after mlp.projection"): (
        "The MLP's sum is complete. Every rank adds bias and residual: the same work on all."
    ),
    ("tp", "forward", "forward", "final_norm"): (
        "Norms are not divided: every rank normalises the same tokens."
    ),
    ("tp", "forward", "forward", "head"): (
        "Each rank computes the logits of its own words, for all tokens."
    ),
    ("tp", "forward", "forward", "loss before loss"): (
        "A softmax needs all words, and each rank has some. It prepares two numbers a token: the "
        "logarithm of its sum of exponentials, and the target's logit if it has that."
    ),
    ("tp", "forward", "forward", "loss after loss"): (
        "From every rank's two numbers a token, each computes the same loss. Here forward ends and "
        "backward begins."
    ),
    ("tp", "forward", "all-reduce", "token_embedding"): (
        "Every rank needs every token's embedding, and only one rank has it. So the rows are "
        "summed: all but one are zeros."
    ),
    ("", "forward", "all-reduce", ""): (
        "What follows needs the whole sum, and each rank has a part of it. Until the all-reduce is "
        "complete, no rank has anything to compute."
    ),
    ("", "forward", "all-gather", "loss"): (
        "Every rank needs the others' two numbers for each token. They stand for all logits, which "
        "stay where they are."
    ),
    ("tp", "backward", "backward", "head before head"): (
        "Each rank has the logits' gradient for its own words, so it can compute only a part of "
        "the gradient of their common input."
    ),
    ("tp", "backward", "backward", "head after head"): (
        "The gradient of the head's input is complete, on every rank."
    ),
    ("tp", "backward", "backward", "final_norm"): (
        "Norms are not divided, so every rank computes the same gradient, and nothing is summed."
    ),
    ("tp", "backward", "backward", "block before mlp.up"): (
        "Backward reaches {U}'s MLP. Each rank computes the gradients of its own features, and so "
        "only a part of the gradient of their common input."
    ),
    ("tp", "backward", "backward", "block before attention.qkv"): (
        "The gradient is complete, so each rank goes on to its own heads, and again has only a "
        "part of the gradient of their common input."
    ),
    ("tp", "backward", "backward", "block after attention.qkv"): (
        "The gradient is complete. It passes {U}'s first norm, which is whole on every rank."
    ),
    ("tp", "backward", "backward", "position_embedding"): (
        "Positions are not divided, so every rank computes the same gradient, and nothing is "
        "summed."
    ),
    ("tp", "backward", "backward", "token_embedding"): (
        "Each rank adds up the gradients of the words that it holds: nothing is sent."
    ),
    ("", "backward", "all-reduce", ""): (
        "All ranks computed with the same input, so its gradient is the sum of their parts. Until "
        "it is complete, no rank has anything to compute."
    ),
    ("", "step", "step", ""): (
        "Each rank has the gradient and Adam's moments of its own share of {U}, and updates that. "
        "Nothing is sent."
    ),
    ("", "step", "release", ""): _DATA["", "step", "release", ""],
}
