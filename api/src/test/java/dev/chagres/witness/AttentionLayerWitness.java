package dev.chagres.witness;

import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.QkNorm.Place;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = attend(norm(rotate(x Wqkv^T + bqkv))) Wo^T + bo}, without the norm of x before it; the rows of Wqkv are those of
 * query, key, value.
 */
public final class AttentionLayerWitness {
    private final int width;
    private final int keyWidth;
    private final LinearWitness qkv;
    private final @Nullable RotaryWitness rotary;
    private final AttentionWitness attention;
    private final Weights weights;
    private final String sinks;
    private final LinearWitness projection;
    private final QkNorm norm;
    private final @Nullable HeadNormWitness queryNorm;
    private final @Nullable HeadNormWitness keyNorm;

    /** Attends within {@code sequences}; uses the weights of {@code qkv.linear} and {@code projection} under the prefix. */
    public AttentionLayerWitness(
            AttentionConfig config,
            Weights weights,
            String prefix,
            List<int[]> sequences,
            @Nullable RotaryWitness rotary) {
        width = config.heads() * config.headDim();
        keyWidth = config.keyHeads() * config.headDim();
        qkv = new LinearWitness(weights, prefix + "qkv.linear.");
        this.rotary = rotary;
        attention = new AttentionWitness(config, sequences, AttentionWitness.Keep.ALL);
        this.weights = weights;
        sinks = prefix + "softmax_offset";
        attention.scores().sinks(() -> weights.vector(sinks));
        projection = new LinearWitness(weights, prefix + "projection.");
        norm = config.qkNorm();
        queryNorm = norm.isNone() ? null : new HeadNormWitness(norm, config.headDim(), weights, prefix + "q_norm.");
        keyNorm = norm.isNone() ? null : new HeadNormWitness(norm, config.headDim(), weights, prefix + "k_norm.");
    }

    /** Returns the attention between the products. */
    public AttentionWitness attention() {
        return attention;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        RealMatrix projected = qkv.forward(x);
        RealMatrix q = Rows.columns(projected, 0, width);
        RealMatrix k = Rows.columns(projected, width, keyWidth);
        if (rotary != null && norm.place() == Place.AFTER_ROTATION) {
            q = rotary.forward(q);
            k = rotary.forward(k);
        }
        if (queryNorm != null && keyNorm != null) {
            q = queryNorm.forward(q);
            k = keyNorm.forward(k);
        }
        if (rotary != null && norm.place() == Place.BEFORE_ROTATION) {
            q = rotary.forward(q);
            k = rotary.forward(k);
        }
        return projection.forward(attention.forward(q, k, Rows.columns(projected, width + keyWidth, keyWidth)));
    }

    /** Returns the gradient of x and leaves those of the weights. */
    public RealMatrix backward(RealMatrix dy) {
        attention.backward(projection.backward(dy));
        attention.putSinksGradient(weights, sinks);
        RealMatrix dq = attention.dq();
        RealMatrix dk = attention.dk();
        if (rotary != null && norm.place() == Place.BEFORE_ROTATION) {
            dq = rotary.backward(dq);
            dk = rotary.backward(dk);
        }
        if (queryNorm != null && keyNorm != null) {
            dq = queryNorm.backward(dq);
            dk = keyNorm.backward(dk);
        }
        if (rotary != null && norm.place() == Place.AFTER_ROTATION) {
            dq = rotary.backward(dq);
            dk = rotary.backward(dk);
        }
        return qkv.backward(Rows.sideBySide(dq, dk, attention.dv()));
    }
}
