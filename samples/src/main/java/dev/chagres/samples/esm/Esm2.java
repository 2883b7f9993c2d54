package dev.chagres.samples.esm;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Dropout;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionConfig;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.Accumulation;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Gelu;
import dev.chagres.layer.Initializer;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormLayer;
import dev.chagres.layer.ParameterPlan;
import dev.chagres.layer.Parameters;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.samples.data.EsmVocabulary;
import java.util.ArrayList;
import java.util.List;

/**
 * ESM-2: {@code loss = crossEntropy(decoder(norm(gelu(dense(norm(layers(embedding(ids))))))), labels)}.
 *
 * <p>Pre-norm encoder layers with rotary positions, biases and GELU; the decoder's weight is the embedding's table. Left
 * out, as in most training of it: the scaling of embeddings by the share of masked tokens. No dropout, as published.
 * Parameters begin normal with deviation 0.02, biases at 0, norms at 1.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Lin et al., "Evolutionary-scale prediction of atomic-level protein structure with a language model",
 * Science 2023.
 */
public final class Esm2 implements AutoCloseable {
    /** Rows of the embedding and columns of the logits; those from {@link EsmVocabulary#SIZE} on belong to no token. */
    static final int VOCABULARY = EsmVocabulary.PADDED_SIZE;

    private static final Initializer WEIGHTS = Initializer.normal(0.02f);

    private final Embedding embedding;
    private final List<TransformerLayer> layers;
    /** The layers' records of the latest forward pass. */
    private final TransformerLayer.Saved[] pass;

    private final LayerNorm norm;
    private final Linear dense;
    private final LayerNorm headNorm;
    private final Linear decoder;
    private final CrossEntropy crossEntropy = new CrossEntropy(EsmVocabulary.SIZE);
    private final Parameters parameters;
    private final Scope scope;

    /**
     * Makes a model with its first weights.
     *
     * @param dtype type of weights and activations
     * @param seed equal seeds give equal weights
     * @throws IllegalArgumentException when attention does not take the head dimension, or the type is no float
     */
    public Esm2(Device device, Esm2Config config, DType dtype, long seed) {
        var plan = new ParameterPlan();
        int hidden = config.hidden();
        embedding = new Embedding(VOCABULARY, hidden, WEIGHTS, plan.child("embedding"));
        var attention = AttentionConfig.of(config.heads(), config.headDim(), AttentionMask.none(), Dropout.none());
        var stack = new ArrayList<TransformerLayer>();
        for (int i = 0; i < config.layers(); i++) {
            stack.add(new TransformerLayer(
                    TransformerLayerConfig.encoder(hidden, attention, Dropout.none()), plan.child("layers." + i)));
        }
        layers = List.copyOf(stack);
        pass = new TransformerLayer.Saved[config.layers()];
        norm = new LayerNorm(NormConfig.layerNorm(hidden), plan.child("norm"));
        ParameterPlan head = plan.child("head");
        dense = new Linear(hidden, hidden, WEIGHTS, head.child("dense"));
        headNorm = new LayerNorm(NormConfig.layerNorm(hidden), head.child("norm"));
        decoder = Linear.tied(embedding.weight(), head.child("decoder"));
        scope = device.openScope();
        try {
            RotaryEmbedding rotary = RotaryEmbedding.of(scope, config.context(), config.headDim());
            layers.forEach(layer -> layer.rotate(rotary));
            parameters = Parameters.allocate(device, plan, dtype, seed);
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    /** Returns weights and gradients. */
    public Parameters parameters() {
        return parameters;
    }

    /**
     * What backward needs.
     *
     * @param ids the tokens
     * @param layers of each layer
     * @param norm of the last norm
     * @param dense of the head's first product
     * @param headNorm of the head's norm
     * @param decoder of the head's second product
     * @param crossEntropy of the loss
     */
    public record Saved(
            Tensor ids,
            List<TransformerLayer.Saved> layers,
            NormLayer.Saved norm,
            Linear.Saved dense,
            NormLayer.Saved headNorm,
            Linear.Saved decoder,
            CrossEntropy.Saved crossEntropy) {
        /** Returns the mean cross-entropy of the labelled tokens: FLOAT32 [1]. */
        public Tensor loss() {
            return crossEntropy.loss();
        }

        /** Returns the scores of every token: [T, 64], of which 33 columns count. */
        public Tensor logits() {
            return decoder.output();
        }
    }

    /**
     * Enqueues the forward pass.
     *
     * @param ids INT32 [T]
     * @param labels INT32 [T]; a label outside the vocabulary leaves its token out
     * @param sequences which token belongs where
     * @param scope receives the loss and what backward needs
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Saved forward(Tensor ids, Tensor labels, Sequences sequences, Scope scope) {
        Tensor x = embedding.forward(ids, scope);
        for (int i = 0; i < pass.length; i++) {
            pass[i] = layers.get(i).forward(x, sequences, scope);
            x = pass[i].output();
        }
        NormLayer.Saved normed = norm.forward(x, scope);
        Linear.Saved projected = dense.forward(normed.output(), scope);
        NormLayer.Saved activated = headNorm.forward(Gelu.forward(projected.output(), scope), scope);
        Linear.Saved logits = decoder.forward(activated.output(), scope);
        CrossEntropy.Saved loss = crossEntropy.forward(logits.output(), labels, scope);
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.ids != ids || saved.crossEntropy != loss || !isOfPass(saved.layers)) {
            saved = new Saved(ids, List.of(pass), normed, projected, activated, logits, loss);
        }
        return scope.keep(saved);
    }

    /** Whether these are the layers' records of the pass just made: then everything else repeats too. */
    private boolean isOfPass(List<TransformerLayer.Saved> before) {
        for (int i = 0; i < pass.length; i++) {
            if (before.get(i) != pass[i]) {
                return false;
            }
        }
        return true;
    }

    /**
     * Enqueues the gradients of all parameters.
     *
     * @param saved what {@link #forward} returned
     * @param scope lends memory while this runs
     * @throws IllegalArgumentException when devices do not fit
     */
    public void backward(Saved saved, Accumulation accumulation, Scope scope) {
        try (Scope temporary = scope.open()) {
            Tensor gradient = headBackward(saved, accumulation, temporary);
            for (int i = layers.size() - 1; i >= 0; i--) {
                layers.get(i).backwardInPlace(gradient, saved.layers.get(i), accumulation, temporary);
            }
            // The decoder's share is there already: one table serves both.
            embedding.backward(gradient, saved.ids, Accumulation.ADD, temporary);
        }
    }

    private Tensor headBackward(Saved saved, Accumulation accumulation, Scope scope) {
        Tensor gradient = scope.like(saved.norm.input());
        try (Scope temporary = scope.open()) {
            Tensor dlogits = crossEntropy.backward(saved.crossEntropy, 1, temporary);
            Tensor dnormed = decoder.backward(dlogits, saved.decoder, accumulation, temporary);
            Tensor dactivated = headNorm.backward(dnormed, saved.headNorm, accumulation, temporary);
            Tensor ddense = Gelu.backward(dactivated, saved.dense.output(), temporary);
            Tensor dlast = dense.backward(ddense, saved.dense, accumulation, temporary);
            gradient.copyFrom(scope.stream(), norm.backward(dlast, saved.norm, accumulation, temporary));
        }
        return gradient;
    }

    /** Frees parameters and gradients. A second call does nothing. */
    @Override
    public void close() {
        parameters.close();
        scope.close();
    }
}
