package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.internal.Checks;
import dev.chagres.layer.ResidualStream.ParallelBranches;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * {@code h = x + path(dropout(attention(norm(x))))}, {@code y = h + path(dropout(mlp(norm(h))))}: a pre-norm layer over {@link
 * Pass#sequences()}. {@code path} is drop path, which drops a branch for whole sequences.
 *
 * <p>A decoder has cross-attention between both branches, over the tensor of a {@link SharedInput}; the pass's sequences then name both sides:
 * {@code pass.sequences(decoderSequences.withKeys(encoderSequences))}. {@link TransformerLayerConfig#branchOrder}, {@link
 * TransformerLayerConfig#residual} and {@link TransformerLayerConfig#normPlacement} change the sums.
 *
 * <p>Parameters: {@code attention} as {@link MultiheadAttention}; {@code cross_attention} as {@link CrossAttention}, in a decoder; {@code
 * mlp} as {@link LayerNormMlp}; {@code norm}, if there is a norm after the last sum.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="transformerLayer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code TransformerLayer}.
 */
public final class TransformerLayer extends Layer {
    private final TransformerLayerConfig config;
    private final BranchOrder order;
    private final MultiheadAttention attention;
    private final @Nullable CrossAttention crossAttention;
    private final LayerNormMlp mlp;
    private final @Nullable NormLayer outputNorm;
    private final ResidualStream stream;

    /**
     * Declares the parameters in {@code plan}.
     *
     * @throws IllegalArgumentException when the configuration has cross-attention, which needs a {@link SharedInput}
     */
    public TransformerLayer(TransformerLayerConfig config, ModelPlan plan) {
        if (Checks.given("config", config).crossAttention() != null) {
            throw new IllegalArgumentException("config: has cross-attention, which needs a SharedInput; call new"
                    + " TransformerLayer(config, memory, plan)");
        }
        this(Checks.given("plan", plan), config, null);
    }

    /**
     * Declares the parameters of a decoder's layer in {@code plan}.
     *
     * @param memory what cross-attention reads, such as the encoder's output
     * @throws IllegalArgumentException when the configuration has no cross-attention
     */
    public TransformerLayer(TransformerLayerConfig config, SharedInput memory, ModelPlan plan) {
        Checks.given("config", config, "memory", memory, "plan", plan);
        if (config.crossAttention() == null) {
            throw new IllegalArgumentException("config: expected one with cross-attention, such as"
                    + " TransformerLayerConfig.decoder(…), got one without");
        }
        this(plan, config, memory);
    }

    private TransformerLayer(ModelPlan plan, TransformerLayerConfig config, @Nullable SharedInput memory) {
        super(plan.name());
        this.config = config;
        order = config.branchOrder();
        boolean normsOutput = config.normPlacement() == NormPlacement.OUTPUT;
        attention = new MultiheadAttention(
                normsOutput ? null : config.norm(),
                config.hidden(),
                config.attention(),
                config.bias(),
                config.projectionBias(),
                config.initializer(),
                plan.child("attention"));
        CrossAttentionConfig cross = config.crossAttention();
        crossAttention = cross == null || memory == null
                ? null
                : new CrossAttention(cross, memory, plan.child("cross_attention"));
        mlp = new LayerNormMlp(config.mlp(), plan.child("mlp"));
        attention.recomputable(attention.qkv());
        mlp.recomputable(mlp.fc1());
        List<NormedBranch> branches = new ArrayList<>(List.of(attention, mlp));
        if (crossAttention != null) {
            crossAttention.recomputable(crossAttention.query());
            branches.add(crossAttention);
        }
        if (config.recomputation() == Recomputation.NORMS) {
            branches.forEach(NormedBranch::recomputeNorm);
        }
        outputNorm =
                normsOutput ? NormLayer.of(config.norm(), plan.child("norm").forTokenParts()) : null;
        ResidualDropout dropout = ResidualDropout.of(config, plan);
        if (order == BranchOrder.PARALLEL) {
            stream = new ResidualStream(
                    this, dropout, config.residual(), outputNorm, new ParallelBranches(plan.name(), attention, mlp));
        } else if (crossAttention == null) {
            stream = new ResidualStream(this, dropout, config.residual(), outputNorm, attention, mlp);
        } else {
            stream = new ResidualStream(this, dropout, config.residual(), outputNorm, attention, crossAttention, mlp);
        }
    }

    /** Returns self-attention. */
    public MultiheadAttention attention() {
        return attention;
    }

    /**
     * Returns cross-attention.
     *
     * @throws IllegalStateException when there is none
     */
    public CrossAttention crossAttention() {
        CrossAttention present = crossAttention;
        if (present == null) {
            throw new IllegalStateException(
                    name() + " has no cross-attention; TransformerLayerConfig.decoder(…) makes a layer that has");
        }
        return present;
    }

    /** Returns the MLP. */
    public LayerNormMlp mlp() {
        return mlp;
    }

    /**
     * Returns the norm after the last sum.
     *
     * @throws IllegalStateException when there is none
     */
    public NormLayer outputNorm() {
        NormLayer present = outputNorm;
        if (present == null) {
            throw new IllegalStateException(name() + " has no output norm; use NormPlacement.OUTPUT");
        }
        return present;
    }

    /**
     * Rotates query and key of self-attention by their positions in forward calls from now on; backward undoes the rotation of
     * its own forward.
     *
     * @throws IllegalArgumentException when its head dimension is another
     */
    public void rotate(RotaryEmbedding rotary) {
        attention.rotate(rotary);
    }

    /**
     * Adds linear biases to the scores of self-attention's forward calls from now on.
     *
     * @throws IllegalArgumentException when it has slopes of another number of heads than all ranks have together
     */
    public void alibi(Alibi alibi) {
        attention.alibi(alibi);
    }

    /**
     * Adds a bias to the scores of self-attention's forward calls from now on: the tensor that {@code biases} was given in the same pass,
     * with the shape that {@link DotProductAttention#bias} says.
     */
    public void bias(SharedInput biases) {
        attention.bias(biases);
    }

    /**
     * Adds a bias to the scores of self-attention's forward calls from now on as {@link #bias} does, but before the scale, {@code s = scale
     * (q_i . k_j + bias)}: TE's {@code pre_scale_bias}. It replaces a bias that was set before.
     *
     * @throws IllegalArgumentException where heads have an L2 norm, or context-parallel ranks attend with their own queries alone
     */
    public void preScaleBias(SharedInput biases) {
        attention.preScaleBias(biases);
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        stream.run(x, y, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        stream.gradient(dy, dx, pass);
    }

    @Override
    public boolean requiresGradient() {
        return anyRequiresGradient(attention, crossAttention) || anyRequiresGradient(mlp, outputNorm);
    }

    @Override
    public boolean worksInPlace() {
        return true;
    }

    /** The kernels of sum and norm load 16 bytes at a time. */
    @Override
    protected boolean needsAlignment() {
        return true;
    }

    @Override
    public void checkInput(Tensor x) {
        Checks.given("x", x);
        attention.checkInput(x);
    }

    @Override
    public String summary() {
        return config.summary().toString();
    }

    @Override
    public List<Layer> inside() {
        return Stream.of(attention, crossAttention, mlp, outputNorm)
                .filter(Objects::nonNull)
                .map(Layer.class::cast)
                .toList();
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        String branches = order == BranchOrder.SEQUENTIAL
                ? ""
                : "\n" + name() + ": both branches read one input, and ops_add sums their outputs";
        return name() + ":\n" + (stream.explain(x, pass) + branches).indent(2).stripTrailing();
    }
}
