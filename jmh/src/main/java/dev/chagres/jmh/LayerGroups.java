package dev.chagres.jmh;

import dev.chagres.model.ModelPlan;

/** What ranks that share transformer layers out gather and sum at a time. */
public enum LayerGroups {
    /** A whole layer, as {@code fully_shard} of each layer does in PyTorch. */
    LAYER,
    /** A layer's attention, then its MLP. */
    BRANCH;

    ModelPlan of(ModelPlan layers) {
        return this == LAYER
                ? layers
                : layers.regrouped(parameter -> parameter.name().contains(".mlp.") ? "mlp" : "attention");
    }
}
