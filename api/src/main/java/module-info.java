/**
 * Safe Java over Transformer Engine, cuDNN and NCCL: devices, scopes, tensors, layers, attention, optimizers.
 */
module dev.chagres {
    requires transitive dev.chagres.bindings;
    requires static transitive org.jspecify;

    exports dev.chagres;
    exports dev.chagres.attention;
    exports dev.chagres.layer;
    exports dev.chagres.optim;
}
