package dev.chagres.witness;

import dev.chagres.attention.Sequences.Padding;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.QkvLayout;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;

/** {@code y = attend(x Wq^T + bq, m Wk^T + bk, m Wv^T + bv) Wo^T + bo}, without the norm of x before it. */
public final class CrossAttentionWitness {
    private final LinearWitness query;
    private final LinearWitness key;
    private final LinearWitness value;
    private final AttentionWitness attention;
    private final LinearWitness projection;
    private RealMatrix memoryGradient;

    /** Attends from {@code queries}, rows of x, to {@code keys}, rows of m; uses the weights under {@code prefix}. */
    public CrossAttentionWitness(
            AttentionConfig config, Weights weights, String prefix, List<int[]> queries, List<int[]> keys) {
        query = new LinearWitness(weights, prefix + "query.");
        key = new LinearWitness(weights, prefix + "key.");
        value = new LinearWitness(weights, prefix + "value.");
        AttentionProblem problem = AttentionProblem.of(QkvLayout.THD_THD_THD, config.scale())
                .withMask(config.mask().type(Padding.NONE))
                .withWindow(config.mask().windowLeft(), config.mask().windowRight());
        attention = new AttentionWitness(
                problem, config.heads(), config.keyHeads(), queries, keys, AttentionWitness.Keep.ALL);
        projection = new LinearWitness(weights, prefix + "projection.");
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x, RealMatrix memory) {
        return projection.forward(attention.forward(query.forward(x), key.forward(memory), value.forward(memory)));
    }

    /** Returns the gradient of x and leaves those of the weights and of m. */
    public RealMatrix backward(RealMatrix dy) {
        attention.backward(projection.backward(dy));
        memoryGradient = key.backward(attention.dk()).add(value.backward(attention.dv()));
        return query.backward(attention.dq());
    }

    /** Returns the gradient of the keys [tokens, g d] that the last backward pass has left. */
    public RealMatrix keyGradient() {
        return attention.dk();
    }

    /** Returns the gradient of m that the last backward pass has left. */
    public RealMatrix memoryGradient() {
        return memoryGradient;
    }
}
