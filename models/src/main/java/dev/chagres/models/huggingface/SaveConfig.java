package dev.chagres.models.huggingface;

import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;

/**
 * How a model is saved to a folder. {@link #standard} has the usual values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * @param shardBytes most bytes of tensors in a file; where a model has more there are several, and an index
 * @param unusedFrom a folder of the same architecture, whose tensors that no model here computes with, such as those of the contact head,
 *     are copied
 * @param tokenizerFrom a folder whose files of a tokenizer, and of how text is generated, are copied; ESM-2 writes its own
 * @param layout of an ESM-2 with the head of the masked-language model
 * @param decoderLayout of a decoder
 * @param labels names of the classes of a classifier, different ones; empty for LABEL_0 and so on
 */
public record SaveConfig(
        long shardBytes,
        Optional<Path> unusedFrom,
        Optional<Path> tokenizerFrom,
        EsmLayout layout,
        DecoderLayout decoderLayout,
        List<String> labels) {
    private static final long USUAL = 5_000_000_000L;

    /**
     * Checks size and names.
     *
     * @throws IllegalArgumentException when the size is not positive, or two classes have one name
     */
    public SaveConfig {
        Objects.requireNonNull(unusedFrom, "unusedFrom");
        Objects.requireNonNull(tokenizerFrom, "tokenizerFrom");
        Objects.requireNonNull(layout, "layout");
        Objects.requireNonNull(decoderLayout, "decoderLayout");
        labels = List.copyOf(labels);
        if (Set.copyOf(labels).size() != labels.size()) {
            throw new IllegalArgumentException("labels: expected different names, got " + labels);
        }
        if (shardBytes < 1) {
            throw new IllegalArgumentException("shardBytes: expected at least 1, got " + shardBytes);
        }
    }

    /** Files of up to 5 GB, as transformers has them; nothing is copied. */
    public static SaveConfig standard() {
        return new SaveConfig(
                USUAL,
                Optional.empty(),
                Optional.empty(),
                EsmLayout.TRANSFORMERS,
                DecoderLayout.TRANSFORMERS,
                List.of());
    }

    /** Returns the same with other files: a tensor that is larger has one of its own. */
    public SaveConfig withShardBytes(long newShardBytes) {
        return new SaveConfig(newShardBytes, unusedFrom, tokenizerFrom, layout, decoderLayout, labels);
    }

    /** Returns the same with tensors that are copied from {@code folder}. */
    public SaveConfig withUnusedFrom(Path folder) {
        return new SaveConfig(shardBytes, Optional.of(folder), tokenizerFrom, layout, decoderLayout, labels);
    }

    /** Returns the same with files of a tokenizer that are copied from {@code folder}. */
    public SaveConfig withTokenizerFrom(Path folder) {
        return new SaveConfig(shardBytes, unusedFrom, Optional.of(folder), layout, decoderLayout, labels);
    }

    /** Returns the same in another layout. */
    public SaveConfig withLayout(EsmLayout newLayout) {
        return new SaveConfig(shardBytes, unusedFrom, tokenizerFrom, newLayout, decoderLayout, labels);
    }

    /** Returns the same with another layout of decoders. */
    public SaveConfig withLayout(DecoderLayout newLayout) {
        return new SaveConfig(shardBytes, unusedFrom, tokenizerFrom, layout, newLayout, labels);
    }

    /** Returns the same with names of the classes. */
    public SaveConfig withLabels(List<String> newLabels) {
        return new SaveConfig(shardBytes, unusedFrom, tokenizerFrom, layout, decoderLayout, newLabels);
    }
}
