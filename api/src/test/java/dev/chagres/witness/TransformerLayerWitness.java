package dev.chagres.witness;

import dev.chagres.layer.TransformerLayerConfig;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/**
 * {@code h = x + keep * attention(norm(x))}, {@code y = h + keep * mlp(norm(h))}, where attention is
 * {@code attend(rotate(x Wqkv^T + bqkv)) Wo^T + bo} and the rows of Wqkv are those of query, key, value.
 */
public final class TransformerLayerWitness {
    private final NormWitness norm;
    private final AttentionLayerWitness attention;
    private final MlpWitness mlp;
    private @Nullable RealMatrix keptMiddle;
    private @Nullable RealMatrix keptLast;

    /** Attends within {@code sequences}, each a list of rows in the order of positions. */
    public TransformerLayerWitness(
            TransformerLayerConfig config, Weights weights, List<int[]> sequences, @Nullable RotaryWitness rotary) {
        norm = new NormWitness(config.norm(), weights, "attention.qkv.norm.");
        attention = new AttentionLayerWitness(config.attention(), weights, "attention.", sequences, rotary);
        mlp = new MlpWitness(config.mlp().norm(), config.mlp().activation(), weights, "mlp.");
    }

    /** Multiplies what each half adds by these factors from now on: dropout's. */
    public void keep(RealMatrix middle, RealMatrix last) {
        keptMiddle = middle;
        keptLast = last;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        RealMatrix attended = attention.forward(norm.forward(x));
        RealMatrix middle = x.add(kept(attended, keptMiddle));
        return middle.add(kept(mlp.forward(middle), keptLast));
    }

    /** Returns the gradient of x and leaves those of the weights. */
    public RealMatrix backward(RealMatrix dy) {
        RealMatrix dmiddle = dy.add(mlp.backward(kept(dy, keptLast)));
        return dmiddle.add(norm.backward(attention.backward(kept(dmiddle, keptMiddle))));
    }

    private static RealMatrix kept(RealMatrix x, @Nullable RealMatrix factors) {
        return factors == null ? x : Rows.combine(x, factors, (a, b) -> a * b);
    }
}
