from __future__ import annotations

import operator
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.recipe.expressions import Kind, compile_expression

NAMES: dict[str, Kind] = {
    "a": "number", "b": "number", "word": "text", "flag": "condition", "sides": "sizes",
}  # fmt: skip
VALUES = {"a": 7, "b": 3, "word": "Conv", "flag": True, "sides": (3, 5)}


def holds(text: str, **values: object) -> bool:
    return compile_expression(text, NAMES).holds({**VALUES, **values})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < 32", True),
        ("a % 4 != 0 and b == 3", True),
        ("flag", True),
        ("not flag", False),
        ("not flag or a > b", True),
        ("a // b == 2 and a / 2 == 3.5", True),
        ("-a < 0", True),
        ("a - -1 == 8", True),
        ("(a + b) * 2 == 20", True),
        ("1 < b < a < 8", True),
        ("1 < b > a", False),
        ("word == 'Conv'", True),
        ('word != "Gemm"', True),
        ("word in ('Gemm', 'Conv')", True),
        ("word not in ['Gemm', 'MatMul']", True),
        ("a in (1, 7)", True),
        ("flag == True", True),
        ("True", True),
        ("  a == 7  ", True),
        ("a == 7 and (b == 4 or not (a < b))", True),
    ],
)
def test_what_it_means(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("sides", "equal", "unequal", "under_four", "under"),
    [
        ((), False, True, False, False),  # a comparison with no sizes holds for none
        ((3,), True, False, True, True),
        ((3, 3), True, False, True, True),
        ((3, 5), False, True, False, True),
        ((7, 7, 7), False, True, False, False),
    ],
)
def test_sizes_are_compared_one_by_one(
    sides: tuple[int, ...], equal: bool, unequal: bool, under_four: bool, under: bool
) -> None:
    assert holds("sides == 3", sides=sides) is equal
    assert holds("3 == sides", sides=sides) is equal
    assert holds("sides != 3", sides=sides) is unequal
    assert holds("sides < 4", sides=sides) is under_four
    assert holds("2 < sides <= 5", sides=sides) is under
    assert holds("not sides == 3", sides=sides) is unequal


comparisons = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@st.composite
def numbers(draw: st.DrawFn, depth: int = 2) -> str:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["a", "b", "2", "10", "0.5"]))
    left, right = draw(numbers(depth - 1)), draw(numbers(depth - 1))
    return f"({left} {draw(st.sampled_from(list(SIGNS)))} {right})"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 1) -> str:
    if depth == 0 or draw(st.booleans()):
        return f"{draw(numbers())} {draw(comparisons)} {draw(numbers())}"
    left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
    return f"({left}) {draw(st.sampled_from(['and', 'or']))} not ({right})"


@given(conditions(), st.integers(-9, 9), st.integers(-9, 9))
def test_it_means_what_python_means(text: str, a: int, b: int) -> None:
    assert holds(text, a=a, b=b) is eval(text, {"__builtins__": {}}, {"a": a, "b": b})


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("__import__('os').system('x')", "is not understood"),
        ("word.upper() == 'A'", "'word.upper()' is not understood"),
        ("word.__class__ == 1", "'word.__class__' is not understood"),
        ("sides[0] == 3", "'sides[0]' is not understood"),
        ("a ** 2 > 1", "'a ** 2' is not understood"),
        ("a << 2 > 1", "'a << 2' is not understood"),
        ("[x for x in (1,)] == 1", "is not understood"),
        ("(lambda: 1)() == 1", "is not understood"),
        ("f'{a}' == 'x'", "is not understood"),
        ("(a if flag else b) == 1", "is not understood"),
        ("(c := 3) == 3", "is not understood"),
        ("a == 3j", "'3j' is not understood"),
        ("word == b'x'", "is not understood"),
        ("a is 7", "cannot be compared like this"),
        ("word < 'D'", "cannot be compared like this"),
        ("flag < True", "cannot be compared like this"),
        ("word == 3", "'3' is a number and compared with a text"),
        ("a == 'x'", "is a text and compared with a number"),
        ("a in (1, 'x')", "is compared with a number"),
        ("a in 'xyz'", "cannot be compared like this"),
        ("word in (word, 'x')", "is not understood"),
        ("a in ()", "is not understood"),
        ("sides == sides", "is a sizes and compared with a sizes"),
        ("sides + 1 == 3", "'sides' is a sizes where a number is needed"),
        ("word + 'x' == 'y'", "'word' is a text where a number is needed"),
        ("not a", "'a' is a number where a condition is needed"),
        ("a and flag", "'a' is a number where a condition is needed"),
        ("flag + 1 == 2", "'flag' is a condition where a number is needed"),
        ("a + b", "is a number where a condition is needed"),
        ("'Conv'", "is a text where a condition is needed"),
        ("c < 3", "unknown name 'c'; known: a, b, word, flag, sides"),
        ("wrd == 'x'", "unknown name 'wrd'; did you mean 'word'?"),
        ("a <", "cannot be read"),
        ("", "cannot be read"),
        ("a = 3", "cannot be read"),
        ("a < 3; b", "cannot be read"),
        ("a <\n3", "cannot be read"),
        ("a < 3 # x\nimport os", "cannot be read"),
        ("word == '\\d'", "cannot be read"),  # Python would only warn
        ("a < 3\0", "cannot be read"),
        ("a < " + "1" * 400, "over 400 characters"),
        (" or ".join(["a < 1"] * 40), "over 120 parts"),
        ("not " * 30 + "flag", "nested too deep"),
        ("-" * 30 + "a < 1", "nested too deep"),
    ],
)
def test_everything_else_is_refused(text: str, part: str) -> None:
    with pytest.raises(ValueError) as refused:
        compile_expression(text, NAMES)
    assert part in str(refused.value)
    assert str(refused.value).startswith("condition '")


@given(st.text(max_size=60))
def test_no_text_does_anything_but_compile_or_be_refused(text: str) -> None:
    names: set[str] = set()
    with suppress(ValueError):
        names = set(compile_expression(text, NAMES).names)
    assert names <= set(NAMES)


@pytest.mark.parametrize("text", ["a % b == 0", "a // b == 0", "a / b > 1"])
def test_a_division_by_zero_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=f"condition '{text}' divides by zero"):
        holds(text, b=0)


def test_the_names_it_uses() -> None:
    found = compile_expression("b < a and word == 'b' or b > 3", NAMES)
    assert found.names == ("b", "a", "word")
    assert found.text == "b < a and word == 'b' or b > 3"


@pytest.mark.parametrize(("left", "right"), list(product(["a", "b"], repeat=2)))
def test_an_expression_is_compiled_once_and_used_often(left: str, right: str) -> None:
    found = compile_expression(f"{left} < {right}", NAMES)
    for a, b in product(range(3), repeat=2):
        values = {"a": a, "b": b}
        assert found.holds(values) is (values[left] < values[right])
