from tests.support import drawn


def test_examples_are_as_many_as_the_profile_asks_for(monkeypatch):
    for profile, few, many in (("fast", 8, 25), ("ci", 8, 50), ("nightly", 80, 1000)):
        monkeypatch.setattr(drawn, "PROFILE", profile)
        assert (drawn.examples(8), drawn.examples(100)) == (few, many)
    monkeypatch.setattr(drawn, "PROFILE", "fast")
    assert drawn.examples(100, fast=10) == 10
