from octavo.v1 import features


def test_each_feature_has_a_bit_of_its_own() -> None:
    bits = [v for k, v in vars(features).items() if k.startswith("FEATURE_")]
    assert len(bits) == bin(sum(bits)).count("1") == len(set(bits))
