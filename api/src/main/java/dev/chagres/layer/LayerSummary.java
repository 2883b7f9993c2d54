package dev.chagres.layer;

import java.util.StringJoiner;

/**
 * Sizes and options of a layer, as {@link Layer#toString} shows them: {@code in=32, out=96, bias=ABSENT}.
 *
 * <p>Threading: one thread at a time.
 */
final class LayerSummary {
    private final StringJoiner text = new StringJoiner(", ");

    LayerSummary() {}

    /** Returns the line of a layer: {@code head: Linear(in=32, out=96)}; without brackets where there is nothing to say. */
    static String line(String name, String type, String summary) {
        return (name.isEmpty() ? "" : name + ": ") + type + (summary.isEmpty() ? "" : "(" + summary + ")");
    }

    /** Adds a size, or an option that is always shown. */
    LayerSummary with(String name, Object value) {
        text.add(name + "=" + value);
        return this;
    }

    /** Adds an option that differs from its default. */
    LayerSummary withUnlessUsual(String name, Object value, Object usual) {
        return value.equals(usual) ? this : with(name, value);
    }

    /** Adds options of attention that differ from their defaults, besides its heads. */
    LayerSummary with(AttentionConfig config) {
        AttentionConfig usual = AttentionConfig.of(config.heads(), config.headDim(), config.mask());
        return with("heads", config.heads())
                .withUnlessUsual("keyHeads", config.keyHeads(), usual.keyHeads())
                .with("headDim", config.headDim())
                .with("mask", config.mask().kind())
                .withUnlessUsual("windowLeft", config.mask().windowLeft(), -1L)
                .withUnlessUsual("windowRight", Math.max(0, config.mask().windowRight()), 0L)
                .withUnlessUsual("dropout", config.dropout().probability(), 0f)
                .withUnlessUsual("scale", config.scale(), usual.scale())
                .withUnlessUsual(
                        "qkNorm", config.qkNorm().kind(), usual.qkNorm().kind())
                .withUnlessUsual("order", config.order(), usual.order())
                .withUnlessUsual("softcap", config.softcap(), 0f)
                .withUnlessUsual("softmaxType", config.softmaxType(), usual.softmaxType());
    }

    /** Adds the size of a norm, and options that differ from their defaults. */
    LayerSummary with(NormConfig config) {
        NormConfig usual = NormConfig.layerNorm(config.size());
        return with("size", config.size())
                .withUnlessUsual("epsilon", config.epsilon(), usual.epsilon())
                .withUnlessUsual("gamma", config.gamma(), usual.gamma());
    }

    /** Adds the width of a transformer layer, and options that differ from their defaults, besides its branches. */
    LayerSummary with(TransformerLayerConfig config) {
        return with("hidden", config.hidden())
                .withUnlessUsual("branchOrder", config.branchOrder(), BranchOrder.SEQUENTIAL)
                .withUnlessUsual("residual", config.residual(), ResidualSource.INPUT)
                .withUnlessUsual("normPlacement", config.normPlacement(), NormPlacement.INPUT)
                .withUnlessUsual("recomputation", config.recomputation(), TransformerLayerConfig.Recomputation.NONE)
                .withUnlessUsual("hiddenDropout", config.hiddenDropout().probability(), 0f)
                .withUnlessUsual("dropPath", config.dropPath().probability(), 0f);
    }

    @Override
    public String toString() {
        return text.toString();
    }
}
