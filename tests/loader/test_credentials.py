from __future__ import annotations

import pytest

from octavo.loader import credentials
from octavo.v1.errors import BAD_SETTING, OctavoError


@pytest.mark.parametrize("read", [credentials.stripped, credentials.header])
def test_what_files_end_with_is_no_part_of_a_secret(read: object) -> None:
    assert callable(read)
    assert read({"T": " hf_x \r\n"}, "T") == "hf_x"
    assert read({"T": "\n"}, "T") == read({}, "T") == ""


@pytest.mark.parametrize("value", ["hf_a\nhf_b", "hf_a hf_b", "hf_a\0", "hf_a\x7f", "hf_ä"])
def test_what_is_no_token_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(OctavoError, match=r"T = '\*+' \(environment\)") as caught:
        credentials.header({"T": value}, "T")
    assert caught.value.kind is BAD_SETTING
    assert "hf_a" not in str(caught.value)


def test_what_is_only_a_key_may_have_any_characters() -> None:
    assert credentials.stripped({"T": "a passphrase"}, "T") == "a passphrase"
