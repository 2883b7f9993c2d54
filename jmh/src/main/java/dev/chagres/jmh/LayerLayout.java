package dev.chagres.jmh;

import dev.chagres.Scope;
import dev.chagres.attention.Sequences;
import dev.chagres.te.QkvFormat;
import java.util.Arrays;

/** How the sequences of a measured layer, all of one length, are described to attention. */
public enum LayerLayout {
    /** As a batch, which is how the published comparison gives them. */
    DENSE,
    /** As packed sequences, whose lengths could differ. */
    PACKED;

    Sequences sequences(Scope scope, LayerShape shape) {
        if (this == DENSE) {
            return Sequences.dense(scope, QkvFormat.BSHD, shape.batch(), shape.length());
        }
        int[] lengths = new int[shape.batch()];
        Arrays.fill(lengths, shape.length());
        return Sequences.packed(scope, lengths);
    }
}
