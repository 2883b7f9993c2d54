package dev.chagres.witness;

import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.UnaryOperator;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/**
 * {@code h = x + keep * attention(norm(x))}, {@code y = h + keep * mlp(norm(h))}, where attention is
 * {@code attend(rotate(x Wqkv^T + bqkv)) Wo^T + bo} and the rows of Wqkv are those of query, key, value; and what the options
 * of a layer make of that.
 */
public final class TransformerLayerWitness {
    /** A norm, or none, and a branch behind it. */
    private record Part(
            @Nullable NormWitness norm, UnaryOperator<RealMatrix> forward, UnaryOperator<RealMatrix> backward) {}

    private final TransformerLayerConfig config;
    private final List<Part> parts = new ArrayList<>();
    private final AttentionLayerWitness attention;
    private final @Nullable CrossAttentionWitness crossAttention;
    private final @Nullable NormWitness outputNorm;
    private @Nullable RealMatrix memory;
    private RealMatrix @Nullable [] kept;

    /** Attends within {@code sequences}, each a list of rows in the order of positions. */
    public TransformerLayerWitness(
            TransformerLayerConfig config, Weights weights, List<int[]> sequences, @Nullable RotaryWitness rotary) {
        this(config, weights, "", sequences, sequences, rotary);
    }

    /** Attends within {@code sequences} and, where there is cross-attention, to {@code keys}, rows of the memory. */
    public TransformerLayerWitness(
            TransformerLayerConfig config,
            Weights weights,
            String prefix,
            List<int[]> sequences,
            List<int[]> keys,
            @Nullable RotaryWitness rotary) {
        this.config = config;
        boolean normsOutput = config.normPlacement() == NormPlacement.OUTPUT;
        attention = new AttentionLayerWitness(config.attention(), weights, prefix + "attention.", sequences, rotary);
        parts.add(new Part(
                normsOutput ? null : new NormWitness(config.norm(), weights, prefix + "attention.qkv.norm."),
                attention::forward,
                attention::backward));
        CrossAttentionConfig cross = config.crossAttention();
        if (cross == null) {
            crossAttention = null;
        } else {
            String name = prefix + "cross_attention.";
            CrossAttentionWitness over = new CrossAttentionWitness(cross.attention(), weights, name, sequences, keys);
            crossAttention = over;
            parts.add(new Part(
                    new NormWitness(cross.norm(), weights, name + "norm."),
                    x -> over.forward(x, Objects.requireNonNull(memory)),
                    over::backward));
        }
        MlpConfig second = config.mlp();
        ActivationWitness activation = second.activation() == Activation.CLAMPED_SWIGLU
                ? new ActivationWitness(second.clampedSwiglu())
                : new ActivationWitness(second.activation());
        MlpWitness mlp = new MlpWitness(second.norm(), activation, weights, prefix + "mlp.");
        parts.add(new Part(mlp.norm(), mlp::forwardOfNormed, mlp::backwardToNormed));
        outputNorm = normsOutput ? new NormWitness(config.norm(), weights, prefix + "norm.") : null;
    }

    /** Returns the number of sums. */
    public int sums() {
        return config.branchOrder() == BranchOrder.PARALLEL ? 1 : parts.size();
    }

    /** Multiplies what is added in each sum by these factors from now on: dropout's. */
    public void keep(RealMatrix... factors) {
        kept = factors;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        RealMatrix stream = x;
        if (config.branchOrder() == BranchOrder.PARALLEL) {
            RealMatrix sum = parts.stream()
                    .map(part ->
                            part.forward.apply(Objects.requireNonNull(part.norm).forward(x)))
                    .reduce(RealMatrix::add)
                    .orElseThrow();
            stream = x.add(kept(sum, 0));
        } else {
            for (int i = 0; i < parts.size(); i++) {
                Part part = parts.get(i);
                RealMatrix read = part.norm == null ? stream : part.norm.forward(stream);
                RealMatrix base = config.residual() == ResidualSource.INPUT ? stream : read;
                stream = base.add(kept(part.forward.apply(read), i));
            }
        }
        return outputNorm == null ? stream : outputNorm.forward(stream);
    }

    /** Returns y of a decoder's layer over {@code newMemory}. */
    public RealMatrix forward(RealMatrix x, RealMatrix newMemory) {
        memory = newMemory;
        return forward(x);
    }

    /** Returns the gradient of x and leaves those of the weights and of the memory. */
    public RealMatrix backward(RealMatrix dy) {
        RealMatrix d = outputNorm == null ? dy : outputNorm.backward(dy);
        if (config.branchOrder() == BranchOrder.PARALLEL) {
            RealMatrix dsum = kept(d, 0);
            for (Part part : parts) {
                d = d.add(Objects.requireNonNull(part.norm).backward(part.backward.apply(dsum)));
            }
            return d;
        }
        for (int i = parts.size() - 1; i >= 0; i--) {
            Part part = parts.get(i);
            RealMatrix dread = part.backward.apply(kept(d, i));
            if (part.norm == null) {
                d = d.add(dread);
            } else {
                d = config.residual() == ResidualSource.INPUT
                        ? d.add(part.norm.backward(dread))
                        : part.norm.backward(d.add(dread));
            }
        }
        return d;
    }

    /** Returns what self-attention is compared with. */
    public AttentionLayerWitness attention() {
        return attention;
    }

    /** Returns what cross-attention is compared with. */
    public CrossAttentionWitness crossAttention() {
        return Objects.requireNonNull(crossAttention);
    }

    private RealMatrix kept(RealMatrix x, int sum) {
        return kept == null ? x : Rows.combine(x, kept[sum], (a, b) -> a * b);
    }
}
