"""Lookahead decoding in plain Python: every proposal by a pass over nothing but the text that its token claims to see."""


class SlowLookahead:
    """Window and pool as lists of tokens; `likeliest(text)` returns the token that a model finds likeliest after it."""

    def __init__(self, likeliest, window, ngram, candidates):
        self.likeliest, self.window, self.ngram, self.candidates = likeliest, window, ngram, candidates

    def start(self, text):
        self.text, self.pool = [], {}
        seeds = text[-self.window :]
        self.levels = [[seeds[column % len(seeds)] for column in range(self.window)]]
        self.go_on(text)

    def sequence(self, level, column):
        """Return the tokens of the window that one of them sees, in a row, itself last."""
        return self.levels[0][: column + 1] + [self.levels[above][column] for above in range(1, level + 1)]

    def window_tokens(self):
        return [token for level in self.levels for token in level][1:]

    def found(self):
        """Return the pool's continuations of the root, the newest first."""
        return self.pool.get(self.text[-1], [])[: self.candidates]

    def remember(self, ngram):
        kept = self.pool.setdefault(ngram[0], [])
        if ngram[1:] in kept:
            kept.remove(ngram[1:])
        kept.insert(0, ngram[1:])
        del kept[self.candidates :]

    def step(self, committed):
        last, before = len(self.levels) - 1, self.text[:-1]
        new = [self.likeliest([*before, *self.sequence(last, column)]) for column in range(self.window)]
        if len(self.levels) == self.ngram - 1:
            for column in range(self.window):
                self.remember((*(level[column] for level in self.levels), new[column]))
            self.levels = self.levels[1:]
        self.levels.append(new)
        self.go_on(committed)

    def go_on(self, tokens):
        for token in tokens:
            self.text.append(token)
            if len(self.text) >= self.ngram:
                self.remember(tuple(self.text[-self.ngram :]))
        self.levels[0][0] = self.text[-1]
