"""A server before it serves: requests that arrive at random meet the measured times and accepted ranks of a profile."""
