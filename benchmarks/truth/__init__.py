"""Virtual scenes whose truth is found by removing one factor after the other."""
