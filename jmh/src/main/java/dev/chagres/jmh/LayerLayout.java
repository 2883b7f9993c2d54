package dev.chagres.jmh;

import dev.chagres.Scope;
import dev.chagres.attention.Sequences;
import dev.chagres.jmh.states.LayerShape;
import dev.chagres.te.QkvFormat;
import java.util.Arrays;

/** How the sequences of a measured layer are described to attention. */
public enum LayerLayout {
    /** As a dense batch, as in the published comparison. */
    DENSE,
    /** As packed sequences, whose lengths could differ. */
    PACKED,
    /** As packed sequences with the lengths of the published comparison, whatever the shape's are. */
    UNEVEN;

    /** Lengths of proteins, drawn by the published comparison's program. */
    private static final int[] PUBLISHED = {
        484, 344, 683, 606, 288, 678, 218, 309, 250, 212, 712, 409, 203, 715, 708, 892, 221, 351, 194, 560, 175, 625,
        281, 359, 358, 343, 307, 390, 604, 540, 456, 397
    };

    Sequences sequences(Scope scope, LayerShape shape) {
        return switch (this) {
            case DENSE -> Sequences.dense(scope, QkvFormat.BSHD, shape.batch(), shape.length());
            case PACKED -> {
                int[] lengths = new int[shape.batch()];
                Arrays.fill(lengths, shape.length());
                yield Sequences.packed(scope, lengths);
            }
            case UNEVEN -> Sequences.packed(scope, PUBLISHED);
        };
    }

    int tokens(LayerShape shape) {
        return this == UNEVEN ? Arrays.stream(PUBLISHED).sum() : shape.tokens();
    }
}
