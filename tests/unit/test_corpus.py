"""The corpus: what is held out, what a rank is given, what is refused."""

import math

import pytest
import torch

from zerolab.accounting.errors import InputError
from zerolab.training.corpus import Corpus

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def text():
    return Corpus.default()


def written(tmp_path, content):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    return path


def test_the_default_is_english_text_with_its_last_tenth_held_out(text):
    assert b"the" in bytes(text.train.tolist())
    everything = len(text.train) + len(text.held_out)
    assert everything > 200_000
    assert len(text.held_out) == everything // 10


def test_no_held_out_paragraph_was_trained_on(text):
    seen = set(bytes(text.train.tolist()).split(b"\n\n"))
    held_out = bytes(text.held_out.tolist()).split(b"\n\n")[1:]  # the first one is cut in two
    assert len(held_out) > 100
    assert not seen.intersection(held_out)


def test_a_file_is_taken_byte_for_byte(tmp_path):
    content = ("Größe: Ψ\n" * 200).encode()
    corpus = Corpus.from_file(written(tmp_path, content))
    assert bytes(torch.cat([corpus.train, corpus.held_out]).tolist()) == content


def test_unigram_entropy_of_known_texts(tmp_path):
    even = Corpus.from_file(written(tmp_path, b"abcd" * 500))
    assert even.unigram_entropy == pytest.approx(math.log(4), abs=1e-6)
    constant = Corpus.from_file(written(tmp_path, b"a" * 500))
    assert constant.unigram_entropy == 0


def test_ranks_together_see_what_one_process_sees(text):
    tokens, targets = text.batch(step=3, rank=0, ranks=1, size=6, length=32, seed=1)
    slices = [text.batch(step=3, rank=r, ranks=3, size=2, length=32, seed=1) for r in range(3)]
    assert torch.equal(tokens, torch.cat([t for t, _ in slices]))
    assert torch.equal(targets, torch.cat([t for _, t in slices]))
    assert tokens.shape == targets.shape == (6, 32)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_other_steps_and_seeds_draw_other_data(text):
    def drawn(step, seed):
        return tuple(text.batch(step, 0, 1, 4, 16, seed)[0].flatten().tolist())

    assert drawn(0, 0) == drawn(0, 0)
    assert len({drawn(0, 0), drawn(1, 0), drawn(0, 1), drawn(10, 0)}) == 4


def test_every_byte_can_be_drawn_and_none_is_past_the_end(tmp_path):
    corpus = Corpus.from_file(written(tmp_path, bytes(range(65, 95))))  # 27 to train on, 3 held out
    seen = set()
    for step in range(200):
        tokens, targets = corpus.batch(step, 0, 1, 8, 2, seed=0)
        seen |= set(tokens.flatten().tolist()) | set(targets.flatten().tolist())
    assert seen == set(range(65, 92))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_the_held_out_text_is_shared_out_evenly(text, ranks):
    shares = [text.held_out_batch(r, ranks, length=64)[0] for r in range(ranks)]
    assert len({share.shape for share in shares}) == 1
    together = torch.cat(shares)
    assert 120 <= len(together) < 120 + ranks
    assert torch.equal(together[0], text.held_out[:64].long())
    assert torch.equal(together[-1], text.held_out[-65:-1].long())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x89PNG\r\n\xff\xfe", "not text at byte 0"),
        (b"text \xff" + b"text" * 99, "not text at byte 5"),
        (b"text\0text" * 99, "binary at byte 4"),
    ],
)
def test_what_is_not_text_is_refused(tmp_path, content, reason):
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        Corpus.from_file(path)
    assert str(caught.value).startswith("--corpus: got ")
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(InputError, match="a text file that can be read"):
            Corpus.from_file(path)


def test_the_last_sequence_of_a_long_held_out_text_ends_where_it_ends():
    """Beyond 2^24 bytes, where a place has no float32 of its own."""
    held_out = torch.zeros(2**24 + 4 + 33, dtype=torch.uint8)
    held_out[-1] = 1
    corpus = Corpus("long", torch.zeros(100, dtype=torch.uint8), held_out)
    _, targets = corpus.held_out_batch(rank=1, ranks=2, length=32, count=4)
    assert targets[-1].tolist() == [0] * 31 + [1]


def test_a_text_shorter_than_a_sequence_is_refused(tmp_path):
    enough = Corpus.from_file(written(tmp_path, b"a" * 1290))
    enough.require(128)
    assert enough.held_out_batch(0, 1, 128)[0].shape == (120, 128)
    short = Corpus.from_file(written(tmp_path, b"a" * 1289))
    with pytest.raises(InputError, match=r"1,289 bytes.*at least 1,290 bytes"):
        short.require(128)
    with pytest.raises(InputError, match="at least 1,290 bytes"):
        short.batch(0, 0, 1, 1, 128, 0)
