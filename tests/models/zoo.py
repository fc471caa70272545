"""Architectures that people train, small and with random weights: nothing is downloaded.

`ZOO[name]` makes one. Its `module` takes what `batch` gives, as keywords, and answers with an
object that has a `loss`, or with the loss. Dropout is off: ranks draw other random numbers than one
process does.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 61, 24, 3, 2, 10
IMAGE, CLASSES = 16, 5

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """How to build a module, and how to make a batch of a given size for it."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


def loss_of(output) -> Tensor:
    """The loss in whatever the module answered with."""
    return output if isinstance(output, Tensor) else output.loss


# -- batches ---------------------------------------------------------------------------------------


def causal(size: int) -> Batch:
    tokens = torch.randint(3, VOCABULARY, (size, LENGTH))
    return {"input_ids": tokens, "labels": tokens}


def translation(size: int) -> Batch:
    return {
        "input_ids": torch.randint(3, VOCABULARY, (size, LENGTH)),
        "labels": torch.randint(3, VOCABULARY, (size, LENGTH - 3)),
    }


def images(size: int) -> Batch:
    return {
        "pixel_values": torch.randn(size, 3, IMAGE, IMAGE),
        "labels": torch.randint(0, CLASSES, (size,)),
    }


def speech(size: int) -> Batch:
    return {
        "input_features": torch.randn(size, 8, 2 * LENGTH),
        "labels": torch.randint(3, VOCABULARY, (size, LENGTH - 3)),
    }


def waves(size: int) -> Batch:
    return {"input_values": torch.randn(size, 400), "labels": torch.randint(0, CLASSES, (size,))}


def pairs(size: int) -> Batch:
    return {
        "input_ids": torch.randint(3, VOCABULARY, (size, LENGTH)),
        "pixel_values": torch.randn(size, 3, IMAGE, IMAGE),
    }


def sequences(size: int) -> Batch:
    return {
        "inputs": torch.randn(size, LENGTH, WIDTH),
        "targets": torch.randn(size, LENGTH, WIDTH),
    }


# -- transformers ----------------------------------------------------------------------------------

LLAMA_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
BERT_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
VIT_LIKE = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "image_size": IMAGE,
    "patch_size": 4,
    "num_labels": CLASSES,
}
T5_LIKE = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": WIDTH // HEADS,
    "d_ff": 2 * WIDTH,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
BART_LIKE = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_position_embeddings": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def hugging_face(model: str, config: str, **sizes) -> Callable[[], nn.Module]:
    """A model class of transformers, built from its own config class."""

    def build() -> nn.Module:
        import transformers

        module = getattr(transformers, model)(getattr(transformers, config)(**sizes))
        return module.train()  # some of their constructors leave a part in eval mode

    return build


def clip() -> nn.Module:
    import transformers

    text = {**LLAMA_LIKE, "projection_dim": WIDTH}
    vision = {**VIT_LIKE, "projection_dim": WIDTH}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
    return Matching(transformers.CLIPModel(config)).train()


class Matching(nn.Module):
    """CLIP under a loss that is a mean over pairs: its own contrasts all pairs of a batch, so that
    ranks with a part of the batch each compute something else."""

    def __init__(self, clip: nn.Module) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, **pairs: Tensor) -> Tensor:
        output = self.clip(**pairs)
        return -(output.text_embeds * output.image_embeds).sum(-1).mean()


# -- torch's own -----------------------------------------------------------------------------------


class Convolutional(nn.Module):
    """Residual blocks of convolutions with batch norm."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()

        def block() -> nn.Module:
            return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8), nn.ReLU())

        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(block() for _ in range(LAYERS))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(pixel_values)
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(x.mean((-1, -2))), labels)


def frozen_statistics(channels: int) -> nn.Module:
    """Batch norm that uses its running statistics in training too, as fine-tuning often does."""
    norm = nn.BatchNorm2d(channels)
    norm.running_var.fill_(2.0)
    norm.train = lambda mode=True: norm  # type: ignore[method-assign]
    norm.training = False
    return norm


class Recurrent(nn.Module):
    """A two-layer LSTM over tokens."""

    def __init__(self, cell: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.cells = cell(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        hidden, _ = self.cells(self.embedding(input_ids))
        return F.cross_entropy(self.head(hidden[:, :-1]).flatten(0, 1), labels[:, 1:].flatten())


class EncoderDecoder(nn.Module):
    """torch.nn.Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(WIDTH, HEADS, 2, 2, 2 * WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.transformer(inputs, targets)), targets)


class Attention(nn.Module):
    """One attention layer: torch's reads its output projection's weight past that module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.attention(inputs, inputs, inputs)[0]), targets)


class Perceptron(nn.Module):
    """Layers in a plain nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(self.layers(inputs), targets)


ZOO: dict[str, Architecture] = {
    "GPT-2": Architecture(
        hugging_face(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=VOCABULARY,
            n_positions=32,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        causal,
    ),
    "Llama": Architecture(hugging_face("LlamaForCausalLM", "LlamaConfig", **LLAMA_LIKE), causal),
    "Llama, tied": Architecture(
        hugging_face(
            "LlamaForCausalLM", "LlamaConfig", **{**LLAMA_LIKE, "tie_word_embeddings": True}
        ),
        causal,
    ),
    "Mistral": Architecture(
        hugging_face("MistralForCausalLM", "MistralConfig", **LLAMA_LIKE, sliding_window=4), causal
    ),
    "Qwen2": Architecture(hugging_face("Qwen2ForCausalLM", "Qwen2Config", **LLAMA_LIKE), causal),
    "Qwen3": Architecture(
        hugging_face("Qwen3ForCausalLM", "Qwen3Config", **LLAMA_LIKE, head_dim=12), causal
    ),
    "Gemma": Architecture(
        hugging_face(
            "GemmaForCausalLM",
            "GemmaConfig",
            **{**LLAMA_LIKE, "tie_word_embeddings": True},
            head_dim=12,
        ),
        causal,
    ),
    "Phi-3": Architecture(hugging_face("Phi3ForCausalLM", "Phi3Config", **LLAMA_LIKE), causal),
    # A batch has fewer tokens than would reach all experts.
    "Mixtral": Architecture(
        hugging_face(
            "MixtralForCausalLM",
            "MixtralConfig",
            **LLAMA_LIKE,
            num_local_experts=16,
            num_experts_per_tok=1,
        ),
        causal,
    ),
    "GPT-NeoX": Architecture(
        hugging_face(
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            **{k: v for k, v in LLAMA_LIKE.items() if k != "num_key_value_heads"},
            hidden_dropout=0.0,
        ),
        causal,
    ),
    "OPT": Architecture(
        hugging_face(
            "OPTForCausalLM",
            "OPTConfig",
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            word_embed_proj_dim=WIDTH,
            ffn_dim=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            max_position_embeddings=32,
            dropout=0.0,
            attention_dropout=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        causal,
    ),
    "Mamba": Architecture(
        hugging_face(
            "MambaForCausalLM",
            "MambaConfig",
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            state_size=4,
            num_hidden_layers=LAYERS,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        causal,
    ),
    "BERT": Architecture(hugging_face("BertForMaskedLM", "BertConfig", **BERT_LIKE), causal),
    "RoBERTa": Architecture(
        hugging_face("RobertaForMaskedLM", "RobertaConfig", **BERT_LIKE), causal
    ),
    "ALBERT": Architecture(
        hugging_face("AlbertForMaskedLM", "AlbertConfig", **BERT_LIKE, embedding_size=12), causal
    ),
    "ELECTRA": Architecture(
        hugging_face("ElectraForMaskedLM", "ElectraConfig", **BERT_LIKE, embedding_size=12), causal
    ),
    "T5": Architecture(
        hugging_face("T5ForConditionalGeneration", "T5Config", **T5_LIKE), translation
    ),
    "BART": Architecture(
        hugging_face("BartForConditionalGeneration", "BartConfig", **BART_LIKE), translation
    ),
    "Whisper": Architecture(
        hugging_face(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            **{k: v for k, v in BART_LIKE.items() if "max_pos" not in k and "forced" not in k},
            num_mel_bins=8,
            max_source_positions=LENGTH,
            max_target_positions=32,
        ),
        speech,
    ),
    "ViT": Architecture(hugging_face("ViTForImageClassification", "ViTConfig", **VIT_LIKE), images),
    "CLIP": Architecture(clip, pairs),
    "wav2vec 2.0": Architecture(
        hugging_face(
            "Wav2Vec2ForSequenceClassification",
            "Wav2Vec2Config",
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=2 * WIDTH,
            conv_dim=(8, 8),
            conv_kernel=(10, 4),
            conv_stride=(5, 4),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=8,
            num_labels=CLASSES,
            hidden_dropout=0.0,
            activation_dropout=0.0,
            attention_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            layerdrop=0.0,
            mask_time_prob=0.0,
            apply_spec_augment=False,
        ),
        waves,
    ),
    "convolutions, frozen batch norm": Architecture(
        lambda: Convolutional(frozen_statistics), images
    ),
    "convolutions, group norm": Architecture(
        lambda: Convolutional(lambda channels: nn.GroupNorm(2, channels)), images
    ),
    "LSTM": Architecture(Recurrent, causal),
    "GRU": Architecture(lambda: Recurrent(nn.GRU), causal),
    "nn.Transformer": Architecture(EncoderDecoder, sequences),
    "nn.MultiheadAttention": Architecture(Attention, sequences),
    "nn.Sequential": Architecture(Perceptron, sequences),
}
