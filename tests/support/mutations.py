"""Random faults in the bytes of files."""

import random

ODD_TOKENS = (
    *(
        b"-1",
        b"0",
        b"1",
        b"2",
        b"1.0",
        b"1e5",
        b"1.0e+999",
        b"-0",
        b".nan",
        b"NaN",
        b"-.inf",
        b"9" * 400,
        b"true",
        b"null",
    ),
    *(b"0x" + b"f" * 5000, b"0b_", b"1:59.5", b"2026-02-30", b"2026-01-01T00:00:00+99:99", b"~", b"=", b"<<", b"''"),
    *(
        b'""',
        b'"\\ud800"',
        b'"\\x00"',
        b"[]",
        b"{}",
        b"()",
        b"[[]]",
        b"[-1]",
        b"[[0.5]]",
        b"{a: 1}",
        b"(0,)",
        b'"mask"',
    ),
    *(
        b"*a",
        b"&a",
        b"!!int",
        b"!",
        b"? ",
        b"- ",
        b": ",
        b",",
        b"#",
        b"%",
        b"---",
        b"\t",
        b"|",
        b"\\",
        b"\xff",
        b"\x00",
    ),
    *(
        b"tokens",
        b"samples_s",
        b"p",
        b"None",
        b"f()",
        b"lambda: 0",
        b"\xef\xbb\xbf",
        b"\xc2\x85",
        b"[" * 300,
        b"{[(" * 99,
    ),
)


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with one or two faults: in a bit or byte, a slice lost or doubled, lines swapped, an odd token."""
    for _ in range(rng.randint(1, 2)):
        start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        fault = rng.randrange(8)
        if fault == 0 and start < len(data):
            data = data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        elif fault == 1:
            data = data[:start] if rng.random() < 0.2 else data[:start] + data[start + 1 :]
        elif fault == 2:
            data = data[:end] + data[start : start + 40] + data[end:]
        elif fault == 3:
            data = data[:start] + bytes([rng.randrange(256)]) + data[start:]
        elif fault == 4:
            data = data[:start] + data[min(end, start + 8) :]
        elif fault == 5:
            lines = data.split(b"\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            data = b"\n".join(lines)
        else:
            at = rng.choice([i for i, byte in enumerate(data) if byte in b'0123456789"[{('] or [0])
            length = len(data[at:]) - len(data[at:].lstrip(b'-0123456789."e'))
            data = data[:at] + rng.choice(ODD_TOKENS) + data[at + max(1, length) :]
    return data
