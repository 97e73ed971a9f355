"""An EAGLE head slot by slot in float64, everything computed again for every sequence: no cache, no batch, no torch."""

import numpy as np


def normed(x, weight, epsilon=1e-5):
    return x / np.sqrt(np.mean(x * x) + epsilon) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def yarn_speed(i, size, theta, factor, positions):
    """Return radians per position of pair i: as trained where it turns often, slower where it turns less than once."""

    def pair_of(turns):
        return size * np.log(positions / (2 * np.pi * turns)) / (2 * np.log(theta))

    first, last = max(np.floor(pair_of(32)), 0), min(np.ceil(pair_of(1)), size - 1)
    slowed = min(max((i - first) / (last - first), 0), 1)
    return theta ** (-2 * i / size) * (slowed / factor + 1 - slowed)


def rotated(head, position, theta, yarn=None):
    """Return a head's numbers (d,), number i turned together with number i + d/2."""
    half = len(head) // 2
    found = np.empty_like(head)
    for i in range(half):
        speed = theta ** (-2 * i / len(head)) if yarn is None else yarn_speed(i, len(head), theta, *yarn)
        angle = position * speed
        a, b = head[i], head[i + half]
        if yarn is not None:
            a, b = (each * (1 + np.log(yarn[0]) / 10) for each in (a, b))
        found[i] = a * np.cos(angle) - b * np.sin(angle)
        found[i + half] = a * np.sin(angle) + b * np.cos(angle)
    return found


class SlowEagle:
    """A head by plain names (`tests.support.eagle_heads.MadeHead`), and embedding and output layer of its target."""

    def __init__(self, made, embedding, output):
        self.made = made
        self.w = {name: weight.double().numpy() for name, weight in made.weights.items()}
        self.embedding = self.w.get("embedding", embedding)
        self.output = self.w.get("output", output)
        self.eagle1 = "layer0.hidden_norm" not in self.w
        self.mtp = "token_norm" in self.w

    def logits_after(self, states, tokens, path=()):
        """Return the logits (V,) after a text and a drafted path.

        Args:
            states: of every token but the last, the arrays (H,) that the head reads, in its order.
            tokens: of the text, the root last.
            path: drafted below the root.
        """
        slots = [[self.fused(each), token] for each, token in zip(states, tokens[1:], strict=True)]
        for token in path:
            slots.append([self.feedback(self.stream(slots)), token])
        return self.logits(self.stream(slots))

    def levels_after(self, states, tokens, mask_token, levels):
        """Return a P-EAGLE head's logits (levels, V) after a text: each level from slots of its own, without deeper ones."""
        slots = [[self.fused(each), token] for each, token in zip(states, tokens[1:], strict=True)]
        mask = self.fused(np.split(self.w["mask_hidden"].ravel(), max(1, len(self.made.layer_ids))))
        return np.array(
            [self.logits(self.stream([*slots, *([mask, mask_token] for _ in range(masks))])) for masks in range(levels)]
        )

    def fused(self, states):
        if "fc" not in self.w or self.eagle1 or self.mtp:
            return states[0]
        if "fc_norm.0" in self.w:
            states = [normed(x, self.w[f"fc_norm.{index}"]) for index, x in enumerate(states)]
        x = np.concatenate(states)
        if "before_fc" in self.w:
            x = normed(x, self.w["before_fc"])
        return self.w["fc"] @ x

    def stream(self, slots):
        """Return the residual stream of the last slot after all layers."""
        rows = []
        for x, token in slots:
            e = self.embedding[token]
            if self.eagle1:
                joined = self.w["fc"] @ np.concatenate([e, x]) + self.w["fc_bias"]
                rows.append((joined, joined))
            elif self.mtp:
                e = normed(e if rows else 0 * e, self.w["token_norm"])  # the first slot reads zeros
                joined = self.w["fc"] @ np.concatenate([normed(x, self.w["layer0.hidden_norm"]), e])
                rows.append((normed(joined, self.w["layer0.input_norm"]), joined))
            else:
                g = normed(x, self.w["layer0.hidden_norm"])
                read = np.concatenate([normed(e, self.w["layer0.input_norm"]), g])
                rows.append((read, g if self.made.flags.get("norm_before_residual") else x))
        for layer in range(self.made.layers):
            streams = [self.after_layer(layer, rows, place) for place in range(len(rows))]
            if layer + 1 < self.made.layers:
                rows = [(normed(x, self.w[f"layer{layer + 1}.input_norm"]), x) for x in streams]
        return streams[-1]

    def after_layer(self, layer, rows, place):
        made, part = (
            self.made,
            {name: self.w.get(f"layer{layer}.{name}") for name in ("q", "k", "v", "o", "gate", "up", "down")},
        )

        def heads(name, row):
            bias = self.w.get(f"layer{layer}.{name}_bias", 0)
            found = (part[name] @ rows[row][0] + bias).reshape(-1, made.head_dim)
            if name == "v":
                return found
            weight = self.w.get(f"layer{layer}.{name}_norm")
            if weight is not None:
                found = np.array([normed(head, weight) for head in found])
            return np.array([rotated(head, row, made.theta, made.yarn) for head in found])

        queries, attended = heads("q", place), []
        keys, values = ([heads(name, row) for row in range(place + 1)] for name in "kv")
        for head, query in enumerate(queries):
            group = head * made.key_value_heads // made.heads
            scores = np.array([query @ key[group] for key in keys]) / np.sqrt(made.head_dim)
            weights = np.exp(scores - scores.max())
            attended.append(sum(w * value[group] for w, value in zip(weights / weights.sum(), values, strict=True)))
        y = rows[place][1] + part["o"] @ np.concatenate(attended)
        z = normed(y, self.w[f"layer{layer}.mlp_norm"])
        return y + part["down"] @ (silu(part["gate"] @ z) * (part["up"] @ z))

    def feedback(self, stream):
        return normed(stream, self.w["norm"]) if self.made.flags.get("norm_output") else stream

    def logits(self, stream):
        known = self.output @ (stream if self.eagle1 else normed(stream, self.w["norm"]))
        if self.made.ids is None:
            return known
        found = np.full(len(self.embedding), -np.inf)
        for index, token in enumerate(self.made.ids):
            found[token] = known[index] if "output" in self.w else known[token]
        return found
