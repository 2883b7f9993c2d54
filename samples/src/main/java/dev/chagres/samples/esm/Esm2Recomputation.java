package dev.chagres.samples.esm;

import dev.chagres.layer.Recomputed;
import dev.chagres.layer.TransformerLayerConfig;

/** What an ESM-2's layers compute again in backward, so that it takes less memory. */
public enum Esm2Recomputation {
    /** The activation alone, as usual. */
    NONE,
    /** Also the outputs of their norms: {@link TransformerLayerConfig.Recomputation#NORMS}. */
    NORMS,
    /** Everything: each layer is {@link Recomputed}, and keeps its input alone. */
    LAYERS
}
