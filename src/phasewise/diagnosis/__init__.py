"""From timelines, steps and counters to a verdict: pure, so that it can be tested on planted evidence."""
