package dev.chagres.conformance;

import dev.chagres.layer.Dropout;
import dev.chagres.pass.Pass;
import dev.chagres.witness.PhiloxWitness;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;

/** The factors of dropout and drop path in a residual sum. */
public final class ResidualFactors {
    private ResidualFactors() {}

    /** Draws those of one sum as a layer does: those of sequences before those of values. */
    public static RealMatrix draw(Pass pass, TokenRows tokens, int hidden, Dropout values, Dropout paths) {
        RealMatrix factors = new BlockRealMatrix(tokens.tokens(), hidden).scalarAdd(1);
        if (!paths.isNone()) {
            long[] state = pass.draw().toLongs(pass.stream());
            List<int[]> rows = tokens.rowsAndPadding();
            for (int sequence = 0; sequence < rows.size(); sequence++) {
                double factor = factor(state, sequence, paths);
                for (int row : rows.get(sequence)) {
                    factors.setRowVector(row, factors.getRowVector(row).mapMultiply(factor));
                }
            }
        }
        if (!values.isNone()) {
            long[] state = pass.draw().toLongs(pass.stream());
            for (int i = 0; i < tokens.tokens() * hidden; i++) {
                factors.multiplyEntry(i / hidden, i % hidden, factor(state, i, values));
            }
        }
        return factors;
    }

    private static double factor(long[] state, int index, Dropout dropout) {
        double probability = dropout.probability();
        boolean kept = PhiloxWitness.word(state[0], state[1] + index / 4, index % 4) * 0x1p-32 >= probability;
        return kept ? 1 / (1 - probability) : 0;
    }
}
