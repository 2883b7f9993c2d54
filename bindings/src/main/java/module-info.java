/**
 * Transformer Engine, cuDNN, NCCL, the CUDA runtime and this project's operations as Java functions, and the finding,
 * opening and checking of their libraries.
 */
module dev.chagres.bindings {
    requires dev.chagres.nativelibraries;
    requires static transitive org.jspecify;

    exports dev.chagres.bindings;
    exports dev.chagres.bindings.cuda;
    exports dev.chagres.bindings.cudnn;
    exports dev.chagres.bindings.nccl;
    exports dev.chagres.bindings.ops;
    exports dev.chagres.bindings.te;
}
