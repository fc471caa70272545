"""Numbers as people write them."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerolab.accounting import InputError, decimal_bytes, gibibytes, gigabytes, parse_count
from zerolab.accounting.quantities import MOST_PARAMETERS, check_whole, parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7e9", 7 * 10**9),
        ("7B", 7 * 10**9),
        ("7b", 7 * 10**9),
        ("350M", 350 * 10**6),
        ("7_000_000", 7 * 10**6),
        ("1.5B", 15 * 10**8),
        ("0.1B", 10**8),  # exact, where a float would not be
        (" 124M ", 124 * 10**6),
        ("1T", 10**12),
        ("12k", 12_000),
        ("1e15", MOST_PARAMETERS),
        ("1", 1),
        (7, 7),
        (7e9, 7 * 10**9),
    ],
)
def test_accepted(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text",
    [
        *("-7e9", "0", "0B", "NaN", "nan", "inf", "-inf", "7e9GB", "1e30", "1e999", "1e16"),
        *(
            "",
            " ",
            "seven",
            "7,000",
            "7 B",
            "7.5",
            "1e-3",
            "7e9.5",
            "0x10",
            "--7",
            "7BB",
            "٧x",
            "\n",
        ),
        *(float("nan"), float("inf"), 0, -1, 0.5, 1e30, True, None),
    ],
)
def test_refused_in_one_line(text):
    with pytest.raises(InputError) as caught:
        parse_count(text)
    message = str(caught.value)
    assert message.startswith(f"--params: got {text!r}; accepted is a whole number from 1 to 1e+15")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("71GB", 71 * 10**9),
        ("66.1 GiB", 70_974_334_566),
        ("81559MiB", 81_559 * 2**20),
        (" 1.5tb ", 15 * 10**11),
        ("512 B", 512),
        ("0.1kB", 100),
    ],
)
def test_sizes_are_read_with_their_unit(text, size):
    assert parse_size(text, "--observed") == size


@pytest.mark.parametrize(
    "text",
    [
        *("71", "GB", "-1GB", "0GB", "nanGB", "infGB", "7e9GB", "1e30B", "71 gigabytes", "71iB"),
        *("", "71Gb/s", "7,1GB", "٧GB", "10000000TB", "0.1B"),
    ],
)
def test_sizes_without_a_unit_or_a_sense_are_refused(text):
    with pytest.raises(InputError, match=r"^--observed: got .*; accepted is a size with its unit"):
        parse_size(text, "--observed")


@given(st.integers(1, MOST_PARAMETERS))
def test_every_count_survives_being_written(count):
    assert parse_count(str(count)) == parse_count(f"{count:_}") == count


@given(st.text())
def test_any_text_gives_a_count_or_the_one_error(text):
    try:
        count = parse_count(text)
    except InputError:
        return
    assert 1 <= count <= MOST_PARAMETERS


def test_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(InputError("--ranks", 0, "a whole number from 1 to 256")))
    assert str(error) == "--ranks: got 0; accepted is a whole number from 1 to 256"


@pytest.mark.parametrize("value", [0, 257, 1.0, "4", None, True, float("nan")])
def test_check_whole_refuses(value):
    with pytest.raises(
        InputError, match=r"^--ranks: got .*; accepted is a whole number from 1 to 256$"
    ):
        check_whole("--ranks", value, 1, 256)


def test_gb_is_not_gib():
    assert gigabytes(84 * 10**9) == "84.00 GB"
    assert gibibytes(84 * 10**9) == "78.23 GiB"
    assert gibibytes(2**30) == "1.00 GiB"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (3_410_000, "3.41 MB"),
        (999_999_999, "1.00 GB"),
        (84 * 10**9, "84.00 GB"),
        (84 * 10**11, "8.40 TB"),
        (84 * 10**14, "8,400.00 TB"),
        (-3_410_000, "-3.41 MB"),
    ],
)
def test_decimal_bytes(size, text):
    assert decimal_bytes(size) == text
