package dev.chagres.jmh;

import dev.chagres.model.ModelPlan;

/** What fully sharded transformer layers gather and reduce at a time. */
public enum LayerGroups {
    /** A whole layer, as {@code fully_shard} of each layer does in PyTorch. */
    LAYER,
    /**
     * A layer's attention with its norms, then the products of its MLP: of these backward has all gradients before it comes to attention. It
     * computes the gradients of the MLP's norm after those of the MLP, as a part of the whole layer.
     */
    BRANCH;

    ModelPlan of(ModelPlan layers) {
        return this == LAYER ? layers : layers.regrouped(parameter -> isOfMlp(parameter.name()) ? "mlp" : "attention");
    }

    private static boolean isOfMlp(String name) {
        return name.contains(".mlp.") && !name.contains("norm");
    }
}
