package dev.chagres.trainer.plan;

import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.huggingface.CheckpointException;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * The sizes that plans and advice depend on.
 *
 * <p>Threading: immutable.
 *
 * @param name as users give it
 * @param esm null of a decoder
 * @param decoder null of an ESM-2
 */
record PlannedModel(
        String name, @Nullable Esm2Config esm, @Nullable DecoderConfig decoder) {
    /** Those of {@code train --loss-tokens}, where it is left out. */
    private static final int LOSS_TOKENS = 1024;

    /**
     * Returns the model that {@code --model} names.
     *
     * @throws IllegalArgumentException when it is neither a size of ESM-2 nor a folder
     * @throws CheckpointException when the folder has no model that this program knows
     */
    static PlannedModel of(String name, int context) {
        for (Esm2Size size : Esm2Size.values()) {
            if (size.label().equalsIgnoreCase(name)) {
                return new PlannedModel(size.label(), Esm2Config.of(size, context), null);
            }
        }
        Path folder = Path.of(name);
        if (name.isBlank() || !Files.isDirectory(folder)) {
            String sizes = Arrays.stream(Esm2Size.values()).map(Esm2Size::label).collect(Collectors.joining(", "));
            throw new IllegalArgumentException("--model: expected one of " + sizes
                    + ", or a folder of Hugging Face, got " + (name.isBlank() ? "nothing" : ForeignText.plain(name)));
        }
        try {
            return new PlannedModel(name, Esm2Checkpoint.config(folder).withContext(context), null);
        } catch (CheckpointException noEsm) {
            try {
                DecoderConfig found = DecoderCheckpoint.config(folder);
                return new PlannedModel(name, null, found.withContext(context).withLossTokens(LOSS_TOKENS));
            } catch (CheckpointException noDecoder) {
                noDecoder.addSuppressed(noEsm);
                throw noDecoder;
            }
        }
    }

    /** Returns what makes the model. */
    TrainedModel.Factory factory(Recomputation recompute) {
        return esm != null ? esm.withRecomputation(recompute) : decoder().withRecomputation(recompute);
    }

    /** Returns the decoder, which is there where no ESM-2 is. */
    @Override
    public DecoderConfig decoder() {
        return Objects.requireNonNull(decoder);
    }

    /** Returns what backward usually recomputes. */
    Recomputation usualRecomputation() {
        return esm != null ? esm.recomputation() : decoder().recomputation();
    }

    int layers() {
        return esm != null ? esm.layers() : decoder().sizes().layers();
    }

    int hidden() {
        return esm != null ? esm.hidden() : decoder().sizes().hidden();
    }

    int heads() {
        return esm != null ? esm.heads() : decoder().sizes().heads();
    }

    int keyHeads() {
        return esm != null ? esm.heads() : decoder().sizes().keyHeads();
    }

    int headDim() {
        return esm != null ? esm.headDim() : decoder().sizes().headDim();
    }

    int inner() {
        return esm != null ? esm.inner() : decoder().sizes().inner();
    }

    /** Returns the tokens of the vocabulary, without rows that fill it up. */
    int vocabulary() {
        return esm != null ? 33 : decoder().sizes().vocabulary();
    }

    /** Returns the columns of the logits. */
    int logits() {
        return esm != null ? 64 : decoder().sizes().paddedVocabulary();
    }

    /** Returns the weights of these products, nearly all of a model. */
    double weights() {
        return products().stream()
                .mapToDouble(one -> (double) one.outputs() * one.inputs() * one.times())
                .sum();
    }

    /** Returns the products of a token, [outputs, inputs], each as often as a step has it. */
    List<Product> products() {
        int hidden = hidden();
        int attended = heads() * headDim();
        int gates = esm != null ? 1 : 2;
        var products = new ArrayList<>(List.of(
                new Product("query, key, value", (heads() + 2 * keyHeads()) * headDim(), hidden, layers(), true),
                new Product("projection", hidden, attended, layers(), true),
                new Product("feed-forward, first", gates * inner(), hidden, layers(), true),
                new Product("feed-forward, second", hidden, inner(), layers(), true),
                new Product("logits", logits(), hidden, 1, false)));
        if (esm != null) {
            products.add(new Product("head", hidden, hidden, 1, false));
        }
        return products;
    }

    /**
     * A product of every token.
     *
     * @param times how often a step has it
     * @param quantized whether recipes compute it in eight bits
     */
    record Product(String name, int outputs, int inputs, int times, boolean quantized) {}
}
