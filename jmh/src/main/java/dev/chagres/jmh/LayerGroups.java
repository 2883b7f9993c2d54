package dev.chagres.jmh;

import dev.chagres.parameter.ModelPlan;

/** What fully sharded transformer layers gather and reduce at a time. */
public enum LayerGroups {
    /** A whole layer, as {@code fully_shard} of each layer does in PyTorch. */
    LAYER,
    /**
     * A layer's attention with its norms, then the products of its MLP: of these backward has all gradients before it comes to attention. It
     * computes the gradients of the MLP's norm after those of the MLP, as a part of the whole layer.
     */
    BRANCH,
    /**
     * As {@link #BRANCH}, but with the norms of the first layer apart: backward then has all gradients of that layer's attention before it computes
     * the last product, so they are reduced beside it.
     */
    BRANCH_AND_FIRST_NORMS;

    ModelPlan of(ModelPlan layers) {
        return this == LAYER ? layers : layers.regrouped(parameter -> kind(parameter.name()));
    }

    private String kind(String name) {
        if (this == BRANCH_AND_FIRST_NORMS && name.startsWith("layers.0.") && name.contains("norm")) {
            return "norms";
        }
        return isOfMlp(name) ? "mlp" : "attention";
    }

    private static boolean isOfMlp(String name) {
        return name.contains(".mlp.") && !name.contains("norm");
    }
}
