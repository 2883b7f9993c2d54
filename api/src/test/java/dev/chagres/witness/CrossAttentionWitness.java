package dev.chagres.witness;

import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.QkNorm.Place;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = attend(norm(rotate(x Wq^T + bq)), norm(rotate(m Wk^T + bk)), m Wv^T + bv) Wo^T + bo}, without the norm of x before it.
 */
public final class CrossAttentionWitness {
    private final LinearWitness query;
    private final LinearWitness keyValue;
    private final AttentionWitness attention;
    private final Weights weights;
    private final String sinks;
    private final LinearWitness projection;
    private final boolean rotatesLast;
    private final @Nullable HeadNormWitness queryNorm;
    private final @Nullable HeadNormWitness keyNorm;
    private @Nullable RotaryWitness queryRotary;
    private @Nullable RotaryWitness keyRotary;
    private RealMatrix memoryGradient;

    /** Attends from {@code queries}, rows of x, to {@code keys}, rows of m; uses the weights under {@code prefix}. */
    public CrossAttentionWitness(
            AttentionConfig config, Weights weights, String prefix, List<int[]> queries, List<int[]> keys) {
        query = new LinearWitness(weights, prefix + "query.");
        keyValue = new LinearWitness(weights, prefix + "key_value.");
        attention = new AttentionWitness(config, queries, keys);
        this.weights = weights;
        sinks = prefix + "softmax_offset";
        attention.scores().sinks(() -> weights.vector(sinks));
        projection = new LinearWitness(weights, prefix + "projection.");
        QkNorm norm = config.qkNorm();
        rotatesLast = norm.place() == Place.BEFORE_ROTATION;
        queryNorm = norm.isNone() ? null : new HeadNormWitness(norm, config.headDim(), weights, prefix + "q_norm.");
        keyNorm = norm.isNone() ? null : new HeadNormWitness(norm, config.headDim(), weights, prefix + "k_norm.");
    }

    /** Rotates queries and keys from now on. */
    public void rotate(RotaryWitness queries, RotaryWitness keys) {
        queryRotary = queries;
        keyRotary = keys;
    }

    /** Returns the attention between the products. */
    public AttentionWitness attention() {
        return attention;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x, RealMatrix memory) {
        RealMatrix q = side(query.forward(x), queryRotary, queryNorm);
        RealMatrix both = keyValue.forward(memory);
        int width = both.getColumnDimension() / 2;
        RealMatrix k = side(Rows.columns(both, 0, width), keyRotary, keyNorm);
        return projection.forward(attention.forward(q, k, Rows.columns(both, width, width)));
    }

    private RealMatrix side(RealMatrix heads, @Nullable RotaryWitness rotary, @Nullable HeadNormWitness norm) {
        RealMatrix first = rotary == null || rotatesLast ? heads : rotary.forward(heads);
        RealMatrix normed = norm == null ? first : norm.forward(first);
        return rotary == null || !rotatesLast ? normed : rotary.forward(normed);
    }

    private RealMatrix sideGradient(RealMatrix d, @Nullable RotaryWitness rotary, @Nullable HeadNormWitness norm) {
        RealMatrix last = rotary == null || !rotatesLast ? d : rotary.backward(d);
        RealMatrix beforeNorm = norm == null ? last : norm.backward(last);
        return rotary == null || rotatesLast ? beforeNorm : rotary.backward(beforeNorm);
    }

    /** Returns the gradient of x and leaves those of the weights and of m. */
    public RealMatrix backward(RealMatrix dy) {
        attention.backward(projection.backward(dy));
        attention.putSinksGradient(weights, sinks);
        RealMatrix dk = sideGradient(attention.dk(), keyRotary, keyNorm);
        memoryGradient = keyValue.backward(Rows.sideBySide(dk, attention.dv()));
        return query.backward(sideGradient(attention.dq(), queryRotary, queryNorm));
    }

    /** Returns the gradient of m that the last backward pass has left. */
    public RealMatrix memoryGradient() {
        return memoryGradient;
    }
}
