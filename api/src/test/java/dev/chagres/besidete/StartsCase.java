package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.besidete.LayerCase.Precision;
import dev.chagres.conformance.TokenRows;
import dev.chagres.parameter.State;
import dev.chagres.te.QkvFormat;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.random.RandomGenerator;

/**
 * A rotation in which each sequence begins at a position of its own, beside {@code te.apply_rotary_pos_emb}.
 *
 * @param rotary the rotation
 * @param heads of x
 * @param tokens the sequences of x
 * @param starts the position of each sequence's first token
 * @param seed of x and dy
 */
record StartsCase(RotaryConfig rotary, int heads, TokenRows tokens, List<Integer> starts, long seed)
        implements DrawnCase {
    private static final int POSITIONS = 1024;
    private static final int LATEST_START = 300;

    /** Formats take turns. */
    static StartsCase draw(int turn, RandomGenerator random) {
        QkvFormat format = QkvFormat.values()[turn % QkvFormat.values().length];
        LayerCase drawn = LayerCases.draw(Precision.BF16, random);
        while (drawn.rotary() == null || drawn.tokens().format() != format) {
            drawn = LayerCases.draw(Precision.BF16, random);
        }
        TokenRows tokens = drawn.tokens();
        TokenRows full = tokens.format() == QkvFormat.THD
                ? tokens
                : new TokenRows(
                        tokens.format(),
                        tokens.lengths().stream().map(length -> tokens.padded()).toList(),
                        tokens.padded());
        List<Integer> starts = new ArrayList<>();
        for (int i = 0; i < full.lengths().size(); i++) {
            starts.add(random.nextInt(LATEST_START));
        }
        return new StartsCase(drawn.rotary(), drawn.config().attention().heads(), full, starts, random.nextLong());
    }

    @Override
    public List<String> options() {
        return List.of("start positions by sequence", "start positions in " + tokens.format());
    }

    @Override
    public void write(Device device, Path file) {
        SplittableRandom random = new SplittableRandom(seed);
        try (Scope scope = device.openScope()) {
            Sequences sequences = tokens.sequences(scope)
                    .startingAt(
                            scope, starts.stream().mapToInt(Integer::intValue).toArray());
            Tensor x = heads(scope, random);
            Tensor dy = heads(scope, random);
            Tensor y = scope.like(x);
            Tensor dx = scope.like(x);
            RotaryEmbedding embedding = RotaryEmbedding.of(scope, POSITIONS, rotary);
            embedding.forward(x, y, sequences, scope.stream());
            embedding.backward(dy, dx, sequences, scope.stream());
            State.Builder state = new State.Builder()
                    .tensor("x", x)
                    .tensor("dy", dy)
                    .tensor("y", y)
                    .tensor("dx", dx);
            DrawnCase.save(device, file, state, TeArguments.json(out -> TeArguments.rotary(out, rotary)), call());
        }
    }

    private Tensor heads(Scope scope, SplittableRandom random) {
        long[] sizes = switch (tokens.format()) {
            case THD -> new long[] {tokens.tokens(), heads, rotary.headDim()};
            case BSHD -> new long[] {starts.size(), tokens.padded(), heads, rotary.headDim()};
            case SBHD -> new long[] {tokens.padded(), starts.size(), heads, rotary.headDim()};
        };
        long count = Arrays.stream(sizes).reduce(1, Math::multiplyExact);
        return DrawnCase.tensor(scope, DType.BFLOAT16, DrawnCase.normal(random, count, 1), sizes);
    }

    private String call() {
        return TeArguments.json(out -> {
            out.writeStringField("kind", "rotation");
            out.writeStringField("precision", "bf16");
            out.writeNumberField("seed", seed);
            out.writeStringField("format", TeArguments.word(tokens.format()));
            TeArguments.numbers(out, "lengths", tokens.lengths());
            TeArguments.numbers(out, "starts", starts);
            TeArguments.words(out, "options", options());
        });
    }
}
