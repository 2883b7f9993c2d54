package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.Linear;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.ops.Embedding;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.util.Arrays;
import java.util.Objects;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * An ESM-2 without a head: {@code hidden = norm(layers(embedding(ids)))}, and with a pooler {@code pooled[s] = tanh(W hidden[first token of s] + b)}.
 *
 * <p>It is evaluated, not trained: a pass that trains is for the models with a loss, {@link Esm2} and {@link Esm2Classifier}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code EsmModel} and {@code EsmPooler} of transformers 5.17.
 */
public final class Esm2Base implements AutoCloseable {
    /** What comes behind the last norm. */
    public enum Pooler {
        /** Nothing. */
        NONE,
        /** A product and tanh of the first token of each sequence. */
        FIRST_TOKEN
    }

    private record PooledLayers(Linear dense, Tanh tanh) {}

    private final Esm2Config config;
    private final TransformerBody body;
    private final @Nullable PooledLayers pooler;

    /**
     * Makes a model with its first weights, on one rank.
     *
     * @param dtype type of weights and activations
     * @param seed equal seeds give equal weights
     * @throws IllegalArgumentException when attention does not take the head dimension, or the type is no float
     */
    public Esm2Base(Device device, Esm2Config config, Pooler pooler, DType dtype, long seed) {
        this(device, config, pooler, plan -> Parameters.allocate(device, plan, dtype, seed));
    }

    /**
     * Makes a model, on one rank, whose parameters get their memory from {@code memory}. They are frozen: nothing has a gradient.
     *
     * @throws IllegalArgumentException when attention does not take the head dimension
     */
    public Esm2Base(Device device, Esm2Config config, Pooler pooler, Function<ModelPlan, Parameters> memory) {
        this.config = config;
        ModelPlan plan = new ModelPlan();
        body = config.body(plan);
        long hidden = config.hidden();
        this.pooler = Objects.requireNonNull(pooler, "pooler") == Pooler.NONE
                ? null
                : new PooledLayers(
                        new Linear(
                                hidden,
                                hidden,
                                TransformerBody.WEIGHTS,
                                plan.group("pooler").child("dense")),
                        new Tanh("pooler.tanh"));
        plan.freeze();
        body.allocate(device, _ -> {}, memory);
    }

    /** Returns sizes and form. */
    public Esm2Config config() {
        return config;
    }

    /** Returns what comes behind the last norm. */
    public Pooler pooler() {
        return pooler == null ? Pooler.NONE : Pooler.FIRST_TOKEN;
    }

    /** Returns the weights. */
    public Parameters parameters() {
        return body.parameters();
    }

    /**
     * Enqueues the hidden states behind the last norm: what transformers calls {@code last_hidden_state}.
     *
     * @param ids INT32 [T]
     * @param pass that evaluates
     * @return [T, H]
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor hidden(Tensor ids, Pass pass) {
        return body.forward(ids, pass);
    }

    /**
     * Enqueues what the pooler makes of hidden states: {@code pooler_output} in transformers.
     *
     * @param hidden of the same pass, [T, H]
     * @return [B, H], a row of each of the pass' B sequences
     * @throws IllegalStateException when the model has no pooler
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor pooled(Tensor hidden, Pass pass) {
        PooledLayers layers = pooler;
        if (layers == null) {
            throw new IllegalStateException("pooled: expected a model with a pooler, got one without");
        }
        Tensor first = first(pass);
        Tensor rows = pass.temporary().tensor(hidden.dtype(), first.size(0), hidden.size(1));
        Embedding.forward(hidden, first, rows, pass.stream());
        return layers.tanh.forward(layers.dense.forward(rows, pass), pass);
    }

    /** Returns the numbers of the sequences' first tokens, INT32 [B]. */
    private static Tensor first(Pass pass) {
        Sequences sequences = pass.sequences();
        int batch = Math.toIntExact(sequences.batch());
        if (sequences.format() == QkvFormat.THD) {
            return pass.scope().view(sequences.placement().offsets(), 0, batch);
        }
        int[] numbers = new int[batch];
        int step = sequences.format() == QkvFormat.BSHD ? Math.toIntExact(sequences.length()) : 1;
        Arrays.setAll(numbers, i -> i * step);
        Tensor first = pass.scope().tensor(DType.INT32, batch);
        first.set(pass.stream(), numbers);
        return first;
    }

    /** Frees the weights. A second call does nothing. */
    @Override
    public void close() {
        body.close();
    }
}
