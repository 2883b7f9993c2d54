package dev.chagres.models.esm;

import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.pass.Recomputed;

/** What backward of an ESM-2's layers recomputes, so that they save less. */
public enum Esm2Recomputation {
    /** The activation only, as usual. */
    NONE,
    /** Also the outputs of their norms: {@link TransformerLayerConfig.Recomputation#NORMS}. */
    NORMS,
    /** Everything: each layer is {@link Recomputed}, and saves its input only. */
    LAYERS
}
