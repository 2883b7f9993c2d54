/**
 * Safe Java over Transformer Engine, cuDNN and NCCL: devices, scopes, tensors, layers, attention, optimizers, files.
 */
module dev.chagres {
    requires transitive dev.chagres.bindings;
    requires static transitive org.jspecify;
    requires com.fasterxml.jackson.core;

    exports dev.chagres;
    exports dev.chagres.attention;
    exports dev.chagres.io;
    exports dev.chagres.layer;
    exports dev.chagres.optim;
}
