"""What the guards read is read once, whoever asks and however often."""

from phasewise.semantic_match.guards.reading import once, read


def test_a_fact_of_a_reading_is_looked_for_once():
    looked: list[str] = []

    @once
    def length(reading):
        looked.append(reading.text)
        return len(reading.words)

    one, other = read("how do I boil an egg"), read("boil an egg")
    assert [length(one), length(one), length(other)] == [6, 6, 3]
    assert looked == [one.text, other.text]


def test_what_is_found_nowhere_is_looked_for_once_too():
    looked: list[str] = []

    @once
    def nothing(reading):
        looked.append(reading.text)

    reading = read("how do I boil an egg")
    assert [nothing(reading), nothing(reading)] == [None, None]
    assert len(looked) == 1


def test_facts_do_not_tell_two_readings_apart():
    one, other = (read.__wrapped__("is it raining?") for _ in range(2))
    once(lambda reading: reading.text)(one)
    assert one.facts != other.facts
    assert one == other
    assert hash(one) == hash(other)
