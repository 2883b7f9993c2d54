package dev.chagres.witness;

import dev.chagres.layer.TransformerLayerConfig;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/**
 * {@code h = x + keep * attention(norm(x))}, {@code y = h + keep * mlp(norm(h))}, where attention is
 * {@code attend(rotate(x Wqkv^T + bqkv)) Wo^T + bo} and the rows of Wqkv are those of query, key, value.
 */
public final class TransformerLayerWitness {
    private final int width;
    private final NormWitness norm;
    private final LinearWitness qkv;
    private final @Nullable RotaryWitness rotary;
    private final AttentionWitness attention;
    private final LinearWitness projection;
    private final MlpWitness mlp;
    private @Nullable RealMatrix keptMiddle;
    private @Nullable RealMatrix keptLast;

    /** Attends within {@code sequences}, each a list of rows in the order of positions. */
    public TransformerLayerWitness(
            TransformerLayerConfig config, Weights weights, List<int[]> sequences, @Nullable RotaryWitness rotary) {
        width = config.attention().heads() * config.attention().headDim();
        norm = new NormWitness(config.norm(), weights, "attention.qkv.norm.");
        qkv = new LinearWitness(weights, "attention.qkv.linear.");
        this.rotary = rotary;
        attention = new AttentionWitness(config.attention(), sequences, AttentionWitness.Keep.ALL);
        projection = new LinearWitness(weights, "attention.projection.");
        mlp = new MlpWitness(config.mlp().norm(), weights, "mlp.");
    }

    /** Multiplies what each half adds by these factors from now on: dropout's. */
    public void keep(RealMatrix middle, RealMatrix last) {
        keptMiddle = middle;
        keptLast = last;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        RealMatrix projected = qkv.forward(norm.forward(x));
        RealMatrix q = part(projected, 0);
        RealMatrix k = part(projected, 1);
        if (rotary != null) {
            q = rotary.forward(q);
            k = rotary.forward(k);
        }
        RealMatrix attended = projection.forward(attention.forward(q, k, part(projected, 2)));
        RealMatrix middle = x.add(kept(attended, keptMiddle));
        return middle.add(kept(mlp.forward(middle), keptLast));
    }

    /** Returns the gradient of x and leaves those of the weights. */
    public RealMatrix backward(RealMatrix dy) {
        RealMatrix dmiddle = dy.add(mlp.backward(kept(dy, keptLast)));
        attention.backward(projection.backward(kept(dmiddle, keptMiddle)));
        RealMatrix dq = attention.dq();
        RealMatrix dk = attention.dk();
        if (rotary != null) {
            dq = rotary.backward(dq);
            dk = rotary.backward(dk);
        }
        RealMatrix dprojected = MatrixUtils.createRealMatrix(dy.getRowDimension(), 3 * width);
        dprojected.setSubMatrix(dq.getData(), 0, 0);
        dprojected.setSubMatrix(dk.getData(), 0, width);
        dprojected.setSubMatrix(attention.dv().getData(), 0, 2 * width);
        return dmiddle.add(norm.backward(qkv.backward(dprojected)));
    }

    private RealMatrix part(RealMatrix projected, int which) {
        return projected.getSubMatrix(0, projected.getRowDimension() - 1, which * width, (which + 1) * width - 1);
    }

    private static RealMatrix kept(RealMatrix x, @Nullable RealMatrix factors) {
        return factors == null ? x : Rows.combine(x, factors, (a, b) -> a * b);
    }
}
